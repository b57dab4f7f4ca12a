//! `nearside stat`: figures of nodes and domains.

use crate::{
    client,
    failure::Outcome,
    interval,
    output::{self, Format},
    report::{
        heap,
        stat::{self, Stat},
    },
    sample::{Sample, sample},
};
use std::time::Duration;

/// Show figures of nodes and domains: free and claimed memory, hits, locality
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside stat --heap
  nearside stat --all --interval 10 --format json")]
pub(crate) struct Args {
    /// Show free blocks by node, zone and order, too
    #[arg(long)]
    heap: bool,

    /// Show other cgroups with processes, too
    #[arg(long)]
    all: bool,

    /// Time over which counters and CPU use are sampled
    #[arg(long, value_name = "SECONDS", default_value = "0.5")]
    #[arg(value_parser = interval::parse, allow_hyphen_values = true)]
    interval: Duration,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    daemon: client::Args,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let Sample { mut stat, topology, left_out, unseen, .. } = sample(args.all, args.interval)?;
    output::note(left_out);
    output::note(unseen);
    args.daemon.tell_status(&mut stat.domains);
    let stat = Stat { heap: args.heap.then(|| heap::zones(&topology)), ..stat };
    args.format.print(&stat, stat::text)
}
