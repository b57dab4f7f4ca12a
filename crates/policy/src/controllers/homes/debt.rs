//! Debt comes home in batches, nearest pairs of nodes first, under a budget for each pair.

mod budget;

use super::{
    amounts::on,
    backoff::stuck_bytes,
    model::HostModel,
    rate::{budget_bytes, bytes_per_s},
    round::Round,
};
use crate::{
    Batch, ByNode, DebtBlocker, NodeHistory, PageMove, PartHistory, PartState, Reason, Stuck,
    debt_bytes,
    index::{IndexVec, NodeIndex, PartIndex},
    view::{UNREACHABLE, View},
};
use budget::{Arrivals, Request, allot};
use nearside_topology::{NodeId, NodeSet};

// The kernel's memory of a part is counted by the byte. Less than the smallest page on a node
// cannot move: it is no debt.
const MIN_PAGE_BYTES: u64 = 4096;

/// The debt of a part, without less than a page on its node.
pub(super) fn debt_in_pages(state: &PartState, home: &NodeSet) -> u64 {
    let mut off = state.movable_bytes();
    off.retain(|_, bytes| *bytes >= MIN_PAGE_BYTES);
    debt_bytes(&off, home)
}

/// Bytes of a part that want to go from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Want {
    at: PartIndex,
    from: NodeIndex,
    to: NodeIndex,
    bytes: u64,
    /// The part of them for which memory is reserved there by its own claim.
    due_bytes: u64,
    latency_ppm: u32,
}

impl Round<'_> {
    /// Moves debt home.
    pub(super) fn move_debt(&mut self) {
        let mut wants = Vec::new();
        let balancing_scans = self.seen().balancing_scans();
        for at in self.sampled() {
            let state = self.state(at);
            let Some(home) = state.home.as_ref() else { continue };
            let known = self.known_mut(at);
            known.status.debt_bytes = debt_in_pages(state, &home.nodes);
            known.status.debt_blocker = None;
            forget_paid(known, state, &home.nodes);
            // A part whose home has just changed moves in the next round, which sees the change.
            if known.status.debt_bytes == 0 || self.is_moving(at) {
                continue;
            }
            let blocker = moved_by_others(state, self.is_bound_at_home(at), balancing_scans);
            let blocker = blocker.or_else(|| {
                let (some, blocker) = wants_of(at, self.host(), state, self.known(at), self.now());
                wants.extend(some);
                blocker
            });
            self.known_mut(at).status.debt_blocker = blocker;
        }
        wants.sort_unstable_by_key(|want| (want.latency_ppm, want.from, want.to, want.at));
        let nodes = self.host().view().nodes.len();
        let mut arrivals = IndexVec::filled(Arrivals::default(), nodes);
        let pairs = wants.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to));
        pairs.for_each(|pair| self.move_between(pair, &mut arrivals));
    }

    // Shares the budget of a pair of nodes among the parts with pages to cross it.
    fn move_between(&mut self, wants: &[Want], arrivals: &mut IndexVec<NodeIndex, Arrivals>) {
        let Some(&Want { from, to, latency_ppm, .. }) = wants.first() else { return };
        let (from_id, to_id) = (self.id(from), self.id(to));
        let (source, target) = (self.node_history(from_id), self.node_history(to_id));
        let rate_ppm = pair_rate_ppm(latency_ppm, source, target);
        let requests: Vec<Request> = wants
            .iter()
            .map(|want| Request {
                bytes: want.bytes,
                due_bytes: want.due_bytes,
                carried_bytes: self
                    .known(want.at)
                    .carried_bytes
                    .get(&from_id)
                    .copied()
                    .unwrap_or(0),
                page_size: self.part(want.at).page_size,
            })
            .collect();
        let room = |page_size| self.host().room_for_moves(page_size, to);
        let budget_bytes = budget_bytes(self.tuning(), rate_ppm);
        let allotments = allot(budget_bytes, self.now(), &requests, room, &mut arrivals[to]);
        for (want, allotment) in wants.iter().zip(allotments) {
            let known = self.known_mut(want.at);
            known.carried_bytes.remove(&from_id);
            if allotment.carried_bytes > 0 {
                known.carried_bytes.insert(from_id, allotment.carried_bytes);
            }
            if allotment.bytes == 0 {
                let blocker =
                    if allotment.no_room { DebtBlocker::NoRoom } else { DebtBlocker::NoBudget };
                known.status.debt_blocker = Some(blocker);
                continue;
            }
            let debt_bytes = known.status.debt_bytes;
            let action = PageMove {
                part: self.state(want.at).id.clone(),
                nodes: NodeSet::from([to_id]),
                rate_bytes_per_s: Some(bytes_per_s(self.tuning(), rate_ppm)),
                batch: Some(Batch { from: from_id, max_bytes: allotment.bytes }),
            };
            self.move_pages(action, Reason::Debt { debt_bytes, rate_ppm });
        }
    }
}

