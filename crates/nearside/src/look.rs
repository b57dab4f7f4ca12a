//! A look at the whole host, nodes and domains, as `stat` and `top` show it.

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

/// What was seen.
#[derive(Debug)]
pub(crate) struct Look {
    /// Nodes and domains in numbers.
    pub(crate) stat: Stat,
    /// Whether other cgroups were looked at.
    pub(crate) all: bool,
    /// For how long CPUs worked during the interval, by node; nodes of which nothing tells are not in it.
    pub(crate) busy_ns: ByNode,
    /// The machine as it was at the end.
    pub(crate) topology: Topology,
    /// The scheduler in charge of the host, where that is not Linux's own.
    pub(crate) scheduler: Option<String>,
    /// What placement does not offer.
    pub(crate) left_out: Vec<String>,
    /// What could not be seen, and why.
    pub(crate) unseen: Vec<String>,
}

/// Looks for `interval`; with `all` also at cgroups that Nearside did not start.
pub(crate) fn look(all: bool, interval: Duration) -> Result<Look, Failure> {
    let root = Path::new("/");
    let (machine, _) = sysfs::read(root).map_err(Failure::could_not)?;
    let count = || machine.nodes.iter().map(|node| counters(root, node.id)).collect::<Vec<_>>();
    let busy = || busy_ns(root, &machine).unwrap_or_default();
    let (mut left_out, mut unseen) = (Vec::new(), Vec::new());
    let (before, busy_before, begin) = (count(), busy(), Instant::now());
    let domains = match Host::open(Paths::default()) {
        Ok(host) => {
            let (found, broken) = domains::running(&host, all)?;
            unseen.extend(broken);
            left_out
                .extend(domains::left_out(&machine.clone().offered(host.allowed().as_ref()), None));
            domains::look(&host, &found, &machine, interval)
        }
        // Nodes can be told of without domains.
        Err(error) => {
            unseen.push(error.to_string());
            thread::sleep(interval);
            Vec::new()
        }
    };
    let (after, busy_after, interval_s) = (count(), busy(), begin.elapsed().as_secs_f64());
    unseen.extend(domains::hidden(&domains));
    // Free memory after what is resident, as for placement: what is touched in between is not promised again.
    let (topology, notes) = sysfs::read_again(&machine, root).map_err(Failure::could_not)?;
    unseen.extend(notes.iter().filter(|note| note.about_memory).map(ToString::to_string));
    let observation = Observation {
        topology,
        parts: domains.iter().map(Domain::state).collect(),
        reservations: Vec::new(),
    };
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
    Ok(Look { stat, all, busy_ns, topology: observation.topology, scheduler, left_out, unseen })
}
