//! The history after an observation, before any decision: demand and shares are smoothed,
//! contention is counted, pages that did not move back off, and node rates follow memory pressure.

use super::{
    backoff,
    contention::{Activity, count_after},
    rate::{is_short_of_memory, rate_after},
    smoothing::{milli_vcpus, sample_weight, smoothed, smoothed_shares},
    tuning::Tuning,
};
use crate::{
    ByNode, ControlObservation, History, MilliVcpus, MoveReport, NodeHistory, PartHistory, PartId,
    PartLoad, PartState, debt_bytes,
    index::{IndexVec, PartIndex},
};
use nearside_topology::{Node, NodeId};
use std::collections::BTreeMap;

/// The history after an observation, with the parts in its order.
#[derive(Debug)]
pub(super) struct Learned {
    pub(super) parts: IndexVec<PartIndex, PartHistory>,
    pub(super) nodes: BTreeMap<NodeId, NodeHistory>,
}

impl Learned {
    /// The history once `seen` is known. Parts and nodes that are not in it are forgotten.
    pub(super) fn new(tuning: &Tuning, before: &History, seen: &ControlObservation) -> Self {
        let topology = &seen.machine.topology;
        let mut moved: BTreeMap<&PartId, Vec<&MoveReport>> = BTreeMap::new();
        for report in &seen.moved {
            moved.entry(&report.part).or_default().push(report);
        }
        let mut by_parts = ByNode::new();
        let part = |state: &PartState| {
            let mut known = before.parts.get(&state.id).cloned().unwrap_or_default();
            known.since.get_or_insert(seen.interval);
            forget_former_home(&mut known, state);
            known.first_home = known.first_home.filter(|_| state.home.is_none());
            if let Some(load) = seen.loads.get(&state.id).filter(|load| load.over_ns > 0) {
                learn(&mut known, tuning, state, load, |node| topology.node(node).is_some());
                for (&node, &ns) in &load.cpu_ns {
                    *by_parts.entry(node).or_default() += milli_vcpus(ns, load.over_ns);
                }
            }
            for report in moved.get(&state.id).into_iter().flatten() {
                match backoff::after_report(known.stuck.get(&report.from), report, seen.interval) {
                    Some(stuck) => known.stuck.insert(report.from, stuck),
                    None => known.stuck.remove(&report.from),
                };
            }
            known
        };
        let parts = seen.machine.parts.iter().map(part).collect();
        let node = |node: &Node| {
            let by_parts = by_parts.get(&node.id).copied().unwrap_or(0);
            (node.id, node_after(tuning, before.nodes.get(&node.id), seen, node, by_parts))
        };
        Self { parts, nodes: topology.nodes.iter().map(node).collect() }
    }

    /// The history by the names of the parts that were observed. Of two parts with one name the
    /// first counts.
    pub(super) fn into_history(self, observed: &[PartState]) -> History {
        let ids: Vec<_> = observed.iter().map(|state| state.id.clone()).collect();
        let parts = ids.into_iter().zip(self.parts).rev().collect();
        History { parts, nodes: self.nodes }
    }
}

fn node_after(
    tuning: &Tuning,
    before: Option<&NodeHistory>,
    seen: &ControlObservation,
    node: &Node,
    by_parts: u64,
) -> NodeHistory {
    let load = seen.nodes.get(&node.id).copied().unwrap_or_default();
    let others = milli_vcpus(load.busy_ns, seen.length_ns).saturating_sub(by_parts);
    let others = before.map_or(others, |before| smoothed(before.others.0, others));
    // Where the host stalls is not known: every node slows down.
    let stalls = seen.memory_stall_ppm > Some(tuning.memory_stall_ppm);
    let before_ppm = before.copied().unwrap_or_default().rate_ppm;
    let rate_ppm = rate_after(before_ppm, stalls || is_short_of_memory(node, &load));
    NodeHistory { others: MilliVcpus(others), rate_ppm }
}

// An operator gave it another home, or a decision was refused: figures of the former home are void.
fn forget_former_home(known: &mut PartHistory, state: &PartState) {
    if known.home != state.home {
        known.home.clone_from(&state.home);
        known.contention_intervals = 0;
        known.confirmations = 0;
        known.bound_elsewhere = 0;
        known.stuck.clear();
    }
}

fn learn(
    known: &mut PartHistory,
    tuning: &Tuning,
    state: &PartState,
    load: &PartLoad,
    is_node: impl Fn(NodeId) -> bool,
) {
    let on_nodes = load.cpu_ns.iter().filter(|(node, _)| is_node(**node));
    let cpu_ns: ByNode = on_nodes.map(|(&node, &ns)| (node, ns)).collect();
    let ran_ns = cpu_ns.values().copied().fold(0, u64::saturating_add);
    let intervals = sample_weight(load.over_ns, tuning.interval_ns);
    let demand = milli_vcpus(ran_ns.saturating_add(load.waited_ns), load.over_ns);
    let was_sampled = known.sample_intervals > 0;
    for _ in 0..intervals {
        known.demand.0 = if was_sampled { smoothed(known.demand.0, demand) } else { demand };
        known.share_ppm = smoothed_shares(&known.share_ppm, &cpu_ns, &is_node);
    }
    let Some(home) = &state.home else { return };
    let off_home_ns = debt_bytes(&cpu_ns, &home.nodes);
    let activity = Activity { ran_ns, off_home_ns, waited_ns: load.waited_ns };
    let is_contended = activity.is_contended(tuning.contention_ppm) && !is_idle(tuning, known);
    known.contention_intervals = count_after(known.contention_intervals, is_contended, intervals);
}

