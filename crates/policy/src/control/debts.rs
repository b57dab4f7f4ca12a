//! Debt: pages come home, nearest first, under a budget.

use super::{DebtWaits, Stuck, round::Round, scene::page_bytes};
use crate::{
    Action, Batch, PageMove, PageSize, PartState, Reason, Step, debt_bytes,
    view::{PPM, UNREACHABLE},
};
use nearside_topology::{Node, NodeId, NodeSet};

// A domain that could not be confined to its home again is tried again after so many intervals.
const CONFINE_AGAIN_INTERVALS: u64 = 30;

// What the kernel keeps for a domain is counted by the byte and is no debt; what is less than the smallest page does not move either.
const SMALLEST_PAGE_BYTES: u64 = 4096;

// What a domain holds is counted some pages late on each CPU. So little more than what cannot move is no reason to wait: what of it
// does move, the kernel takes along when the domain is confined.
const TAKEN_ALONG_BYTES: u64 = 256 << 10;

// A domain that is confined to a home without so much room beyond what comes along would be killed for the next pages.
const ROOM_TO_CONFINE_BYTES: u64 = 1 << 20;

/// The debt, without what is less than a page on its node.
pub(super) fn debt_in_pages(state: &PartState, home: &NodeSet) -> u64 {
    let mut off = state.movable_bytes();
    off.retain(|_, bytes| *bytes >= SMALLEST_PAGE_BYTES);
    debt_bytes(&off, home)
}

/// Bytes that want to go from one node to another.
#[derive(Debug, Clone, Copy)]
struct Want {
    at: usize,
    from: usize,
    to: usize,
    bytes: u64,
    latency_ppm: u32,
}

