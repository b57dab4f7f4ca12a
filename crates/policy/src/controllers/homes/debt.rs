//! Debt comes home in batches, nearest pairs of nodes first, under a budget for each pair.

mod budget;

use super::{
    amounts::on,
    backoff::stuck_bytes,
    rate::{budget_bytes, bytes_per_s},
    round::Round,
};
use crate::{
    Batch, ByNode, DebtBlocker, PageMove, PartState, Reason, Stuck, debt_bytes,
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
#[derive(Debug, Clone, Copy)]
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
        for at in self.sampled() {
            let Some(home) = self.state(at).home.as_ref() else { continue };
            let debt_bytes = debt_in_pages(self.state(at), &home.nodes);
            let movable_bytes = self.state(at).movable_bytes();
            let has_debt = |from: &NodeId| {
                !home.nodes.contains(*from)
                    && movable_bytes.get(from).is_some_and(|&b| b >= MIN_PAGE_BYTES)
            };
            let known = self.known_mut(at);
            known.status.debt_bytes = debt_bytes;
            known.status.debt_blocker = None;
            known.carried_bytes.retain(|from, _| has_debt(from));
            for (_, stuck) in known.stuck.iter_mut().filter(|(from, _)| !has_debt(from)) {
                // The pages have gone by themselves. The backoff stays, because more pages may
                // follow them there.
                (stuck.bytes, stuck.found_no_room) = (0, false);
            }
            // A part whose home has just changed moves in the next round, which sees the change.
            if debt_bytes == 0 || self.is_moving(at) {
                continue;
            }
            let blocker = match self.is_moved_by_others(at) {
                Some(blocker) => Some(blocker),
                None => self.wants_of(at, &mut wants),
            };
            self.known_mut(at).status.debt_blocker = blocker;
        }
        wants.sort_unstable_by_key(|want| (want.latency_ppm, want.from, want.to, want.at));
        let nodes = self.host().view().nodes.len();
        let mut arrivals = IndexVec::filled(Arrivals::default(), nodes);
        let pairs = wants.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to));
        pairs.for_each(|pair| self.move_between(pair, &mut arrivals));
    }

    // The reason why another program moves the memory of a part, if one does.
    fn is_moved_by_others(&self, at: PartIndex) -> Option<DebtBlocker> {
        if let Some(pid) = self.state(at).mover {
            return Some(DebtBlocker::HasMover { pid });
        }
        // Each process that Nearside starts has a policy (or a cpuset, by policy restrictive),
        // which balancing respects.
        let is_balanced = self.seen().balancing_scans() && self.state(at).was_found();
        match self.is_bound_at_home(at) {
            false => Some(DebtBlocker::BoundElsewhere),
            true => is_balanced.then_some(DebtBlocker::Balancing),
        }
    }

    // Adds the debt of a part by pair of source and target node. Returns the reason why some debt
    // stays, if it does.
    fn wants_of(&self, at: PartIndex, wants: &mut Vec<Want>) -> Option<DebtBlocker> {
        let (part, state, known) = (self.part(at), self.state(at), self.known(at));
        let view = self.host().view();
        let may_lie =
            |i| state.memory_nodes.as_ref().is_none_or(|nodes| nodes.contains(self.id(i)));
        let allowed: Vec<_> = part.home.iter().copied().filter(|&i| may_lie(i)).collect();
        let mut due: Vec<_> = allowed.iter().map(|&to| (to, on(&part.due_bytes, to))).collect();
        let mut blocker = allowed.is_empty().then_some(DebtBlocker::NotAllowed);
        for (id, bytes) in state.movable_bytes() {
            let Some(from) = view.index_of(id) else { continue };
            if bytes < MIN_PAGE_BYTES || part.home.contains(&from) {
                continue;
            }
            let stuck = known.stuck.get(&id);
            let stuck_bytes = stuck_bytes(stuck, self.now());
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
                // A part that was pushed off its home keeps the pages near it there, until it
                // returns or gets another home.
                let is_contended = known.contention_intervals > 0;
                if is_contended && !is_nearer(view, &known.share_ppm, from, to) {
                    blocker = Some(DebtBlocker::RunsThere);
                    continue;
                }
                // The memory reserved for the part there, and the memory available to all.
                let Some((_, due)) = due.iter_mut().find(|(node, _)| *node == to) else { continue };
                let room = self.host().room_for_moves(part.page_size, to);
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
        blocker
    }

    // Shares the budget of a pair of nodes among the parts with pages to cross it.
    fn move_between(&mut self, wants: &[Want], arrivals: &mut IndexVec<NodeIndex, Arrivals>) {
        let Some(&Want { from, to, latency_ppm, .. }) = wants.first() else { return };
        let (from_id, to_id) = (self.id(from), self.id(to));
        let rate_ppm = match latency_ppm {
            UNREACHABLE => 0,
            _ => self.node_history(from_id).rate_ppm.min(self.node_history(to_id).rate_ppm),
        };
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
        controllers::homes::{
            fixture::{GIB, learned, seen},
            model::HostModel,
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
}
