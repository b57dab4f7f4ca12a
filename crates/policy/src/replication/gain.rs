//! The worth of a copy.

use nearside_topology::{Distances, NodeId};
use std::collections::BTreeMap;

/// How much longer a fetch from memory takes `reader` from the original than from the copy on
/// `copy`, in percent, by the distances of the SLIT. `original` has the original's pages by node.
/// Zero if the original is as near; none if it has no pages in memory.
pub fn gain_percent(
    reader: NodeId,
    original: &BTreeMap<NodeId, u64>,
    copy: NodeId,
    distances: &Distances,
) -> Option<u64> {
    let pages: u64 = original.values().sum();
    let distance = |to| u64::from(distances.get(reader, to));
    let total: u64 = original.iter().map(|(node, pages)| distance(*node) * pages).sum();
    let from_copy = distance(copy) * pages;
    Some(total.saturating_sub(from_copy) * 100).and_then(|more| more.checked_div(from_copy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

    fn distances() -> Distances {
        Distances::new(&NODES, &[10, 21, 30, 21, 10, 30, 30, 30, 10]).unwrap()
    }

    #[test]
    fn the_gain_is_the_distance_that_the_copy_saves() {
        let table = [
            // Reader, pages of the original by node, node of the copy, percent.
            (0, vec![(0, 8)], 0, Some(0)),
            (1, vec![(0, 8)], 1, Some(110)),
            (2, vec![(0, 8)], 2, Some(200)),
            // Half of it is local.
            (1, vec![(0, 4), (1, 4)], 1, Some(55)),
            // One copy for two nodes.
            (1, vec![(2, 8)], 0, Some(42)),
            // The copy is farther than the original.
            (0, vec![(1, 8)], 2, Some(0)),
            (0, vec![], 1, None),
        ];
        for (reader, original, copy, expected) in table {
            let original: BTreeMap<_, _> =
                original.into_iter().map(|(node, pages)| (NodeId(node), pages)).collect();
            let gain = gain_percent(NodeId(reader), &original, NodeId(copy), &distances());
            assert_eq!(gain, expected, "{reader} {original:?} {copy}");
        }
    }

    proptest! {
        #[test]
        fn a_copy_beside_its_reader_never_loses(
            pages in prop::array::uniform3(0_u64..1 << 40),
            reader in 0_usize..3,
        ) {
            let original = NODES.into_iter().zip(pages).collect();
            let reader = NODES[reader];
            let local = gain_percent(reader, &original, reader, &distances());
            for copy in NODES {
                prop_assert!(gain_percent(reader, &original, copy, &distances()) <= local);
            }
        }
    }
}