/// Whether a part demands next to no CPU time.
pub(super) fn is_idle(tuning: &Tuning, known: &PartHistory) -> bool {
    known.demand.0 < tuning.idle_milli_vcpus
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Stayed, StayedWhy,
        controllers::homes::fixture::{SECOND, seen},
    };
    use nearside_topology::NodeSet;

    fn after(tuning: &Tuning, before: &History, seen: &ControlObservation) -> History {
        Learned::new(tuning, before, seen).into_history(&seen.machine.parts)
    }

    #[test]
    fn cpu_time_outside_domains_is_smoothed_by_node() {
        let tuning = Tuning::default();
        let mut history = after(&tuning, &History::default(), &seen(0, 0, [0, 0]));
        let mut others = Vec::new();
        for interval in 1..4 {
            history = after(&tuning, &history, &seen(interval, 0, [4, 0]));
            others.push(history.nodes[&NodeId(0)].others.0);
        }
        assert_eq!(others, [500, 875, 1156]);
    }

    #[test]
    fn demand_is_time_used_and_time_waited() {
        let tuning = Tuning::default();
        let mut seen = seen(0, 0, [0, 0]);
        seen.loads.get_mut(&"db".into()).unwrap().waited_ns = SECOND;
        // 4 s used and 1 s waited in 2 s.
        let known = after(&tuning, &History::default(), &seen).parts[&"db".into()].clone();
        assert_eq!((known.demand, known.contention_intervals), (MilliVcpus(2500), 1));
    }

    #[test]
    fn a_new_home_voids_contention_confirmations_and_stuck_pages() {
        let tuning = Tuning::default();
        let mut history = after(&tuning, &History::default(), &seen(0, 2, [4, 0]));
        let known = history.parts.get_mut(&"db".into()).unwrap();
        (known.confirmations, known.bound_elsewhere) = (2, 3);
        let mut moved = seen(1, 0, [4, 0]);
        moved.machine.parts[0].home.as_mut().unwrap().nodes = NodeSet::from([NodeId(1)]);
        moved.loads.clear();
        let known = &after(&tuning, &history, &moved).parts[&"db".into()];
        let voided = (known.contention_intervals, known.confirmations, known.bound_elsewhere);
        assert_eq!((voided, known.stuck.len()), ((0, 0, 0), 0));
        assert_eq!(known.demand, history.parts[&"db".into()].demand, "its demand is still its own");
    }

    #[test]
    fn a_domain_that_comes_back_under_the_same_name_is_a_new_one() {
        let tuning = Tuning::default();
        let first = after(&tuning, &History::default(), &seen(7, 0, [0, 0]));
        let mut gone = seen(8, 0, [0, 0]);
        gone.machine.parts.clear();
        let gone = after(&tuning, &first, &gone);
        assert!(gone.parts.is_empty());
        let again = after(&tuning, &gone, &seen(90, 0, [0, 0]));
        assert_eq!(
            (first.parts[&"db".into()].since, again.parts[&"db".into()].since),
            (Some(7), Some(90))
        );
    }

    #[test]
    fn reports_of_page_moves_start_and_end_a_backoff() {
        let tuning = Tuning::default();
        let mut seen = seen(3, 0, [0, 0]);
        let stayed = Stayed::from([(StayedWhy::Busy, 4096)]);
        let report = MoveReport { part: "db".into(), from: NodeId(1), moved_bytes: 0, stayed };
        seen.moved = vec![report.clone()];
        let stuck = after(&tuning, &History::default(), &seen);
        assert_eq!(stuck.parts[&"db".into()].stuck[&NodeId(1)].retry_at, 5);
        seen.moved = vec![MoveReport { moved_bytes: 9, stayed: Stayed::new(), ..report }];
        assert!(after(&tuning, &stuck, &seen).parts[&"db".into()].stuck.is_empty());
    }

    #[test]
    fn a_host_that_stalls_for_memory_slows_every_node() {
        let tuning = Tuning::default();
        let rates = |memory_stall_ppm| {
            let seen = ControlObservation { memory_stall_ppm, ..seen(0, 0, [0, 0]) };
            let nodes = after(&tuning, &History::default(), &seen).nodes;
            nodes.values().map(|node| node.rate_ppm).collect::<Vec<_>>()
        };
        assert_eq!(rates(Some(100_001)), [500_000, 500_000]);
        assert_eq!(rates(Some(100_000)), [1_000_000, 1_000_000]);
        assert_eq!(rates(None), [1_000_000, 1_000_000]);
    }
}
