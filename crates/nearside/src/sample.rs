//! A sample of the whole host, nodes and domains, for `stat` and `top`.

use crate::{
    domains::{self, Domain},
    failure::Failure,
    report::stat::{NodeStat, ReservedStat, Stat},
};
use nearside_linux::{Host, Paths, busy::busy_ns, counters::counters};
use nearside_policy::{ByNode, Observation};
use nearside_topology::{Topology, sysfs};
use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The state of the host, and its activity during an interval.
#[derive(Debug)]
pub(crate) struct Sample {
    /// Figures of nodes and domains.
    pub(crate) stat: Stat,
    /// Whether the sample includes other cgroups.
    pub(crate) all: bool,
    /// Busy time of CPUs during the interval by node, in ns; without nodes whose busy time is
    /// unknown.
    pub(crate) busy_ns: ByNode,
    /// The machine at the end of the interval.
    pub(crate) topology: Topology,
    /// Name of the sched_ext scheduler that is attached, if any.
    pub(crate) scheduler: Option<String>,
    /// CPUs and memory that placement does not offer, one line each.
    pub(crate) left_out: Vec<String>,
    /// Whether records could not be read: a domain may run that is not in the sample.
    pub(crate) has_unreadable: bool,
    /// The number of domains that the daemon watches, if the sample has none: found domains have no
    /// record as long as they have no home.
    pub(crate) watched: usize,
    /// Data that could not be read, and the reason, one line each.
    pub(crate) unseen: Vec<String>,
}

/// Samples the host for `interval`; with `all` also cgroups that Nearside did not start.
pub(crate) fn sample(all: bool, interval: Duration) -> Result<Sample, Failure> {
    let root = Path::new("/");
    let (machine, _) = sysfs::read(root).map_err(Failure::could_not)?;
    let count = || machine.nodes.iter().map(|node| counters(root, node.id)).collect::<Vec<_>>();
    let busy = || busy_ns(root, &machine).unwrap_or_default();
    let (mut left_out, mut unseen) = (Vec::new(), Vec::new());
    let has_unreadable;
    let (before, busy_before, begin) = (count(), busy(), Instant::now());
    let mut reservations = Vec::new();
    let domains = match Host::open(Paths::default()) {
        Ok(host) => {
            reservations = host.reservations();
            let (found, broken) = domains::running(&host, all)?;
            has_unreadable = !broken.is_empty();
            unseen.extend(broken);
            left_out
                .extend(domains::left_out(&machine.clone().offered(host.allowed().as_ref()), None));
            domains::sample(&host, &found, &machine, interval)
        }
        // Nodes have figures even if domains cannot be read.
        Err(error) => {
            has_unreadable = true;
            unseen.push(error.to_string());
            thread::sleep(interval);
            Vec::new()
        }
    };
    let (after, busy_after, interval_s) = (count(), busy(), begin.elapsed().as_secs_f64());
    unseen.extend(domains::hidden(&domains));
    // Free memory is read after resident memory, as for placement: memory touched in between counts
    // twice rather than not at all.
    let (topology, notes) = sysfs::read_again(&machine, root).map_err(Failure::could_not)?;
    unseen.extend(notes.iter().filter(|note| note.about_memory).map(ToString::to_string));
    let observation =
        Observation { topology, parts: domains.iter().map(Domain::state).collect(), reservations };
    let counted = before.into_iter().zip(after);
    let nodes = observation.topology.nodes.iter().zip(counted);
    let stat = Stat {
        interval_s: (interval_s * 1000.0).round() / 1000.0,
        nodes: nodes
            .map(|(node, (before, after))| NodeStat::new(&observation, node, [before, after]))
            .collect(),
        reserved_huge_pages: ReservedStat::all(&observation),
        heap: None,
        domains,
    };
    let worked =
        |(node, after): (_, u64)| Some((node, after.saturating_sub(*busy_before.get(&node)?)));
    let busy_ns = busy_after.into_iter().filter_map(worked).collect();
    let scheduler = nearside_scheduler::in_charge();
    Ok(Sample {
        stat,
        all,
        busy_ns,
        topology: observation.topology,
        scheduler,
        left_out,
        has_unreadable,
        watched: 0,
        unseen,
    })
}
