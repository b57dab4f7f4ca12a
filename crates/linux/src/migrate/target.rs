//! Where a page goes: the nearest target that has room.

use nearside_topology::{NodeId, NodeSet, Topology};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// The nodes that pages move to, and how much room they are thought to have.
#[derive(Debug)]
pub(super) struct Targets<'a> {
    topology: &'a Topology,
    nodes: NodeSet,
    /// Free bytes by size of page and node when the machine was read, less what was sent there since.
    room_bytes: BTreeMap<(u64, NodeId), u64>,
    /// Those that the kernel found full, by size of page.
    full: BTreeSet<(u64, NodeId)>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(topology: &'a Topology, nodes: &NodeSet) -> Self {
        Self { topology, nodes: nodes.clone(), room_bytes: BTreeMap::new(), full: BTreeSet::new() }
    }

    pub(super) fn nodes(&self) -> &NodeSet {
        &self.nodes
    }

    /// The target for `bytes` of pages of this size that lie on `from`: of those with room the nearest, of equally near
    /// ones the one with the most room, so that they fill evenly. None when the kernel found all of them full.
    pub(super) fn choose(&mut self, from: NodeId, page_bytes: u64, bytes: u64) -> Option<NodeId> {
        let open = self.nodes.iter().filter(|&node| !self.full.contains(&(page_bytes, node)));
        let ranked = open.map(|node| {
            let room = self.room(page_bytes, node);
            (room < bytes, self.topology.distances.get(from, node), Reverse(room), node)
        });
        let (.., Reverse(room), chosen) = ranked.min()?;
        self.room_bytes.insert((page_bytes, chosen), room.saturating_sub(bytes));
        Some(chosen)
    }

    /// The kernel found no free page of this size on `node`.
    pub(super) fn is_full(&mut self, node: NodeId, page_bytes: u64) {
        self.full.insert((page_bytes, node));
    }

    /// Full nodes may have room again.
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
    use nearside_topology::{Distances, HugePagePool, MemoryState, Node};

    const MIB: u64 = 1 << 20;

    /// Nodes in two pairs, 15 within a pair and 30 across, with this much free memory in MiB.
    fn machine(free_mib: [u64; 4]) -> Topology {
        let ids = [0, 1, 2, 3].map(NodeId);
        let rows = [10, 15, 30, 30, 15, 10, 30, 30, 30, 30, 10, 15, 30, 30, 15, 10];
        let node = |(id, free): (NodeId, u64)| Node {
            id,
            state: Some(MemoryState { free_bytes: free * MIB, ..MemoryState::default() }),
            huge_pages: vec![HugePagePool { page_bytes: 2 * MIB, total_pages: 8, free_pages: 1, surplus_pages: 0 }],
            ..Node::default()
        };
        let nodes = ids.into_iter().zip(free_mib).map(node).collect();
        Topology { nodes, distances: Distances::new(&ids, &rows).unwrap(), ..Topology::default() }
    }

    fn set(nodes: &[u32]) -> NodeSet {
        nodes.iter().map(|&node| NodeId(node)).collect()
    }

    #[test]
    fn the_nearest_goes_first_and_the_next_when_it_is_full() {
        let topology = machine([100, 100, 100, 100]);
        let mut targets = Targets::new(&topology, &set(&[1, 2]));
        assert_eq!(targets.choose(NodeId(0), 4096, MIB), Some(NodeId(1)));
        assert_eq!(targets.choose(NodeId(3), 4096, MIB), Some(NodeId(2)));
        targets.is_full(NodeId(1), 4096);
        assert_eq!(targets.choose(NodeId(0), 4096, MIB), Some(NodeId(2)));
        assert_eq!(targets.choose(NodeId(0), 2 * MIB, 2 * MIB), Some(NodeId(1)), "full is full for one size of page");
        targets.is_full(NodeId(2), 4096);
        assert_eq!(targets.choose(NodeId(0), 4096, MIB), None);
        targets.look_again();
        assert_eq!(targets.choose(NodeId(0), 4096, MIB), Some(NodeId(1)));
    }

    #[test]
    fn equally_near_ones_fill_evenly() {
        let topology = machine([100, 100, 40, 60]);
        let mut targets = Targets::new(&topology, &set(&[2, 3]));
        let mut sent = BTreeMap::new();
        for _ in 0..40 {
            let node = targets.choose(NodeId(0), 4096, 2 * MIB).unwrap();
            *sent.entry(node.0).or_insert(0) += 2;
        }
        // 80 MiB leave 10 MiB free on each.
        assert_eq!(sent, BTreeMap::from([(2, 30), (3, 50)]));
    }

    #[test]
    fn room_counts_before_distance_and_a_pool_is_the_room_of_huge_pages() {
        let topology = machine([100, 1, 100, 100]);
        let mut targets = Targets::new(&topology, &set(&[1, 2]));
        assert_eq!(targets.choose(NodeId(0), 4096, 2 * MIB), Some(NodeId(2)));
        assert_eq!(targets.choose(NodeId(0), 2 * MIB, 2 * MIB), Some(NodeId(1)));
        assert_eq!(targets.choose(NodeId(0), 2 * MIB, 2 * MIB), Some(NodeId(2)), "the pool of node 1 is used up");
    }
}
