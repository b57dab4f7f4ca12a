//! `nearside stat`: nodes and domains in numbers.

use crate::{
    client,
    failure::Outcome,
    interval,
    look::{Look, look},
    output::{self, Format},
    report::{
        heap,
        stat::{self, Stat},
    },
};
use std::time::Duration;

/// Show nodes and domains in numbers: free, claimed, hits, locality
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside stat --heap
  nearside stat --all --interval 10 --format json")]
pub(crate) struct Args {
    /// Show the free blocks by node, zone and order, too
    #[arg(long)]
    heap: bool,

    /// Show cgroups that Nearside did not start, too
    #[arg(long)]
    all: bool,

    /// For how long to watch counters and where vCPUs run
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = interval::parse, allow_hyphen_values = true)]
    interval: Duration,

    /// How to show it
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    daemon: client::Args,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let Look { mut stat, topology, left_out, unseen, .. } = look(args.all, args.interval)?;
    output::note(left_out);
    output::note(unseen);
    args.daemon.tell_standing(&mut stat.domains);
    let stat = Stat { heap: args.heap.then(|| heap::zones(&topology)), ..stat };
    args.format.print(&stat, stat::text)
}
