//! Memory tiers: classes of memory by speed, as Linux sorts nodes from HMAT's figures.

use crate::id::{NodeId, NodeSet};
use alloc::vec::Vec;

/// The memory tiers of a machine, and whether pages sink from one to the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryTiers {
    /// The tiers by rising number, the fastest first; empty if they are unknown.
    pub tiers: Vec<MemoryTier>,
    /// Whether the kernel moves cold pages to the next lower tier instead of reclaiming them; none
    /// if unknown.
    pub demotion_enabled: Option<bool>,
}

/// A memory tier.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryTier {
    /// Its number: less is faster.
    pub number: u32,
    /// Its nodes.
    pub nodes: NodeSet,
}

impl MemoryTiers {
    /// The number of a node's tier; none if it is unknown.
    pub fn of(&self, node: NodeId) -> Option<u32> {
        self.tiers.iter().find(|tier| tier.nodes.contains(node)).map(|tier| tier.number)
    }

    /// The nodes of each tier that is slower than those of all nodes with CPUs, the fastest first.
    /// Fast memory without CPUs (HBM) is no such tier, nor is ordinary memory beside it.
    pub fn below(&self, nodes_with_cpus: &NodeSet) -> Vec<&NodeSet> {
        let has_cpus = |tier: &MemoryTier| !tier.nodes.intersection(nodes_with_cpus).is_empty();
        match self.tiers.iter().rposition(has_cpus) {
            Some(last) => self.tiers.iter().skip(last + 1).map(|tier| &tier.nodes).collect(),
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers(tiers: &[(u32, &str)]) -> MemoryTiers {
        let tier =
            |&(number, nodes): &(u32, &str)| MemoryTier { number, nodes: nodes.parse().unwrap() };
        MemoryTiers { tiers: tiers.iter().map(tier).collect(), demotion_enabled: None }
    }

    #[test]
    fn lower_tiers_are_those_below_all_nodes_with_cpus() {
        let below = |known: &[(u32, &str)], cpus: &str| {
            let known = tiers(known);
            let below = known.below(&cpus.parse().unwrap());
            below.into_iter().map(|nodes| nodes.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(below(&[(4, "0-1"), (22, "2"), (30, "3")], "0-1"), ["2", "3"]);
        assert!(below(&[(2, "2-3"), (4, "0-1")], "0-1").is_empty(), "HBM is faster");
        assert!(below(&[(4, "0"), (22, "1")], "0-1").is_empty(), "slow memory with CPUs");
        assert!(below(&[], "0").is_empty() && below(&[(4, "0")], "").is_empty());
        assert_eq!(tiers(&[(4, "0-1"), (22, "2")]).of(NodeId(2)), Some(22));
        assert_eq!(tiers(&[(4, "0-1")]).of(NodeId(2)), None);
    }
}
