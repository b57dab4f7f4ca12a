//! The memory that copies would take, before any is made.

use nearside_policy::{ByNode, replication::budget_bytes};
use nearside_topology::{NodeSet, Topology};

/// Memory is taken by whole pages.
const PAGE_BYTES: u64 = 4096;

/// The memory of copies of files of these lengths on each of these nodes.
pub(super) fn price(lengths: &[u64], nodes: &NodeSet) -> ByNode {
    let bytes: u64 = lengths.iter().map(|bytes| bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES).sum();
    nodes.iter().map(|node| (node, bytes)).collect()
}

/// The most memory for copies on each node.
pub(super) fn budgets(topology: &Topology) -> ByNode {
    let budget = |node: &nearside_topology::Node| (node.id, budget_bytes(node.memory_bytes));
    topology.nodes.iter().map(budget).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;

    #[test]
    fn each_node_pays_for_whole_pages_of_each_file() {
        let nodes = [NodeId(1), NodeId(3)].into_iter().collect();
        let expected = [(NodeId(1), 5 * PAGE_BYTES), (NodeId(3), 5 * PAGE_BYTES)].into();
        assert_eq!(price(&[1, PAGE_BYTES, 2 * PAGE_BYTES + 1], &nodes), expected);
        assert_eq!(price(&[], &nodes).values().sum::<u64>(), 0);
    }
}
