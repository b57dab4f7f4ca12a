//! The target of a page: the node with room that lacks most of its claim.
//!
//! The distance of the move does not count. All target nodes belong to the home, its vCPUs run on
//! all of them, and only the distance from those CPUs matters afterwards. Choosing the nearest
//! target would collect all pages of an old node on one node. All vCPUs would then share that
//! node's bandwidth, and only a part of the memory was claimed there.

use nearside_policy::ByNode;
use nearside_topology::{NodeId, NodeSet, Topology};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The target nodes, and their estimated room.
#[derive(Debug)]
pub(super) struct Targets<'a> {
    topology: &'a Topology,
    nodes: NodeSet,
    /// Free bytes by page size and node at the last read, less bytes sent there since.
    room_bytes: BTreeMap<(u64, NodeId), u64>,
    /// Bytes by page size and node that are claimed and not yet there, less bytes sent there since.
    missing_bytes: BTreeMap<(u64, NodeId), u64>,
    /// Targets that the kernel found full, by page size.
    full: BTreeSet<(u64, NodeId)>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(topology: &'a Topology, nodes: &NodeSet) -> Self {
        Self {
            topology,
            nodes: nodes.clone(),
            room_bytes: BTreeMap::new(),
            missing_bytes: BTreeMap::new(),
            full: BTreeSet::new(),
        }
    }

    /// Adds the claim on each node, in pages of one size, and the resident part of it.
    pub(super) fn promised(mut self, page_bytes: u64, promised: &ByNode, there: &ByNode) -> Self {
        let missing = |(&node, &bytes): (&NodeId, &u64)| {
            ((page_bytes, node), bytes.saturating_sub(there.get(&node).copied().unwrap_or(0)))
        };
        self.missing_bytes.extend(promised.iter().map(missing));
        self
    }

    pub(super) fn nodes(&self) -> &NodeSet {
        &self.nodes
    }

    /// The target for `bytes` in pages of this size. Among those with room, it is the node that
    /// lacks most of its claim; if no claim is lacking, the node with the most room, so that nodes
    /// fill evenly. None if the kernel found all of them full.
    pub(super) fn choose(&mut self, page_bytes: u64, bytes: u64) -> Option<NodeId> {
        let open = self.nodes.iter().filter(|&node| !self.full.contains(&(page_bytes, node)));
        let ranked = open.map(|node| {
            let room = self.room(page_bytes, node);
            let missing = self.missing_bytes.get(&(page_bytes, node)).copied().unwrap_or(0);
            (room < bytes, Reverse(missing), Reverse(room), node)
        });
        let (_, Reverse(missing), Reverse(room), chosen) = ranked.min()?;
        self.room_bytes.insert((page_bytes, chosen), room.saturating_sub(bytes));
        self.missing_bytes.insert((page_bytes, chosen), missing.saturating_sub(bytes));
        Some(chosen)
    }

    /// The kernel found no free page of this size on `node`.
    pub(super) fn is_full(&mut self, node: NodeId, page_bytes: u64) {
        self.full.insert((page_bytes, node));
    }

    /// Tries full nodes again, because they may have room by now.
    pub(super) fn look_again(&mut self) {
        self.full.clear();
    }

    fn room(&self, page_bytes: u64, id: NodeId) -> u64 {
        self.room_bytes.get(&(page_bytes, id)).copied().unwrap_or_else(|| {
            let Some(node) = self.topology.node(id) else { return 0 };
            let pool = node.huge_pages.iter().find(|pool| pool.page_bytes == page_bytes);
            match (pool, &node.state) {
                (Some(pool), _) => pool.free_pages.saturating_mul(page_bytes),
                (None, Some(state)) => state.free_bytes,
                (None, None) => node.memory_bytes,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{HugePagePool, MemoryState, Node};

    const MIB: u64 = 1 << 20;

    /// Nodes with this much free memory in MiB, and a free huge page each.
    fn machine(free_mib: [u64; 4]) -> Topology {
        let node = |(id, free): (u32, u64)| Node {
            id: NodeId(id),
            state: Some(MemoryState { free_bytes: free * MIB, ..MemoryState::default() }),
            huge_pages: vec![HugePagePool {
                page_bytes: 2 * MIB,
                total_pages: 8,
                free_pages: 1,
                surplus_pages: 0,
            }],
            ..Node::default()
        };
        Topology { nodes: (0..).zip(free_mib).map(node).collect(), ..Topology::default() }
    }

    fn set(nodes: &[u32]) -> NodeSet {
        nodes.iter().map(|&node| NodeId(node)).collect()
    }

    fn mib(by_node: &[(u32, u64)]) -> ByNode {
        by_node.iter().map(|&(node, mib)| (NodeId(node), mib * MIB)).collect()
    }

    /// MiB sent to each node, in blocks of 2 MiB.
    fn sent(targets: &mut Targets<'_>, all_mib: u64) -> BTreeMap<u32, u64> {
        let mut sent = BTreeMap::new();
        for _ in 0..all_mib / 2 {
            *sent.entry(targets.choose(4096, 2 * MIB).unwrap().0).or_default() += 2;
        }
        sent
    }

    #[test]
    fn each_target_gets_its_claim_less_its_resident_memory() {
        let topology = machine([100, 200, 300, 400]);
        let targets = || Targets::new(&topology, &set(&[0, 1, 2]));
        let promised = mib(&[(0, 20), (1, 20), (2, 20)]);
        let mut from_elsewhere = targets().promised(4096, &promised, &mib(&[(3, 60)]));
        assert_eq!(sent(&mut from_elsewhere, 60), [(0, 20), (1, 20), (2, 20)].into());
        // If less than the claim is moved, each node gets its share.
        let mut half = targets().promised(4096, &promised, &mib(&[(3, 30)]));
        assert_eq!(sent(&mut half, 30), [(0, 10), (1, 10), (2, 10)].into());
        let mut partly_there = targets().promised(4096, &promised, &mib(&[(2, 30), (3, 30)]));
        assert_eq!(sent(&mut partly_there, 30), [(0, 14), (1, 16)].into(), "most room first");
        // Memory beyond the claim goes to the node with the most room.
        let mut beyond = targets().promised(4096, &promised, &mib(&[(3, 160)]));
        assert_eq!(sent(&mut beyond, 160), [(0, 20), (1, 20), (2, 120)].into());
    }

    #[test]
    fn a_full_target_is_passed_over_until_the_next_pass() {
        let topology = machine([100, 100, 100, 100]);
        let mut targets =
            Targets::new(&topology, &set(&[1, 2])).promised(4096, &mib(&[(1, 20)]), &ByNode::new());
        assert_eq!(targets.choose(4096, MIB), Some(NodeId(1)));
        targets.is_full(NodeId(1), 4096);
        assert_eq!(targets.choose(4096, MIB), Some(NodeId(2)));
        assert_eq!(
            targets.choose(2 * MIB, 2 * MIB),
            Some(NodeId(1)),
            "full is full for one size of page"
        );
        targets.is_full(NodeId(2), 4096);
        assert_eq!(targets.choose(4096, MIB), None);
        targets.look_again();
        assert_eq!(targets.choose(4096, MIB), Some(NodeId(1)));
    }

    #[test]
    fn without_a_claim_targets_fill_evenly() {
        let topology = machine([100, 100, 40, 60]);
        // 80 MiB leave 10 MiB free on each.
        assert_eq!(
            sent(&mut Targets::new(&topology, &set(&[2, 3])), 80),
            [(2, 30), (3, 50)].into()
        );
    }

    #[test]
    fn room_counts_before_promises_and_a_pool_is_the_room_of_huge_pages() {
        let topology = machine([100, 1, 100, 100]);
        let mut targets =
            Targets::new(&topology, &set(&[1, 2])).promised(4096, &mib(&[(1, 20)]), &ByNode::new());
        assert_eq!(targets.choose(4096, 2 * MIB), Some(NodeId(2)));
        assert_eq!(targets.choose(2 * MIB, 2 * MIB), Some(NodeId(1)));
        assert_eq!(
            targets.choose(2 * MIB, 2 * MIB),
            Some(NodeId(2)),
            "the pool of node 1 is used up"
        );
    }
}