/// Forgets budget and stuck pages on nodes where a part has no debt any more.
fn forget_paid(known: &mut PartHistory, state: &PartState, home: &NodeSet) {
    let movable_bytes = state.movable_bytes();
    let has_debt = |from: &NodeId| {
        !home.contains(*from) && movable_bytes.get(from).is_some_and(|&b| b >= MIN_PAGE_BYTES)
    };
    known.carried_bytes.retain(|from, _| has_debt(from));
    for (_, stuck) in known.stuck.iter_mut().filter(|(from, _)| !has_debt(from)) {
        // The pages have gone by themselves. The backoff stays, because more pages may follow them
        // there.
        (stuck.bytes, stuck.found_no_room) = (0, false);
    }
}

/// The reason why another program moves the memory of a part, if one does.
fn moved_by_others(
    state: &PartState,
    is_bound_at_home: bool,
    balancing_scans: bool,
) -> Option<DebtBlocker> {
    if let Some(pid) = state.mover {
        return Some(DebtBlocker::HasMover { pid });
    }
    if !is_bound_at_home {
        return Some(DebtBlocker::BoundElsewhere);
    }
    // Each process that Nearside starts has a policy (or a cpuset, by policy restrictive), which
    // balancing respects.
    (balancing_scans && state.was_found()).then_some(DebtBlocker::Balancing)
}

/// The debt of a part by pair of source and target node, and the reason why some debt stays, if it
/// does.
fn wants_of(
    at: PartIndex,
    host: &HostModel,
    state: &PartState,
    known: &PartHistory,
    now: u64,
) -> (Vec<Want>, Option<DebtBlocker>) {
    let (part, view) = (host.part(at), host.view());
    let mut wants = Vec::new();
    let id = |i: NodeIndex| view.nodes[i].id;
    let may_lie = |i| state.memory_nodes.as_ref().is_none_or(|nodes| nodes.contains(id(i)));
    let allowed: Vec<_> = part.home.iter().copied().filter(|&i| may_lie(i)).collect();
    let mut due: Vec<_> = allowed.iter().map(|&to| (to, on(&part.due_bytes, to))).collect();
    let mut blocker = allowed.is_empty().then_some(DebtBlocker::NotAllowed);
    for (id, bytes) in state.movable_bytes() {
        let Some(from) = view.index_of(id) else { continue };
        if bytes < MIN_PAGE_BYTES || part.home.contains(&from) {
            continue;
        }
        let stuck = known.stuck.get(&id);
        let stuck_bytes = stuck_bytes(stuck, now);
        if let Some(&Stuck { why, bytes, retry_at, .. }) = stuck.filter(|_| stuck_bytes > 0) {
            blocker = Some(DebtBlocker::Stuck { why, bytes, retry_at });
        }
        let mut left = bytes.saturating_sub(stuck_bytes);
        let latencies = view.latencies_ppm(from);
        let mut homes: Vec<_> = allowed.iter().map(|&to| (latencies[to], to)).collect();
        homes.sort_unstable();
        for (latency_ppm, to) in homes {
            if left == 0 {
                break;
            }
            // A part that was pushed off its home keeps the pages near it there, until it returns
            // or gets another home.
            let is_contended = known.contention_intervals > 0;
            if is_contended && !is_nearer(view, &known.share_ppm, from, to) {
                blocker = Some(DebtBlocker::RunsThere);
                continue;
            }
            // The memory reserved for the part there, and the memory available to all.
            let Some((_, due)) = due.iter_mut().find(|(node, _)| *node == to) else { continue };
            let room = host.room_for_moves(part.page_size, to);
            let bytes = left.min(due.saturating_add(room.available)).min(room.allocatable);
            if bytes > 0 {
                let due_bytes = bytes.min(*due);
                wants.push(Want { at, from, to, bytes, due_bytes, latency_ppm });
                left -= bytes;
                *due -= due_bytes;
            }
        }
        if left > 0 && blocker.is_none() {
            blocker = Some(DebtBlocker::NoRoom);
        }
    }
    (wants, blocker)
}

