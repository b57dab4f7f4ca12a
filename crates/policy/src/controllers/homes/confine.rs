//! Confinement: a part whose policy confines it is confined to its home again once its debt has
//! arrived.
//!
//! It was allowed memory on its former home, too, so that its pages could move. Pages that are busy
//! stay where they are when the cpuset is narrowed, as does the kernel's memory of the part. Where
//! home is full, narrowing would kill the part at its next page ([`may_go_on`](crate::may_go_on)),
//! so such a part stays allowed.

use super::{backoff::stuck_bytes, round::Round};
use crate::{Action, PageSize, Reason, Step, allocatable, index::PartIndex};
use nearside_topology::{Node, NodeSet};

// The wait after an attempt, which the kernel may have refused.
const RETRY_INTERVALS: u64 = 30;

// Resident memory is counted some pages late on each CPU. So little movable debt is no reason to
// wait: the kernel takes it along when the cpuset is narrowed.
const MAX_TAKEN_ALONG_BYTES: u64 = 256 << 10;

// Home needs room for the debt that comes along, and for this much more.
const MIN_ROOM_BYTES: u64 = 1 << 20;

/// The state of a part that may be confined again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Attempt {
    /// Memory that can arrive on the home.
    room_bytes: u64,
    debt_bytes: u64,
    /// Debt that a move may still bring home.
    coming_bytes: u64,
    /// Whether a page found no room at home.
    found_no_room: bool,
    last_at: Option<u64>,
}

impl Attempt {
    /// Whether to narrow the cpuset now.
    fn is_due(&self, now: u64) -> bool {
        let has_room = self.room_bytes >= self.debt_bytes.saturating_add(MIN_ROOM_BYTES);
        let waits = self.last_at.is_some_and(|then| now < then.saturating_add(RETRY_INTERVALS));
        let is_coming = self.coming_bytes > MAX_TAKEN_ALONG_BYTES;
        has_room && !self.found_no_room && !waits && !is_coming
    }
}

impl Round<'_> {
    /// Confines parts to their homes again.
    pub(super) fn confine_again(&mut self) {
        for at in self.sampled() {
            // A mover narrows the cpuset itself, once its pages have arrived.
            let has_mover = self.state(at).mover.is_some();
            if has_mover || self.is_moving(at) || !self.owner(at).lets_bind() {
                continue;
            }
            let Some(nodes) = self.narrower(at) else { continue };
            if self.attempt(at, &nodes).is_due(self.now()) {
                self.known_mut(at).confined_at = Some(self.now());
                let action = Action::ConfineMemory { part: self.state(at).id.clone(), nodes };
                self.transact(vec![Step { action, reason: Reason::Arrived }]);
            }
        }
    }

    // The memory nodes of the home of a part that must be confined to it and is allowed more.
    fn narrower(&self, at: PartIndex) -> Option<NodeSet> {
        let state = self.state(at);
        let (home, allowed) = state.home.as_ref().zip(state.memory_nodes.as_ref())?;
        let nodes = home.nodes.intersection(&self.seen().machine.topology.memory_nodes());
        let is_narrower = !nodes.is_empty() && *allowed != nodes && nodes.is_subset(allowed);
        Some(nodes).filter(|_| home.policy.confines() && is_narrower)
    }

    fn attempt(&self, at: PartIndex, home: &NodeSet) -> Attempt {
        let (state, known, now) = (self.state(at), self.known(at), self.now());
        let room = |node: &Node| allocatable(node, PageSize::Base).allocatable_bytes;
        let nodes = self.seen().machine.topology.nodes.iter().filter(|it| home.contains(it.id));
        let is_off = |node| state.home.as_ref().is_none_or(|home| !home.nodes.contains(node));
        let off = state.movable_bytes().into_iter().filter(|(node, _)| is_off(*node));
        let coming =
            off.map(|(node, bytes)| bytes.saturating_sub(stuck_bytes(known.stuck.get(&node), now)));
        Attempt {
            room_bytes: nodes.map(room).fold(0, u64::saturating_add),
            debt_bytes: known.status.debt_bytes,
            coming_bytes: coming.fold(0, u64::saturating_add),
            found_no_room: known.stuck.values().any(|stuck| stuck.found_no_room),
            last_at: known.confined_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRIVED: Attempt = Attempt {
        room_bytes: 64 << 20,
        debt_bytes: 0,
        coming_bytes: 0,
        found_no_room: false,
        last_at: None,
    };

    #[test]
    fn a_part_whose_debt_has_arrived_is_confined() {
        assert!(ARRIVED.is_due(9));
        let little = Attempt { coming_bytes: 256 << 10, ..ARRIVED };
        assert!(little.is_due(9), "the kernel takes that along");
        assert!(!Attempt { coming_bytes: (256 << 10) + 1, ..ARRIVED }.is_due(9));
    }

    #[test]
    fn home_needs_room_for_the_debt_that_comes_along_and_one_mebibyte() {
        let debt = 5 << 20;
        let with = |room_bytes| Attempt { room_bytes, debt_bytes: debt, ..ARRIVED };
        assert!(with(6 << 20).is_due(9) && !with((6 << 20) - 1).is_due(9));
        assert!(!Attempt { found_no_room: true, ..ARRIVED }.is_due(9));
    }

    #[test]
    fn the_next_attempt_is_thirty_intervals_later() {
        let tried = Attempt { last_at: Some(10), ..ARRIVED };
        assert_eq!([10, 39, 40].map(|now| tried.is_due(now)), [false, false, true]);
    }
}
