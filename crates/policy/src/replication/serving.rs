//! The nodes that get a copy of a file, and the copy that each node uses.

use nearside_topology::{NodeId, NodeSet, Topology};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, num::NonZeroU32, str::FromStr};

/// One copy for so many nodes, as IRIX had it (`ratio` of its replication policy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ratio(pub NonZeroU32);

impl Default for Ratio {
    fn default() -> Self {
        Self(NonZeroU32::MIN)
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let nodes = text.strip_prefix("1:").and_then(|nodes| nodes.parse().ok());
        let expected = || format!("expected 1:N, one copy for N nodes, as in 1:2, not {text:?}");
        nodes.map(Self).ok_or_else(expected)
    }
}

/// For each of `nodes` the node whose copy it uses. Copies lie on as few nodes as the ratio allows,
/// each chosen so that the sum of distances to the nearest copy falls most. Nodes without memory
/// have no copy.
///
/// Greedy, within 1 - 1/e of the best gain (Nemhauser, Wolsey and Fisher 1978: the gain is
/// submodular).
pub fn serving(nodes: &NodeSet, ratio: Ratio, topology: &Topology) -> BTreeMap<NodeId, NodeId> {
    let hosts = nodes.intersection(&topology.memory_nodes());
    let wanted = nodes.len().div_ceil(ratio.0.get() as usize).min(hosts.len());
    let distance = |from, to| u64::from(topology.distances.get(from, to));
    let mut chosen: Vec<NodeId> = Vec::new();
    for _ in 0..wanted {
        let cost_with = |host: NodeId| -> u64 {
            let nearest = |node| {
                chosen.iter().chain([&host]).map(|copy| distance(node, *copy)).min().unwrap_or(0)
            };
            nodes.iter().map(nearest).sum()
        };
        let free = hosts.iter().filter(|host| !chosen.contains(host));
        let Some(best) = free.min_by_key(|host| (cost_with(*host), *host)) else { break };
        chosen.push(best);
    }
    chosen.sort();
    let nearest = |node| chosen.iter().copied().min_by_key(|copy| (distance(node, *copy), *copy));
    nodes.iter().filter_map(|node| Some((node, nearest(node)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Distances, Node};

    /// Four nodes with memory; 0 and 1 are near each other, as are 2 and 3.
    fn pairs() -> Topology {
        let ids = [0, 1, 2, 3].map(NodeId);
        let node = |id| Node { id, memory_bytes: 1 << 30, ..Node::default() };
        let rows = [10, 15, 30, 30, 15, 10, 30, 30, 30, 30, 10, 15, 30, 30, 15, 10];
        Topology {
            nodes: ids.map(node).into(),
            distances: Distances::new(&ids, &rows).unwrap(),
            ..Topology::default()
        }
    }

    fn copies(nodes: &str, ratio: &str) -> Vec<(u32, u32)> {
        let topology = pairs();
        let nodes: NodeSet = nodes.split(',').map(|node| NodeId(node.parse().unwrap())).collect();
        let served = serving(&nodes, ratio.parse().unwrap(), &topology);
        served.into_iter().map(|(node, copy)| (node.0, copy.0)).collect()
    }

    #[test]
    fn each_node_uses_its_own_copy_by_default() {
        assert_eq!(copies("0,1,2,3", "1:1"), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        assert_eq!(copies("1,3", "1:1"), [(1, 1), (3, 3)]);
    }

    #[test]
    fn a_ratio_names_nodes_that_share_a_copy() {
        // Nodes 0 and 1 are near each other, as are 2 and 3.
        assert_eq!(copies("0,1,2,3", "1:2"), [(0, 0), (1, 0), (2, 2), (3, 2)]);
        assert_eq!(copies("0,1,2,3", "1:9"), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        assert_eq!(copies("0,1,2", "1:2"), [(0, 0), (1, 0), (2, 2)]);
    }

    #[test]
    fn a_ratio_that_is_none_is_refused_with_an_example() {
        for text in ["", "2", "1:", "1:0", "2:1", "1:-1", "1:4294967296"] {
            let refused = text.parse::<Ratio>().unwrap_err();
            assert!(refused.contains("1:N") && refused.contains(&format!("{text:?}")), "{refused}");
        }
    }
}
