//! A home as a virtual machine gets it: the CPUs and nodes it is bound to, and its own topology.
//!
//! A *cell* is a node of the guest's topology. The guest has one cell for each node of its home
//! only if the policy is *strict*: every other policy lets pages lie elsewhere, so a topology of
//! several cells would tell the guest distances that do not hold. A node of the home without memory
//! (a socket without modules) is no cell, which QEMU would refuse: its vCPUs join the nearest cell.

use crate::{Claim, Decision, MemoryPolicy, PageSize};
use nearside_topology::{CpuSet, NodeId, NodeSet, Topology};
use std::{cmp::Reverse, collections::BTreeMap, ops::Range};

/// A placed domain, seen as a virtual machine or as a command to bind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The number of its vCPUs.
    pub vcpus: u64,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The policy that binds its memory to `nodes`.
    pub policy: MemoryPolicy,
    /// The size of its pages.
    pub page_size: PageSize,
    /// The nodes that hold its memory: those of its home that have any.
    pub memory_nodes: NodeSet,
    /// The one node that the policy *preferred* names.
    pub primary: NodeId,
    /// The nodes that its vCPUs run on.
    pub cpu_nodes: NodeSet,
    /// The online CPUs of `cpu_nodes`.
    pub cpus: CpuSet,
    /// The CPUs of an emulator that allocates the memory with threads on the memory's nodes:
    /// `cpus`, and the online CPUs of `memory_nodes`.
    pub emulator_cpus: CpuSet,
    /// Whether each of `cpu_nodes` has memory. `numactl` (2.0.16, 2.0.19) refuses to bind to the
    /// CPUs of other nodes by the node's number.
    pub cpu_nodes_have_memory: bool,
    /// The nodes of its own topology, at least one.
    pub cells: Vec<Cell>,
    /// Whether the memory of one of the cells is on nodes without any online CPU.
    pub has_cell_off_cpus: bool,
}

/// A node of a guest's own topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The host's nodes that hold its memory.
    pub nodes: NodeSet,
    /// Its vCPUs.
    pub vcpus: Range<u64>,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// The host's CPUs that its vCPUs run on.
    pub cpus: CpuSet,
}

/// The guest that `decision` places on the machine `topology`.
pub fn guest(decision: &Decision, topology: &Topology) -> Guest {
    let (request, chosen) = (&decision.request, &decision.chosen);
    let claim = &chosen.claim;
    let cpu_nodes: NodeSet = claim.vcpus.keys().copied().collect();
    let cpus = topology.cpus_of_nodes(&cpu_nodes);
    let (vcpus, memory_bytes) = (u64::from(request.vcpus), claim.total_bytes());
    let memory_nodes = memory_nodes(&chosen.nodes, claim, topology);
    let cpu_nodes_have_memory = cpu_nodes.iter().all(|node| has_memory(topology, node));
    let emulator_cpus = cpus.union(&topology.cpus_of_nodes(&memory_nodes));
    let cells = match request.policy {
        MemoryPolicy::Strict => cell_by_node(claim, topology),
        _ => vec![Cell {
            nodes: memory_nodes.clone(),
            vcpus: 0..vcpus,
            memory_bytes,
            cpus: cpus.clone(),
        }],
    };
    let primary = primary(&memory_nodes, claim);
    let primary_alone = NodeSet::from([primary]);
    let is_off_cpus = |cell: &Cell| {
        let nodes = match request.policy {
            MemoryPolicy::Preferred => &primary_alone,
            _ => &cell.nodes,
        };
        cell.memory_bytes > 0 && topology.cpus_of_nodes(nodes).is_empty()
    };
    Guest {
        has_cell_off_cpus: cells.iter().any(is_off_cpus),
        vcpus,
        memory_bytes,
        policy: request.policy,
        page_size: request.page_size,
        primary,
        memory_nodes,
        cpu_nodes_have_memory,
        cpu_nodes,
        cpus,
        emulator_cpus,
        cells,
    }
}

