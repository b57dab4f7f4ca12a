//! Memory and CPUs promised to a domain.

use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::PageSize;

/// A quantity for each of some nodes; a node that is missing has 0.
pub type ByNode = BTreeMap<NodeId, u64>;

/// The sum over all nodes.
pub fn total(amounts: &ByNode) -> u64 {
    amounts.values().copied().fold(0, u64::saturating_add)
}

/// Memory and CPUs promised to a domain, for its whole life.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Bytes by node.
    pub bytes: ByNode,
    /// vCPUs by node.
    pub vcpus: ByNode,
    /// The pages the bytes are made of.
    pub page_size: PageSize,
}

impl Claim {
    /// All claimed bytes.
    pub fn total_bytes(&self) -> u64 {
        total(&self.bytes)
    }

    /// The nodes with a claim.
    pub fn nodes(&self) -> NodeSet {
        self.bytes
            .iter()
            .chain(&self.vcpus)
            .filter(|(_, amount)| **amount > 0)
            .map(|(&node, _)| node)
            .collect()
    }
}

/// Claimed memory that is not resident yet, by node: the part of free memory that is reserved.
///
/// On each node that is max(claim - resident, 0), so memory that was freed and will be touched
/// again counts again. A domain on several nodes may use more of one than foreseen; it then uses
/// less of another. So the sum never exceeds max(all claimed - all resident, 0). Memory on a node
/// without a claim does not count as resident in that sum: it is debt, and its place at home stays
/// reserved until it arrives. `staying` is the part of `resident` that cannot move. An excess is
/// taken off in proportion, rounded so that no byte that is still owed is lost
/// (docs/adr/0001-claims.md).
pub fn outstanding(claim: &Claim, resident: &ByNode, staying: &ByNode) -> ByNode {
    let on = |node| resident.get(&node).copied().unwrap_or(0);
    let has_claim = |node| claim.bytes.get(node).is_some_and(|&bytes| bytes > 0);
    let stays = |node| staying.get(node).copied().unwrap_or(0);
    let open: ByNode =
        claim.bytes.iter().map(|(&node, &bytes)| (node, bytes.saturating_sub(on(node)))).collect();
    let all_open: u64 = open.values().fold(0, |sum, &bytes| sum.saturating_add(bytes));
    let counted = resident.iter().map(|(node, &bytes)| match has_claim(node) {
        true => bytes,
        false => bytes.min(stays(node)),
    });
    let all_resident = counted.fold(0_u64, u64::saturating_add);
    let owed = claim.total_bytes().saturating_sub(all_resident);
    if all_open <= owed {
        return open;
    }
    let share =
        |bytes: u64| (u128::from(bytes) * u128::from(owed)).div_ceil(u128::from(all_open)) as u64;
    open.into_iter().map(|(node, bytes)| (node, share(bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn by_node(amounts: &[u64]) -> ByNode {
        amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount)).collect()
    }

    fn claim(amounts: &[u64]) -> Claim {
        Claim { bytes: by_node(amounts), ..Claim::default() }
    }

    #[test]
    fn memory_that_was_touched_is_not_reserved_again() {
        type Amounts<'a> = &'a [u64];
        let cases: [(Amounts<'_>, Amounts<'_>, Amounts<'_>, Amounts<'_>); 8] = [
            (&[100], &[0], &[], &[100]),
            (&[100], &[30], &[], &[70]),
            (&[100], &[100], &[], &[0]),
            (&[100], &[150], &[], &[0]),
            // Two nodes, 50 claimed on each; 80 came from the first: 20 are owed, on the second.
            (&[50, 50], &[80, 0], &[], &[0, 20]),
            // 60 lie on a node without a claim: debt, whose place at home stays reserved.
            (&[100, 0], &[0, 60], &[], &[100, 0]),
            // 10 of them cannot move: 100 - 10 are reserved.
            (&[100, 0], &[0, 60], &[0, 10], &[90, 0]),
            (&[100, 0], &[40, 60], &[0, 60], &[0, 0]),
        ];
        for (claimed, resident, staying, expected) in cases {
            assert_eq!(
                outstanding(&claim(claimed), &by_node(resident), &by_node(staying)),
                by_node(expected),
                "{claimed:?} {resident:?} {staying:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn never_less_than_owed_and_never_more_than_claimed(
            pairs in proptest::collection::vec((0..1u64 << 40, 0..1u64 << 40), 1..9)
        ) {
            let (promised, resident): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let open = outstanding(&claim(&promised), &by_node(&resident), &ByNode::new());
            let total: u64 = open.values().sum();
            let owed = promised.iter().sum::<u64>().saturating_sub(resident.iter().sum());
            let debt: u64 =
                promised.iter().zip(&resident).filter(|(c, _)| **c == 0).map(|(_, r)| r).sum();
            prop_assert!(total >= owed && total < owed + debt + promised.len() as u64);
            for (node, bytes) in &open {
                prop_assert!(*bytes <= promised[node.0 as usize]);
            }
        }
    }
}