impl Round<'_> {
    /// Moves what lies off home, and confines those again who have all of it there.
    pub(super) fn repatriate(&mut self) {
        let mut wants = Vec::new();
        for at in self.domains() {
            let Some(home) = self.state(at).home.as_ref().filter(|_| self.looked_at[at]) else {
                continue;
            };
            let debt_bytes = debt_in_pages(self.state(at), &home.nodes);
            let movable_bytes = self.state(at).movable_bytes();
            let known = &mut self.known[at];
            known.standing.debt_bytes = debt_bytes;
            known.standing.debt_waits = None;
            let has_debt = |from: &NodeId| {
                !home.nodes.contains(*from)
                    && movable_bytes.get(from).is_some_and(|&b| b >= SMALLEST_PAGE_BYTES)
            };
            known.saved_bytes.retain(|from, _| has_debt(from));
            for (_, stuck) in known.stuck.iter_mut().filter(|(from, _)| !has_debt(from)) {
                // It has gone by itself. How long the wait was is kept, for more may come there.
                (stuck.bytes, stuck.found_no_room) = (0, false);
            }
            // Where it shall lie has just changed: the next round sees it.
            if self.is_moving[at] {
                continue;
            }
            if debt_bytes > 0 {
                match self.is_anothers(at) {
                    None => self.wants_of(at, &mut wants),
                    waits => self.known[at].standing.debt_waits = waits,
                }
            }
            self.confine_again(at);
        }
        // Nearest first. Those who want to go the same way share it.
        wants.sort_unstable_by_key(|want| (want.latency_ppm, want.from, want.to, want.at));
        let mut arriving = Arriving::default();
        let ways = wants.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to));
        ways.for_each(|way| self.move_one_way(way, &mut arriving));
    }

    /// Why a domain's memory is somebody else's to move, if it is.
    fn is_anothers(&self, at: usize) -> Option<DebtWaits> {
        // Of what Nearside starts each process has a policy (or a cpuset, by policy restrictive), which balancing respects.
        let is_balanced = self.seen.balancing_scans() && self.state(at).was_found();
        match self.is_kept_at_home(at) {
            false => Some(DebtWaits::KeptElsewhere),
            true => is_balanced.then_some(DebtWaits::Balancing),
        }
    }

    // What a domain has where, and where it shall go.
    fn wants_of(&mut self, at: usize, wants: &mut Vec<Want>) {
        let party = self.party(at).clone();
        let (state, now) = (self.state(at), self.now());
        let may_lie =
            |i: usize| state.memory_nodes.as_ref().is_none_or(|nodes| nodes.contains(self.id(i)));
        let allowed: Vec<usize> = party.home.iter().copied().filter(|&i| may_lie(i)).collect();
        let mut waits = if allowed.is_empty() { Some(DebtWaits::NotAllowed) } else { None };
        for (id, bytes) in state.movable_bytes() {
            let Some(from) = self.scene.view.index_of(id) else { continue };
            if bytes < SMALLEST_PAGE_BYTES || party.home.contains(&from) {
                continue;
            }
            let stuck_bytes = self.known[at].stuck_bytes(id, now);
            if let Some(&Stuck { why, bytes, retry_at, .. }) =
                self.known[at].stuck.get(&id).filter(|_| stuck_bytes > 0)
            {
                waits = Some(DebtWaits::Stuck { why, bytes, retry_at });
            }
            let mut left = bytes.saturating_sub(stuck_bytes);
            let latency_ppm = |to: usize| self.scene.view.latencies_ppm(from)[to];
            let mut homes: Vec<_> = allowed.iter().map(|&to| (latency_ppm(to), to)).collect();
            homes.sort_unstable();
            for (latency_ppm, to) in homes {
                if left == 0 {
                    break;
                }
                if !self.is_nearer(at, from, to) {
                    waits = Some(DebtWaits::RunsThere);
                    continue;
                }
                // What was promised to it there, and what nobody was promised.
                let due =
                    party.due_bytes.iter().find(|(i, _)| *i == to).map_or(0, |&(_, bytes)| bytes);
                let (unclaimed, promisable) = self.scene.room_bytes(party.page_size, to);
                let bytes = left.min(due.saturating_add(unclaimed)).min(promisable);
                if bytes > 0 {
                    wants.push(Want { at, from, to, bytes, latency_ppm });
                    left -= bytes;
                }
            }
            if left > 0 && waits.is_none() {
                waits = Some(DebtWaits::NoRoom);
            }
        }
        self.known[at].standing.debt_waits = waits;
    }

    /// Whether pages would lie nearer to where the domain runs: one that was pushed off its home keeps them there, until
    /// it either comes back or gets another home.
    fn is_nearer(&self, at: usize, from: usize, to: usize) -> bool {
        let known = &self.known[at];
        if known.trouble_intervals == 0 || known.share_ppm.is_empty() {
            return true;
        }
        let mean = |to: usize| {
            let latency = |(node, &ppm): (&NodeId, &u64)| {
                let latency_ppm =
                    self.scene.view.latencies_ppm(self.scene.view.index_of(*node)?)[to];
                Some(u128::from(ppm) * u128::from(latency_ppm))
            };
            known.share_ppm.iter().filter_map(latency).sum::<u128>()
        };
        mean(to) < mean(from)
    }

    // Shares the budget from one node to another among those who want to go that way. Whose part is less than a page saves it
    // up, so that pages of any size go at any rate; and no more pages go at once than the budget has begun to pay for.
    fn move_one_way(&mut self, wants: &[Want], arriving: &mut Arriving) {
        let Some(&Want { from, to, latency_ppm, .. }) = wants.first() else { return };
        let (from_id, to_id) = (self.id(from), self.id(to));
        let pace = |id| self.nodes.get(&id).map_or(PPM, |known| known.pace_ppm);
        let pace_ppm = if latency_ppm == UNREACHABLE { 0 } else { pace(from_id).min(pace(to_id)) };
        let budget_bytes = self.tuning.budget_bytes(pace_ppm);
        let parts = fair_parts(budget_bytes, wants);
        let mut left_bytes = budget_bytes;
        // Whoever is first changes from round to round, for the last may come away with nothing.
        let first = (self.now() % wants.len() as u64) as usize;
        for i in (first..wants.len()).chain(0..first) {
            let (want, part) = (&wants[i], parts[i]);
            let page_size = self.party(want.at).page_size;
            let unit = page_bytes(page_size);
            let saved_bytes = self.known[want.at].saved_bytes.remove(&from_id).unwrap_or(0);
            let credit_bytes = part.saturating_add(saved_bytes.min(unit));
            let room_bytes = self
                .scene
                .room_bytes(page_size, to)
                .1
                .saturating_sub(arriving.bytes(page_size, to));
            let payable_bytes =
                if left_bytes == 0 { 0 } else { credit_bytes.min(left_bytes.max(unit)) };
            let max_bytes = payable_bytes.min(room_bytes).min(want.bytes);
            let max_bytes =
                if max_bytes < want.bytes { max_bytes / unit * unit } else { max_bytes };
            let known = &mut self.known[want.at];
            let saved_bytes = (credit_bytes - max_bytes).min(unit);
            known.saved_bytes.extend((saved_bytes > 0).then_some((from_id, saved_bytes)));
            if max_bytes == 0 {
                let waits = if room_bytes < unit { DebtWaits::NoRoom } else { DebtWaits::NoBudget };
                known.standing.debt_waits = Some(waits);
                continue;
            }
            left_bytes = left_bytes.saturating_sub(max_bytes);
            arriving.add(page_size, to, max_bytes);
            let debt_bytes = self.known[want.at].standing.debt_bytes;
            let action = PageMove {
                part: self.state(want.at).id.clone(),
                nodes: NodeSet::from([to_id]),
                rate_bytes_per_s: Some(self.tuning.rate_at(pace_ppm)),
                batch: Some(Batch { from: from_id, max_bytes }),
            };
            let reason = Reason::Debt { debt_bytes, pace_ppm };
            self.moves.push(Step { action, reason });
        }
    }

    /// Takes back the right to memory on former homes once nothing more is coming from there.
    ///
    /// What stays because it is busy stays where it is when that is written, as does what the kernel keeps for the domain. Where
    /// home is full it would kill ([`may_go_on`](crate::may_go_on)), so such a domain keeps the right.
    fn confine_again(&mut self, at: usize) {
        let (state, now) = (self.state(at), self.now());
        let Some((home, allowed)) = state.home.as_ref().zip(state.memory_nodes.as_ref()) else {
            return;
        };
        let memory = home.nodes.intersection(&self.seen.machine.topology.memory_nodes());
        if !home.policy.confines()
            || memory.is_empty()
            || *allowed == memory
            || !memory.is_subset(allowed)
        {
            return;
        }
        let owner = self.owner(at);
        let room = |node: &Node| crate::promisable(node, PageSize::Base).promisable_bytes;
        let nodes = self.seen.machine.topology.nodes.iter().filter(|node| memory.contains(node.id));
        let room_bytes = nodes.map(room).fold(0, u64::saturating_add);
        let known = &mut self.known[at];
        let has_room = room_bytes
            >= known.standing.debt_bytes.saturating_add(ROOM_TO_CONFINE_BYTES)
            && !known.stuck.values().any(|stuck| stuck.found_no_room);
        let off = state.movable_bytes().into_iter().filter(|(node, _)| !home.nodes.contains(*node));
        let coming = off.map(|(node, bytes)| bytes.saturating_sub(known.stuck_bytes(node, now)));
        let is_coming = coming.fold(0, u64::saturating_add) > TAKEN_ALONG_BYTES;
        let tried = known
            .confined_at
            .is_some_and(|then| now < then.saturating_add(CONFINE_AGAIN_INTERVALS));
        if !has_room || tried || is_coming || !owner.lets_bind() {
            return;
        }
        known.confined_at = Some(now);
        let action = Action::ConfineMemory { part: state.id.clone(), nodes: memory };
        self.transact(vec![Step { action, reason: Reason::Arrived }]);
    }
}