fn has_memory(topology: &Topology, node: NodeId) -> bool {
    topology.node(node).is_some_and(|node| node.memory_bytes > 0)
}

/// The nodes of a home that have memory; if none has, those that hold the pages.
fn memory_nodes(home: &NodeSet, claim: &Claim, topology: &Topology) -> NodeSet {
    let with_memory: NodeSet = home.iter().filter(|node| has_memory(topology, *node)).collect();
    match with_memory.is_empty() {
        true => claim.bytes.keys().copied().collect(),
        false => with_memory,
    }
}

/// One cell for each node of the claim with memory, and the vCPUs of each other one in the nearest
/// of these cells. vCPUs are numbered from cell to cell without a gap.
fn cell_by_node(claim: &Claim, topology: &Topology) -> Vec<Cell> {
    let held = |node: &NodeId| claim.bytes.get(node).copied().unwrap_or(0);
    let (with_memory, others): (Vec<_>, Vec<_>) =
        claim.nodes().iter().partition(|node| held(node) > 0);
    let mut joined: BTreeMap<NodeId, NodeSet> =
        with_memory.iter().map(|node| (*node, NodeSet::from([*node]))).collect();
    for node in others {
        let distance = |cell: &NodeId| topology.distances.get(node, *cell);
        let nearest = with_memory.iter().min_by_key(|cell| (distance(cell), **cell));
        if let Some(cell) = nearest.and_then(|cell| joined.get_mut(cell)) {
            cell.insert(node);
        }
    }
    let mut first_vcpu = 0;
    let cell = |(node, cpu_nodes): (NodeId, NodeSet)| {
        let vcpus = |node| claim.vcpus.get(&node).copied().unwrap_or(0);
        let end = first_vcpu + cpu_nodes.iter().map(vcpus).sum::<u64>();
        Cell {
            nodes: NodeSet::from([node]),
            vcpus: std::mem::replace(&mut first_vcpu, end)..end,
            memory_bytes: held(&node),
            cpus: topology.cpus_of_nodes(&cpu_nodes),
        }
    };
    joined.into_iter().map(cell).collect()
}