/// The rate of page moves between two nodes, in parts per million of the maximum: the lower of
/// both. Pages do not move between nodes without a known distance.
fn pair_rate_ppm(latency_ppm: u32, from: NodeHistory, to: NodeHistory) -> u64 {
    if latency_ppm == UNREACHABLE { 0 } else { from.rate_ppm.min(to.rate_ppm) }
}

/// Whether pages would lie nearer to the CPUs that a part runs on, by its shares of CPU time; true
/// if those are unknown.
fn is_nearer(view: &View, share_ppm: &ByNode, from: NodeIndex, to: NodeIndex) -> bool {
    if share_ppm.is_empty() {
        return true;
    }
    let mean = |memory: NodeIndex| {
        let latency = |(node, &ppm): (&NodeId, &u64)| {
            let latency_ppm = view.latencies_ppm(view.index_of(*node)?)[memory];
            Some(u128::from(ppm) * u128::from(latency_ppm))
        };
        share_ppm.iter().filter_map(latency).sum::<u128>()
    };
    mean(to) < mean(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        StayedWhy,
        controllers::homes::{
            fixture::{GIB, learned, part, seen},
            tuning::Tuning,
        },
        index::Index,
    };

    #[test]
    fn debt_leaves_out_kernel_memory_and_less_than_a_page() {
        let home = NodeSet::from([NodeId(0)]);
        let state = |resident: u64, kernel: u64| PartState {
            resident_bytes: [(NodeId(0), GIB), (NodeId(1), resident)].into(),
            kernel_bytes: [(NodeId(1), kernel)].into(),
            ..PartState::default()
        };
        let cases = [
            ((8192, 0), 8192),
            ((8192, 4096), 4096),
            // 4,095 bytes are left.
            ((8192, 4097), 0),
            ((8192, 9000), 0),
        ];
        for ((resident, kernel), expected) in cases {
            assert_eq!(debt_in_pages(&state(resident, kernel), &home), expected, "{kernel}");
        }
    }

    #[test]
    fn pages_are_nearer_where_most_of_the_cpu_time_is_spent() {
        let tuning = Tuning::default();
        let seen = seen(1, 0, [0, 0]);
        let learned = learned(&tuning, &seen);
        let host = HostModel::new(&tuning, &seen, &learned);
        let [first, second] = [0, 1].map(NodeIndex::at);
        // Three quarters on node 0: pages on node 0 are at 0.75 x 1 + 0.25 x 2 = 1.25, on node 1 at
        // 1.75.
        let shares = [(NodeId(0), 750_000), (NodeId(1), 250_000)].into();
        assert!(is_nearer(host.view(), &shares, second, first));
        assert!(!is_nearer(host.view(), &shares, first, second));
        let equal = [(NodeId(0), 500_000), (NodeId(1), 500_000)].into();
        assert!(!is_nearer(host.view(), &equal, first, second), "no nearer is not nearer");
        assert!(is_nearer(host.view(), &ByNode::new(), first, second), "it never ran");
    }

    /// `db`, at home on node 0, with so many GiB on node 1 besides; it has its figures by now.
    fn away(gib: u64) -> (HostModel, PartState) {
        let tuning = Tuning::default();
        let mut seen = seen(1, 0, [0, 0]);
        seen.machine.parts[0].resident_bytes.insert(NodeId(1), gib * GIB);
        let host = HostModel::new(&tuning, &seen, &learned(&tuning, &seen));
        (host, seen.machine.parts.remove(0))
    }

    fn stuck(bytes: u64) -> PartHistory {
        let (why, found_no_room, retry_at) = (StayedWhy::Busy, true, 9);
        let stuck = Stuck { why, bytes, found_no_room, retry_at, backoff_intervals: 4 };
        PartHistory {
            stuck: [(NodeId(1), stuck)].into(),
            carried_bytes: [(NodeId(1), 512)].into(),
            ..PartHistory::default()
        }
    }

    /// The GiB that want to go from node 1 to node 0, and the reason why others stay.
    fn coming(away_gib: u64, state: PartState, known: &PartHistory) -> (u64, Option<DebtBlocker>) {
        let (host, db) = away(away_gib);
        let state = PartState { resident_bytes: db.resident_bytes, ..state };
        let (wants, blocker) = wants_of(part(0), &host, &state, known, 8);
        let [first, second] = [0, 1].map(NodeIndex::at);
        assert!(wants.iter().all(|want| (want.from, want.to) == (second, first)), "{wants:?}");
        (wants.iter().map(|want| want.bytes).sum::<u64>() / GIB, blocker)
    }

    #[test]
    fn debt_wants_to_go_home_as_far_as_it_may_can_and_should() {
        let (db, known) = (away(0).1, PartHistory::default());
        assert_eq!(coming(3, db.clone(), &known), (3, None));
        // Node 0 has 16 GiB available, beside the 4 that db has there.
        assert_eq!(coming(20, db.clone(), &known), (16, Some(DebtBlocker::NoRoom)));
        let elsewhere = Some(NodeSet::from([NodeId(1)]));
        let confined = PartState { memory_nodes: elsewhere, ..db.clone() };
        assert_eq!(coming(3, confined, &known), (0, Some(DebtBlocker::NotAllowed)));
        let stays = DebtBlocker::Stuck { why: StayedWhy::Busy, bytes: 2 * GIB, retry_at: 9 };
        assert_eq!(coming(3, db.clone(), &stuck(2 * GIB)), (1, Some(stays)));
        let pushed_off = PartHistory {
            contention_intervals: 1,
            share_ppm: [(NodeId(1), 1_000_000)].into(),
            ..PartHistory::default()
        };
        assert_eq!(coming(3, db.clone(), &pushed_off), (0, Some(DebtBlocker::RunsThere)));
        let returned = PartHistory { contention_intervals: 0, ..pushed_off };
        assert_eq!(coming(3, db, &returned), (3, None));
    }

    #[test]
    fn movers_bindings_and_balancing_come_before_the_controller() {
        let started = away(0).1;
        let found = PartState { claim: None, ..started.clone() };
        let of = |state: &PartState, is_at_home| moved_by_others(state, is_at_home, true);
        let moved = PartState { mover: Some(7), ..found.clone() };
        assert_eq!(of(&moved, false), Some(DebtBlocker::HasMover { pid: 7 }));
        assert_eq!(of(&found, false), Some(DebtBlocker::BoundElsewhere));
        assert_eq!(of(&found, true), Some(DebtBlocker::Balancing));
        assert_eq!(of(&started, true), None, "its policy keeps balancing off");
        assert_eq!(moved_by_others(&found, true, false), None);
    }

    #[test]
    fn budget_and_stuck_pages_of_a_node_without_debt_are_forgotten_but_not_the_wait() {
        let home = NodeSet::from([NodeId(0)]);
        let mut known = stuck(GIB);
        forget_paid(&mut known, &away(1).1, &home);
        assert_eq!(known, stuck(GIB), "there is debt");
        forget_paid(&mut known, &away(0).1, &home);
        let left = known.stuck[&NodeId(1)];
        assert_eq!((left.bytes, left.found_no_room, left.backoff_intervals), (0, false, 4));
        assert!(known.carried_bytes.is_empty());
    }

    #[test]
    fn the_slower_node_of_a_pair_sets_the_rate() {
        let at = |rate_ppm| NodeHistory { rate_ppm, ..NodeHistory::default() };
        assert_eq!(pair_rate_ppm(2_000_000, at(500), at(250)), 250);
        assert_eq!(pair_rate_ppm(2_000_000, at(125), at(250)), 125);
        assert_eq!(pair_rate_ppm(UNREACHABLE, at(500), at(250)), 0);
    }
}
