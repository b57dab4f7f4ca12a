//! The nodes that the vCPUs of one cell prefer within the home of their virtual machine.

use crate::ByNode;
use nearside_topology::{NodeId, NodeSet};

/// The nodes of `home` that hold a cell's memory, and the one of them with the most of it. A node
/// counts if it holds at least half as much as that one: some pages elsewhere do not draw vCPUs
/// away. None if no memory of the cell is at home.
///
/// Example: of 12 GiB, 8 are on node 0, 3 on node 1 and 1 on node 2. The vCPUs prefer node 0. With
/// 6, 5 and 1 GiB they prefer nodes 0 and 1.
pub fn cell_affinity(home: &NodeSet, bytes: &ByNode) -> Option<(NodeId, NodeSet)> {
    let at_home = || bytes.iter().filter(|(node, bytes)| home.contains(**node) && **bytes > 0);
    // Of several with as much, the first.
    let (&first, &most) =
        at_home().max_by_key(|(node, bytes)| (**bytes, std::cmp::Reverse(**node)))?;
    let nodes = at_home().filter(|(_, bytes)| **bytes >= most.div_ceil(2)).map(|(&node, _)| node);
    Some((first, nodes.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn preferred(home: &[u32], gib: &[u64]) -> Option<(u32, String)> {
        let home = home.iter().map(|&node| NodeId(node)).collect();
        let bytes = (0..).map(NodeId).zip(gib.iter().map(|gib| gib << 30)).collect();
        cell_affinity(&home, &bytes).map(|(first, nodes)| (first.0, nodes.to_string()))
    }

    #[test]
    fn vcpus_prefer_the_nodes_with_most_of_their_memory() {
        for (home, gib, expected) in [
            (&[0, 1, 2, 3][..], &[8, 3, 1][..], Some((0, "0"))),
            (&[0, 1, 2, 3], &[6, 5, 1], Some((0, "0-1"))),
            (&[0, 1, 2, 3], &[2, 0, 4, 2], Some((2, "0,2-3"))),
            (&[0, 1], &[3, 3], Some((0, "0-1"))),
            // Memory off the home does not count.
            (&[1], &[9, 1], Some((1, "1"))),
            (&[2], &[9, 1], None),
            (&[0, 1], &[], None),
            (&[0, 1], &[0, 0], None),
        ] {
            let expected = expected.map(|(first, nodes)| (first, nodes.to_owned()));
            assert_eq!(preferred(home, gib), expected, "{home:?} {gib:?}");
        }
    }

    proptest! {
        #[test]
        fn preferred_nodes_are_at_home_and_include_the_first(
            home in proptest::collection::btree_set(0..8_u32, 0..5),
            bytes in proptest::collection::btree_map(0..8_u32, any::<u64>(), 0..8),
        ) {
            let home: NodeSet = home.into_iter().map(NodeId).collect();
            let bytes = bytes.into_iter().map(|(node, bytes)| (NodeId(node), bytes)).collect();
            if let Some((first, nodes)) = cell_affinity(&home, &bytes) {
                prop_assert!(nodes.contains(first) && nodes.is_subset(&home));
                prop_assert!(nodes.iter().all(|node| bytes[&node] > 0));
            }
        }
    }
}