/// The node with the most vCPUs among those with memory; the lowest number among equals. It is the
/// rule by which placement laid out the pages (docs/adr/0002-placement-cost.md).
fn primary(memory_nodes: &NodeSet, claim: &Claim) -> NodeId {
    let vcpus_on = |node: &NodeId| claim.vcpus.get(node).copied().unwrap_or(0);
    let nodes = memory_nodes.iter();
    nodes.max_by_key(|node| (vcpus_on(node), Reverse(*node))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByNode, Candidate, CostModel, LeftOut, Parts, Request, SlowDown};
    use nearside_topology::{Cpu, CpuId, Distances, Node};

    const GIB: u64 = 1 << 30;

    /// Nodes of two CPUs each (node 1 has CPUs 2 and 3) and the given memory in GiB.
    fn machine(gib: &[u64]) -> Topology {
        let node = |(id, &gib): (u32, &u64)| Node {
            id: NodeId(id),
            memory_bytes: gib * GIB,
            ..Node::default()
        };
        let nodes = gib.len() as u32;
        Topology {
            nodes: (0..).zip(gib).map(node).collect(),
            cpus: (0..2 * nodes).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            ..Topology::default()
        }
    }

    fn by_node(amounts: &[(u32, u64)]) -> ByNode {
        amounts.iter().map(|&(node, amount)| (NodeId(node), amount)).collect()
    }

    fn nodes(ids: &[u32]) -> NodeSet {
        ids.iter().map(|&id| NodeId(id)).collect()
    }

    /// A home on `home`, with vCPUs and GiB by node.
    fn decision(
        policy: MemoryPolicy,
        home: &[u32],
        vcpus: &[(u32, u64)],
        gib: &[(u32, u64)],
    ) -> Decision {
        let gib: Vec<_> = gib.iter().map(|&(node, gib)| (node, gib * GIB)).collect();
        let claim =
            Claim { bytes: by_node(&gib), vcpus: by_node(vcpus), page_size: PageSize::Base };
        let request = Request {
            vcpus: claim.vcpus.values().sum::<u64>() as u32,
            memory_bytes: claim.total_bytes(),
            page_size: PageSize::Base,
            policy,
            nodes: None,
            near: Vec::new(),
        };
        let none = SlowDown::NONE;
        Decision {
            request,
            chosen: Candidate {
                nodes: nodes(home),
                slow_down: none,
                parts: Parts { cpu: none, memory: none, devices: none },
                vcpus_per_core_ppm: None,
                claim,
                spilled_bytes: 0,
                free_after_bytes: 0,
            },
            runners_up: Vec::new(),
            left_out: LeftOut::default(),
            candidates: 1,
            exhaustive: true,
            model: CostModel::default(),
        }
    }

    #[test]
    fn strict_home_has_a_cell_for_each_node_of_its_claim() {
        // 2 + 1 vCPUs: the first cell has vCPUs 0 and 1, the second 2. Node 3 holds memory alone.
        let (vcpus, gib) = ([(0, 2), (2, 1)], [(0, 4), (2, 4), (3, 2)]);
        let decision = decision(MemoryPolicy::Strict, &[0, 2, 3], &vcpus, &gib);
        let guest = guest(&decision, &machine(&[8, 8, 8, 8]));
        let cells: Vec<_> = guest
            .cells
            .iter()
            .map(|cell| (cell.nodes.to_string(), cell.vcpus.clone(), cell.memory_bytes / GIB))
            .collect();
        let expected = [("0".into(), 0..2, 4), ("2".into(), 2..3, 4), ("3".into(), 3..3, 2)];
        assert_eq!(cells, expected);
        assert_eq!(guest.cells[1].cpus.to_string(), "4-5");
        assert_eq!((guest.vcpus, guest.memory_bytes), (3, 10 * GIB));
        assert_eq!((guest.cpu_nodes, guest.cpus.to_string().as_str()), (nodes(&[0, 2]), "0-1,4-5"));
    }

    #[test]
    fn vcpus_of_a_node_without_memory_join_the_nearest_cell() {
        // Nodes 1 and 2 have no memory. Node 1 is next to 3, and node 2 to 0.
        let vcpus = [(0, 2), (1, 2), (2, 1), (3, 1)];
        let decision = decision(MemoryPolicy::Strict, &[0, 1, 2, 3], &vcpus, &[(0, 4), (3, 4)]);
        let mut machine = machine(&[8, 0, 0, 8]);
        let ids: Vec<_> = (0..4).map(NodeId).collect();
        let rows = [[10, 30, 12, 20], [30, 10, 20, 12], [12, 20, 10, 30], [20, 12, 30, 10]];
        machine.distances = Distances::new(&ids, &rows.concat()).unwrap();
        let guest = guest(&decision, &machine);
        let cells = guest
            .cells
            .iter()
            .map(|cell| (cell.nodes.to_string(), cell.vcpus.clone(), cell.cpus.to_string()));
        let expected = [("0".into(), 0..3, "0-1,4-5".into()), ("3".into(), 3..6, "2-3,6-7".into())];
        assert_eq!(cells.collect::<Vec<_>>(), expected);
        assert_eq!(guest.memory_nodes, nodes(&[0, 3]));
        assert_eq!((guest.cpu_nodes, guest.cpu_nodes_have_memory), (nodes(&[0, 1, 2, 3]), false));
    }

    #[test]
    fn policies_of_one_cell_name_no_node_without_memory() {
        for policy in MemoryPolicy::ALL.into_iter().filter(|&it| it != MemoryPolicy::Strict) {
            let decision = decision(policy, &[0, 1], &[(0, 2), (1, 2)], &[(0, 4)]);
            let guest = guest(&decision, &machine(&[8, 0]));
            assert_eq!((&guest.memory_nodes, &guest.cells[0].nodes), (&nodes(&[0]), &nodes(&[0])));
            assert_eq!(guest.cpus.to_string(), "0-3");
        }
    }

    #[test]
    fn the_emulator_has_cpus_of_the_memory_where_no_vcpu_is() {
        // Node 1 has no memory of its own.
        let home = decision(MemoryPolicy::Preferred, &[1], &[(1, 2)], &[(0, 4)]);
        let guest_there = guest(&home, &machine(&[8, 0]));
        let cpus = [&guest_there.cpus, &guest_there.emulator_cpus].map(ToString::to_string);
        assert_eq!((cpus, guest_there.has_cell_off_cpus), (["2-3".into(), "0-3".into()], false));
        // Node 2 is memory alone.
        let mut machine = machine(&[8, 8, 8]);
        machine.cpus.truncate(4);
        let strict = decision(MemoryPolicy::Strict, &[0, 2], &[(0, 2)], &[(0, 4), (2, 4)]);
        assert!(guest(&strict, &machine).has_cell_off_cpus);
        let strict = guest(&strict, &machine);
        assert_eq!([strict.cpus, strict.emulator_cpus].map(|it| it.to_string()), ["0-1", "0-1"]);
        let interleaved = decision(MemoryPolicy::Interleave, &[0, 2], &[(0, 2)], &[(0, 4), (2, 4)]);
        assert!(!guest(&interleaved, &machine).has_cell_off_cpus, "node 0 has CPUs");
        // Node 1 has CPUs alone, and the memory is on node 2.
        machine.nodes[1].memory_bytes = 0;
        let preferred = decision(MemoryPolicy::Preferred, &[1, 2], &[(1, 2)], &[(2, 4)]);
        assert!(guest(&preferred, &machine).has_cell_off_cpus);
    }

    #[test]
    fn every_other_policy_has_one_cell_on_the_whole_home() {
        for policy in MemoryPolicy::ALL.into_iter().filter(|&it| it != MemoryPolicy::Strict) {
            let decision = decision(policy, &[0, 1], &[(0, 2), (1, 1)], &[(0, 4), (1, 4)]);
            let guest = guest(&decision, &machine(&[8, 8]));
            let [cell] = &guest.cells[..] else { panic!("{policy}: {:?}", guest.cells) };
            assert_eq!(cell.nodes, nodes(&[0, 1]), "{policy}");
            assert_eq!((cell.vcpus.clone(), cell.memory_bytes), (0..3, 8 * GIB), "{policy}");
            assert_eq!(cell.cpus, guest.cpus, "{policy}");
        }
    }

    #[test]
    fn primary_has_the_most_vcpus_of_the_nodes_with_memory() {
        /// Memory of the machine in GiB, home, vCPUs, GiB of the claim, expected primary.
        type Case =
            (&'static [u64], &'static [u32], &'static [(u32, u64)], &'static [(u32, u64)], u32);
        let cases: [Case; 4] = [
            (&[8, 8], &[0, 1], &[(0, 1), (1, 2)], &[(1, 4)], 1),
            // Among equals the lowest number.
            (&[8, 8], &[0, 1], &[(0, 2), (1, 2)], &[(0, 4)], 0),
            // Node 1 has more vCPUs and no memory.
            (&[8, 0], &[0, 1], &[(0, 1), (1, 2)], &[(0, 4)], 0),
            // The home has no memory at all: the pages are on node 2.
            (&[0, 0, 8], &[0, 1], &[(0, 1), (1, 2)], &[(2, 4)], 2),
        ];
        for (gib, home, vcpus, claimed, expected) in cases {
            let decision = decision(MemoryPolicy::Preferred, home, vcpus, claimed);
            let guest = guest(&decision, &machine(gib));
            assert_eq!(guest.primary, NodeId(expected), "{gib:?} {home:?} {vcpus:?}");
        }
    }
}
