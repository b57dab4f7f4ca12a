//! The memory of copies.

use nearside_topology::NodeId;

/// The share of a node's memory that copies may take: 1/20, as illumos caps its own copies of text
/// (`textrepl_size_thresh` in `usr/src/uts/common/vm/seg_vn.c`).
const BUDGET_DIVISOR: u64 = 20;

/// The most bytes of copies on a node of `total_bytes` of memory.
pub fn budget_bytes(total_bytes: u64) -> u64 {
    total_bytes / BUDGET_DIVISOR
}

/// A copy, and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyUse<T> {
    /// The copy.
    pub copy: T,
    /// Its node.
    pub node: NodeId,
    /// Memory that it takes, in bytes.
    pub bytes: u64,
    /// Processes that map it.
    pub users: u32,
}

/// The copies of `node` that have to go until `short_bytes` are free again, least useful first:
/// those with the fewest users, and of those the largest, so that few go.
pub fn least_useful_first<T: Clone + Ord>(
    copies: &[CopyUse<T>],
    node: NodeId,
    short_bytes: u64,
) -> Vec<T> {
    let mut there: Vec<_> = copies.iter().filter(|copy| copy.node == node).collect();
    there.sort_by(|a, b| {
        a.users.cmp(&b.users).then(b.bytes.cmp(&a.bytes)).then(a.copy.cmp(&b.copy))
    });
    let mut freed_bytes = 0_u64;
    let mut going = Vec::new();
    for copy in there {
        if freed_bytes >= short_bytes {
            break;
        }
        freed_bytes = freed_bytes.saturating_add(copy.bytes);
        going.push(copy.copy.clone());
    }
    going
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(copy: &'static str, node: u32, bytes: u64, users: u32) -> CopyUse<&'static str> {
        CopyUse { copy, node: NodeId(node), bytes, users }
    }

    #[test]
    fn copies_without_users_go_first_and_no_more_than_needed() {
        let copies = [
            copy("libc", 1, 2_000, 40),
            copy("idle", 1, 1_000, 0),
            copy("idle-large", 1, 5_000, 0),
            copy("elsewhere", 2, 9_000, 0),
            copy("plugin", 1, 3_000, 1),
        ];
        let going = |bytes| least_useful_first(&copies, NodeId(1), bytes);
        assert_eq!(going(0), Vec::<&str>::new());
        assert_eq!(going(1), ["idle-large"]);
        assert_eq!(going(5_001), ["idle-large", "idle"]);
        assert_eq!(going(6_001), ["idle-large", "idle", "plugin"]);
        assert_eq!(going(u64::MAX), ["idle-large", "idle", "plugin", "libc"]);
        assert_eq!(least_useful_first(&copies, NodeId(7), 1), Vec::<&str>::new());
    }

    #[test]
    fn the_budget_is_a_twentieth_of_the_node() {
        assert_eq!(budget_bytes(100 << 30), 5 << 30);
        assert_eq!(budget_bytes(0), 0);
    }
}
