//! Memory gets tight on a node: copies go before the kernel reclaims pages of others.

use nearside_topology::NodeId;
use std::time::Duration;

/// The share of a node's memory below which copies go: 1/32 of what claims could get.
const RESERVE_DIVISOR: u64 = 32;

/// The least reserve: a node of little memory is filled within a few looks.
const MIN_RESERVE_BYTES: u64 = 16 << 20;

/// The fastest that processes are expected to fill a node: about what zeroing pages on several
/// CPUs reaches. The next look comes before they can use up what lies above the reserve.
const FILL_BYTES_PER_S: u64 = 16 << 30;

/// The shortest and the longest time between two looks.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// For so long a node from which copies had to go gets none.
pub const RECOVERY: Duration = Duration::from_secs(10);

/// The memory of a node that holds copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeMemory {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// The part that claims could get, in bytes ([`allocatable`](fn@crate::allocatable)).
    pub allocatable_bytes: u64,
}

impl NodeMemory {
    /// Copies stay as long as so many bytes are left.
    pub fn reserve_bytes(&self) -> u64 {
        (self.total_bytes / RESERVE_DIVISOR).max(MIN_RESERVE_BYTES)
    }

    /// Bytes of copies that have to go.
    pub fn short_bytes(&self) -> u64 {
        self.reserve_bytes().saturating_sub(self.allocatable_bytes)
    }

    /// Whether a copy of so many bytes can come back without going again at once.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.allocatable_bytes >= self.reserve_bytes().saturating_mul(2).saturating_add(bytes)
    }

    /// The time until the next look.
    pub fn next_look(&self) -> Duration {
        let above = self.allocatable_bytes.saturating_sub(self.reserve_bytes());
        let (shortest, longest) = LOOKS;
        Duration::from_millis(above / (FILL_BYTES_PER_S / 1000)).clamp(shortest, longest)
    }
}

/// The node to which so many bytes go that processes keep of copies on node `from`: the one with
/// most room.
pub fn refuge(nodes: &[(NodeId, NodeMemory)], from: NodeId, bytes: u64) -> Option<NodeId> {
    let others = nodes.iter().filter(|(node, memory)| *node != from && memory.has_room_for(bytes));
    others.max_by_key(|(_, memory)| memory.allocatable_bytes).map(|(node, _)| *node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn memory(total_bytes: u64, allocatable_bytes: u64) -> NodeMemory {
        NodeMemory { total_bytes, allocatable_bytes }
    }

    #[test]
    fn copies_go_below_the_reserve_and_return_above_twice_of_it() {
        let table = [
            (64 * GIB, 3 * GIB, 0, false),
            (64 * GIB, 2 * GIB, 0, false),
            (64 * GIB, 2 * GIB - MIB, MIB, false),
            (64 * GIB, 0, 2 * GIB, false),
            (64 * GIB, 4 * GIB + 8 * MIB, 0, true),
            (256 * MIB, 15 * MIB, MIB, false),
        ];
        for (total, allocatable, short, room) in table {
            let it = memory(total, allocatable);
            assert_eq!((it.short_bytes(), it.has_room_for(8 * MIB)), (short, room), "{it:?}");
        }
    }

    #[test]
    fn looks_become_frequent_as_memory_becomes_short() {
        let look = |allocatable| memory(64 * GIB, allocatable).next_look();
        assert_eq!(look(60 * GIB), Duration::from_secs(1));
        assert_eq!(look(10 * GIB), Duration::from_millis(500));
        assert_eq!(look(2 * GIB), Duration::from_millis(10));
        assert_eq!(look(0), Duration::from_millis(10));
    }

    proptest! {
        #[test]
        fn a_node_with_room_is_never_short(
            total in 0_u64..,
            allocatable in 0_u64..,
            bytes in 0_u64..,
        ) {
            let it = memory(total, allocatable);
            prop_assert!(!it.has_room_for(bytes) || it.short_bytes() == 0);
        }

        #[test]
        fn nobody_reaches_the_end_of_the_memory_between_two_looks(
            total in 4 * GIB..1 << 45,
            share in 0_u64..=1000,
        ) {
            let it = memory(total, total / 1000 * share);
            let filled = it.next_look().as_millis() as u64 * (FILL_BYTES_PER_S / 1000);
            prop_assert!(filled <= it.allocatable_bytes.max(it.reserve_bytes() * 2));
        }
    }

    #[test]
    fn what_is_kept_goes_to_the_other_node_with_most_room() {
        let memory = |allocatable_bytes| NodeMemory { total_bytes: 32 * GIB, allocatable_bytes };
        let nodes =
            |all: [u64; 3]| [0, 1, 2].map(|node| (NodeId(node), memory(all[node as usize])));
        let table = [
            ([9 * GIB, 5 * GIB, 4 * GIB], Some(NodeId(1))),
            ([9 * GIB, 4 * GIB, 5 * GIB], Some(NodeId(2))),
            // Twice the reserve of 1 GiB has to stay.
            ([9 * GIB, 3 * GIB, 3 * GIB - 1], Some(NodeId(1))),
            ([9 * GIB, 3 * GIB - 1, 0], None),
        ];
        for (allocatable, expected) in table {
            assert_eq!(refuge(&nodes(allocatable), NodeId(0), GIB), expected, "{allocatable:?}");
        }
    }
}
