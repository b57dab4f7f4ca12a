//! Confinement: a part whose policy confines it is confined to its home again once its debt has
//! arrived.
//!
//! It was allowed memory on its former home, too, so that its pages could move. Pages that are busy
//! stay where they are when the cpuset is narrowed, as does the kernel's memory of the part. Where
//! home is full, narrowing would kill the part at its next page ([`may_go_on`](crate::may_go_on)),
//! so such a part stays allowed.

use super::{backoff::stuck_bytes, round::Round};
use crate::{Action, PageSize, PartHistory, PartState, Reason, Step, allocatable};
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
        let topology = &self.seen().machine.topology;
        let memory_nodes = topology.memory_nodes();
        for at in self.sampled() {
            let (state, now) = (self.state(at), self.now());
            // A mover narrows the cpuset itself, once its pages have arrived.
            let has_mover = state.mover.is_some();
            if has_mover || self.is_moving(at) || !self.owner(at).lets_bind() {
                continue;
            }
            let Some(nodes) = narrower(state, &memory_nodes) else { continue };
            let room = |node: &Node| allocatable(node, PageSize::Base).allocatable_bytes;
            let at_home = topology.nodes.iter().filter(|node| nodes.contains(node.id));
            let room_bytes = at_home.map(room).fold(0, u64::saturating_add);
            if attempt(state, self.known(at), room_bytes, now).is_due(now) {
                self.known_mut(at).confined_at = Some(now);
                let action = Action::ConfineMemory { part: state.id.clone(), nodes };
                self.transact(vec![Step { action, reason: Reason::Arrived }]);
            }
        }
    }
}

/// The memory nodes of the home of a part that must be confined to it and is allowed more.
fn narrower(state: &PartState, memory_nodes: &NodeSet) -> Option<NodeSet> {
    let (home, allowed) = state.home.as_ref().zip(state.memory_nodes.as_ref())?;
    let nodes = home.nodes.intersection(memory_nodes);
    let is_narrower = !nodes.is_empty() && *allowed != nodes && nodes.is_subset(allowed);
    Some(nodes).filter(|_| home.policy.confines() && is_narrower)
}

/// The attempt to confine a part to a home on which `room_bytes` of memory can arrive.
fn attempt(state: &PartState, known: &PartHistory, room_bytes: u64, now: u64) -> Attempt {
    let is_off = |node| state.home.as_ref().is_none_or(|home| !home.nodes.contains(node));
    let off = state.movable_bytes().into_iter().filter(|(node, _)| is_off(*node));
    let coming =
        off.map(|(node, bytes)| bytes.saturating_sub(stuck_bytes(known.stuck.get(&node), now)));
    Attempt {
        room_bytes,
        debt_bytes: known.status.debt_bytes,
        coming_bytes: coming.fold(0, u64::saturating_add),
        found_no_room: known.stuck.values().any(|stuck| stuck.found_no_room),
        last_at: known.confined_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Home, MemoryPolicy, StayedWhy, Stuck, controllers::homes::fixture};
    use nearside_topology::NodeId;

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

    /// `db`, at home on node 0 under this policy and allowed memory on `allowed`.
    fn db(policy: MemoryPolicy, allowed: &str) -> PartState {
        let db = fixture::seen(1, 0, [0, 0]).machine.parts.remove(0);
        let home = db.home.map(|home| Home { policy, ..home });
        PartState { home, memory_nodes: Some(allowed.parse().unwrap()), ..db }
    }

    #[test]
    fn only_a_part_that_is_allowed_more_than_its_confining_home_is_narrowed() {
        let all: NodeSet = "0-1".parse().unwrap();
        let home = Some(NodeSet::from([NodeId(0)]));
        let strict = |allowed| narrower(&db(MemoryPolicy::Strict, allowed), &all);
        assert_eq!(strict("0-1"), home);
        assert_eq!(strict("0"), None, "it is confined already");
        assert_eq!(strict("1"), None, "another program confines it elsewhere");
        assert_eq!(narrower(&db(MemoryPolicy::Preferred, "0-1"), &all), None);
        let unconfined = PartState { memory_nodes: None, ..db(MemoryPolicy::Strict, "0-1") };
        assert_eq!(narrower(&unconfined, &all), None);
        let elsewhere = NodeSet::from([NodeId(1)]);
        assert_eq!(narrower(&db(MemoryPolicy::Strict, "0-1"), &elsewhere), None, "no memory");
    }

    #[test]
    fn pages_that_are_stuck_elsewhere_do_not_come() {
        let away = [(NodeId(0), 1 << 30), (NodeId(1), 10 << 20)].into();
        let state = PartState { resident_bytes: away, ..db(MemoryPolicy::Strict, "0-1") };
        let why = StayedWhy::Busy;
        let stuck = |bytes, found_no_room| {
            let stuck = Stuck { why, bytes, found_no_room, retry_at: 9, backoff_intervals: 2 };
            PartHistory { stuck: [(NodeId(1), stuck)].into(), ..PartHistory::default() }
        };
        let of = |known: &PartHistory, now| {
            let attempt = attempt(&state, known, 64 << 20, now);
            (attempt.coming_bytes >> 20, attempt.found_no_room)
        };
        assert_eq!(of(&PartHistory::default(), 8), (10, false), "home's own gigabyte is no debt");
        assert_eq!(of(&stuck(4 << 20, true), 8), (6, true));
        assert_eq!(of(&stuck(4 << 20, false), 9), (10, false), "they are tried again");
    }
}
