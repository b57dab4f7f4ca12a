//! Advice on nodes for a virtual machine that another manager starts (docs/adr/0015-numad.md).
//!
//! The other manager passes a number of vCPUs and an amount of memory, but no name. It binds the
//! machine to the nodes of the answer, as a whole. So the answer is one home, and its memory is
//! reserved without an owner until the machine has started.

use crate::{
    ByNode, CostModel, MemoryPolicy, Observation, PageSize, Purpose, Refusal, Request, Reservation,
    place,
};
use nearside_topology::{NodeSet, Topology};

/// The seconds for which an answer is reserved without an owner.
pub const RESERVED_FOR_S: u64 = 60;

/// The longest time that a reservation waits for libvirt to describe its domain. A group that looks
/// like one of libvirt's and of which libvirt knows nothing must not hold memory for ever.
pub const PUT_OFF_FOR_S: u64 = 600;

/// An answer to a request for nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// The nodes.
    pub nodes: NodeSet,
    /// The memory and vCPUs that the answer promises there, or the reason why it promises nothing.
    pub reserved: Result<Reservation, Refusal>,
}

/// The nodes for a virtual machine of so many vCPUs and so much memory. 0 bytes: its memory is
/// unknown, and none is reserved.
///
/// If no set of nodes has room for it, the answer is every node, and nothing is reserved: the
/// kernel then takes free memory wherever there is some, and no promise to others is broken by a
/// second promise.
pub fn advise(
    name: &str,
    vcpus: u32,
    memory_bytes: u64,
    seen: &Observation,
    model: &CostModel,
) -> Advice {
    let request = Request {
        vcpus,
        // Placement asks for some memory. One page is the least.
        memory_bytes: memory_bytes.max(1),
        page_size: PageSize::Base,
        // Nothing may lie elsewhere, because the other manager binds memory to these nodes.
        policy: MemoryPolicy::Strict,
        nodes: None,
        near: Vec::new(),
    };
    match place(&request, seen, model) {
        Ok(decision) => {
            let claim = decision.chosen.claim;
            let bytes = if memory_bytes == 0 { ByNode::new() } else { claim.bytes };
            let (name, purpose) = (name.into(), Purpose::StartingGuest);
            let (vcpus, page_size) = (claim.vcpus, claim.page_size);
            let reserved = Ok(Reservation { name, purpose, owner: None, bytes, vcpus, page_size });
            Advice { nodes: decision.chosen.nodes, reserved }
        }
        Err(refusal) => Advice { nodes: usable_nodes(&seen.topology), reserved: Err(refusal) },
    }
}

/// The nodes with memory or CPUs for domains: the answer that confines nothing.
pub fn usable_nodes(topology: &Topology) -> NodeSet {
    let with_cpus = topology.cpus.iter().filter(|cpu| cpu.online).filter_map(|cpu| cpu.node);
    topology.memory_nodes().iter().chain(with_cpus).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn machine(mib: &[u64]) -> Observation {
        let ids: Vec<_> = (0..mib.len() as u32).map(NodeId).collect();
        let node =
            |(&id, mib): (&NodeId, &u64)| Node { id, memory_bytes: mib * MIB, ..Node::default() };
        let topology = Topology {
            nodes: ids.iter().zip(mib).map(node).collect(),
            cpus: (0..2 * mib.len() as u32)
                .map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2)))
                .collect(),
            distances: Distances::uniform(&ids),
            ..Topology::default()
        };
        Observation::of(topology)
    }

    fn ask(seen: &Observation, vcpus: u32, mib: u64) -> Advice {
        advise("numad-1", vcpus, mib * MIB, seen, &CostModel::default())
    }

    fn nodes(nodes: &[u32]) -> NodeSet {
        nodes.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn answers_name_the_nodes_of_their_reservation() {
        let free = &[600, 600, 600, 600];
        type Case<'a> = (&'a [u64], u32, u64, NodeSet, Option<u64>);
        let cases: [Case<'_>; 6] = [
            (free, 2, 500, nodes(&[0]), Some(500)),
            // More than a node has: two nodes, each with its part.
            (free, 2, 1000, nodes(&[0, 1]), Some(1000)),
            // More CPUs than a node has.
            (free, 8, 100, nodes(&[0, 1, 2, 3]), Some(100)),
            // The first node has too little.
            (&[100, 600], 2, 500, nodes(&[1]), Some(500)),
            // Without an amount of memory, vCPUs alone are reserved.
            (free, 2, 0, nodes(&[0]), Some(0)),
            // More than the machine has: every node, and no promise.
            (free, 2, 3000, nodes(&[0, 1, 2, 3]), None),
        ];
        for (mib, vcpus, memory, expected, promised) in cases {
            let advice = ask(&machine(mib), vcpus, memory);
            assert_eq!(advice.nodes, expected, "{vcpus} vCPUs, {memory} MiB");
            let reserved = advice.reserved.ok();
            assert_eq!(reserved.as_ref().map(|it| crate::total(&it.bytes) / MIB), promised);
            let reserved_vcpus = reserved.map(|it| crate::total(&it.vcpus));
            assert!(reserved_vcpus.is_none_or(|reserved| reserved == u64::from(vcpus)));
        }
    }

    #[test]
    fn equal_requests_go_to_different_nodes_while_their_reservations_last() {
        let mut seen = machine(&[600; 4]);
        let mut answered = Vec::new();
        for _ in 0..4 {
            let advice = ask(&seen, 2, 100);
            answered.push(advice.nodes.clone());
            seen.reservations.extend(advice.reserved);
        }
        answered.sort_by_key(ToString::to_string);
        assert_eq!(answered, [0, 1, 2, 3].map(|node| nodes(&[node])));
    }

    proptest! {
        #[test]
        fn reservations_of_any_sequence_of_requests_fit_every_node(
            mib in proptest::collection::vec(0..2000_u64, 1..6),
            asked in proptest::collection::vec((1..9_u32, 0..2500_u64), 1..20),
        ) {
            let mut seen = machine(&mib);
            for (vcpus, memory) in asked {
                let advice = ask(&seen, vcpus, memory);
                prop_assert!(!advice.nodes.is_empty());
                if let Ok(reserved) = advice.reserved {
                    prop_assert_eq!(crate::total(&reserved.bytes), memory * MIB);
                    prop_assert_eq!(crate::total(&reserved.vcpus), u64::from(vcpus));
                    prop_assert!(reserved.bytes.keys().all(|node| advice.nodes.contains(*node)));
                    seen.reservations.push(reserved);
                }
            }
            let allocatable = |node| crate::allocatable(node, PageSize::Base).allocatable_bytes;
            for node in &seen.topology.nodes {
                let on = |it: &Reservation| it.bytes.get(&node.id).copied().unwrap_or(0);
                let promised: u64 = seen.reservations.iter().map(on).sum();
                prop_assert!(promised <= allocatable(node));
            }
        }
    }
}
