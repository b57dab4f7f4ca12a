//! `nearside stat`: nodes and domains in numbers.

use crate::{
    client, domains,
    failure::{Failure, Outcome},
    interval,
    output::{self, Format},
    report::{
        heap,
        stat::{self, NodeStat, ReservedStat, Stat},
    },
};
use nearside_linux::{Host, Paths, counters::counters};
use nearside_policy::Observation;
use nearside_topology::sysfs;
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

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
    let root = Path::new("/");
    let read = || sysfs::read(root).map_err(Failure::could_not);
    let (topology, _) = read()?;
    let count = || topology.nodes.iter().map(|node| counters(root, node.id)).collect::<Vec<_>>();
    let (before, begin) = (count(), Instant::now());
    let domains = match Host::open(Paths::default()) {
        Ok(host) => {
            let (found, broken) = domains::running(&host, args.all)?;
            output::note(broken);
            output::note(domains::left_out(&topology.clone().offered(host.allowed().as_ref()), None));
            let mut domains = domains::look(&host, &found, &topology, args.interval);
            args.daemon.tell_standing(&mut domains);
            domains
        }
        // Nodes can be told of without domains.
        Err(error) => {
            output::note([error]);
            thread::sleep(args.interval);
            Vec::new()
        }
    };
    let (after, interval_s) = (count(), begin.elapsed().as_secs_f64());
    output::note(domains::hidden(&domains));
    // Free memory after what is resident, as for placement: what is touched in between is not promised again.
    let (topology, notes) = read()?;
    output::note(notes.iter().filter(|note| note.about_memory));
    let observation = Observation { topology, domains: domains.iter().map(domains::Domain::state).collect() };
    let counted = before.into_iter().zip(after);
    let nodes = observation.topology.nodes.iter().zip(counted);
    let stat = Stat {
        interval_s: (interval_s * 1000.0).round() / 1000.0,
        nodes: nodes.map(|(node, (before, after))| NodeStat::new(&observation, node, [before, after])).collect(),
        reserved_huge_pages: ReservedStat::all(&observation),
        heap: args.heap.then(|| heap::zones(&observation.topology)),
        domains,
    };
    args.format.print(&stat, stat::text)
}