/// What arrives on nodes in this round, by page size.
#[derive(Debug, Default)]
struct Arriving(Vec<(PageSize, usize, u64)>);

impl Arriving {
    fn bytes(&self, page_size: PageSize, to: usize) -> u64 {
        self.0
            .iter()
            .find(|(size, node, _)| (*size, *node) == (page_size, to))
            .map_or(0, |&(.., bytes)| bytes)
    }

    fn add(&mut self, page_size: PageSize, to: usize, bytes: u64) {
        match self.0.iter_mut().find(|(size, node, _)| (*size, *node) == (page_size, to)) {
            Some((.., sum)) => *sum = sum.saturating_add(bytes),
            None => self.0.push((page_size, to, bytes)),
        }
    }
}

/// Equal parts of what there is; what one does not need the others share.
fn fair_parts(mut left: u64, wants: &[Want]) -> Vec<u64> {
    let mut by_size: Vec<usize> = (0..wants.len()).collect();
    by_size.sort_by_key(|&i| wants[i].bytes);
    let mut parts = vec![0; wants.len()];
    for (done, &i) in by_size.iter().enumerate() {
        let part = wants[i].bytes.min(left / (wants.len() - done) as u64);
        parts[i] = part;
        left -= part;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_does_not_need_the_others_share() {
        let wants = |bytes: &[u64]| -> Vec<Want> {
            bytes
                .iter()
                .map(|&bytes| Want { at: 0, from: 0, to: 1, bytes, latency_ppm: 0 })
                .collect()
        };
        let cases: [(u64, &[u64], &[u64]); 4] = [
            (10, &[9, 2, 9], &[4, 2, 4]),
            (10, &[9, 9, 9], &[3, 3, 4]),
            (100, &[9, 2], &[9, 2]),
            (0, &[9, 2], &[0, 0]),
        ];
        for (budget, wanted, expected) in cases {
            assert_eq!(fair_parts(budget, &wants(wanted)), expected, "{budget} {wanted:?}");
        }
    }
}
