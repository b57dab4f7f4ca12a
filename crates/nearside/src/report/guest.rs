//! A home in the words of what starts virtual machines and commands.

use nearside_policy::{Decision, MemoryPolicy, PageSize};
use nearside_topology::{CpuSet, NodeId, NodeSet, Topology};
use std::ops::Range;

/// A home as a virtual machine or a command gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Guest {
    /// How many vCPUs it has.
    pub(crate) vcpus: u64,
    /// All of its memory in KiB.
    pub(crate) memory_kib: u64,
    /// How its memory is bound.
    pub(crate) policy: MemoryPolicy,
    /// Pages of its memory in KiB, where they come from a pool.
    pub(crate) huge_page_kib: Option<u64>,
    /// The nodes of its home.
    pub(crate) nodes: NodeSet,
    /// The one node that the policy *preferred* names.
    pub(crate) primary: NodeId,
    /// The nodes its vCPUs run on.
    pub(crate) cpu_nodes: NodeSet,
    /// The online CPUs of these.
    pub(crate) cpus: CpuSet,
    /// A virtual NUMA topology: one cell for each node of a strict home of several nodes, else a single one.
    pub(crate) cells: Vec<Cell>,
}

/// A node of the guest's own topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The nodes of the host that it lies on.
    pub(crate) nodes: NodeSet,
    /// Its vCPUs.
    pub(crate) vcpus: Range<u64>,
    /// Its memory in KiB.
    pub(crate) memory_kib: u64,
    /// The host's CPUs that its vCPUs run on.
    pub(crate) cpus: CpuSet,
}

impl Guest {
    pub(crate) fn new(decision: &Decision, topology: &Topology) -> Self {
        let (request, chosen) = (&decision.request, &decision.chosen);
        let claim = &chosen.claim;
        let cpu_nodes: NodeSet = claim.vcpus.keys().copied().collect();
        let cpus = topology.cpus_of_nodes(&cpu_nodes);
        let (vcpus, memory_kib) = (u64::from(request.vcpus), claim.total_bytes() / 1024);
        let mut cells = Vec::new();
        // Only a policy that keeps each page where it is said lets the guest rely on a topology of its own.
        if request.policy == MemoryPolicy::Strict {
            let mut next_vcpu = 0;
            for node in claim.nodes().iter() {
                let more = claim.vcpus.get(&node).copied().unwrap_or(0);
                cells.push(Cell {
                    nodes: NodeSet::from([node]),
                    vcpus: next_vcpu..next_vcpu + more,
                    memory_kib: claim.bytes.get(&node).copied().unwrap_or(0) / 1024,
                    cpus: topology.cpus_of(node),
                });
                next_vcpu += more;
            }
        } else {
            cells.push(Cell {
                nodes: chosen.nodes.clone(),
                vcpus: 0..vcpus,
                memory_kib,
                cpus: cpus.clone(),
            });
        }
        // The rule that placement used for it (docs/adr/0002-placement-cost.md).
        let with_memory =
            |node: &NodeId| topology.node(*node).is_some_and(|node| node.memory_bytes > 0);
        let vcpus_on = |node: &NodeId| claim.vcpus.get(node).copied().unwrap_or(0);
        let most_vcpus = |nodes: &mut dyn Iterator<Item = NodeId>| {
            nodes.max_by_key(|node| (vcpus_on(node), std::cmp::Reverse(*node)))
        };
        let primary = most_vcpus(&mut chosen.nodes.iter().filter(with_memory))
            .or_else(|| most_vcpus(&mut claim.bytes.keys().copied()))
            .unwrap_or_default();
        Self {
            vcpus,
            memory_kib,
            policy: request.policy,
            huge_page_kib: match request.page_size {
                PageSize::Base => None,
                PageSize::Huge(bytes) => Some(bytes / 1024),
            },
            nodes: chosen.nodes.clone(),
            primary,
            cpu_nodes,
            cpus,
            cells,
        }
    }
}

/// What a tool cannot do that Nearside can, for a note beside the report.
pub(crate) fn lacking(tool: &str, policy: MemoryPolicy, instead: &str) -> String {
    format!("{tool} has no policy {policy}: {instead}")
}
