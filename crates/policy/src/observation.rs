//! A machine as it was seen at one moment.

use crate::{Affinity, ByNode, Claim, MemoryPolicy, PageSize, PartId, Purpose, outstanding};
use nearside_topology::{NodeId, NodeSet, Topology};
use serde::{Deserialize, Serialize};

/// A machine, the parts of its domains, and reservations that belong to no domain.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// The machine, with the use of its memory.
    pub topology: Topology,
    /// The parts of all domains, in their order.
    pub parts: Vec<PartState>,
    /// Memory that is reserved for something that is no domain.
    #[serde(default)]
    pub reservations: Vec<Reservation>,
}

/// A part as it was seen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PartState {
    /// Its name.
    pub id: PartId,
    /// The cgroup of its domain.
    #[serde(default)]
    pub cgroup: CgroupId,
    /// Its home, if it has one.
    pub home: Option<Home>,
    /// Its claim; none for a domain that Nearside did not start.
    pub claim: Option<Claim>,
    /// The nodes on which it may have memory, if it is confined.
    pub memory_nodes: Option<NodeSet>,
    /// Memory it holds by node, in bytes, without reclaimable cache: comparable to its claim.
    pub resident_bytes: ByNode,
    /// The part of `resident_bytes` that the kernel keeps for it (page tables, stacks, slabs), by
    /// node, in bytes. It cannot move.
    #[serde(default)]
    pub kernel_bytes: ByNode,
    /// The part of `resident_bytes` that certainly no process maps, by node, in bytes: files of a
    /// tmpfs, shared memory without a process attached. No system call moves it.
    #[serde(default)]
    pub unmapped_bytes: ByNode,
    /// Explicit huge pages of its claim's size that it has reserved and not touched, in bytes.
    pub reserved_bytes: u64,
    /// The process that moves its memory. While there is one, nobody else does.
    #[serde(default)]
    pub mover: Option<u32>,
}

/// The identity of a cgroup: the inode of its directory, which is unique within a boot.
/// 0 for a machine in software, which has no cgroups.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CgroupId(pub u64);

/// Memory that is reserved for something that is no domain, such as a replica.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// Its purpose.
    #[serde(default)]
    pub purpose: Purpose,
    /// The path of the cgroup whose domain has adopted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Bytes by node that it will still fill.
    pub bytes: ByNode,
    /// vCPUs by node that it will run.
    #[serde(default, skip_serializing_if = "ByNode::is_empty")]
    pub vcpus: ByNode,
    /// The size of the pages.
    pub page_size: PageSize,
}

/// The outcome of placement for one part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Home {
    /// The nodes it prefers.
    pub nodes: NodeSet,
    /// The origin of that choice.
    pub origin: Origin,
    /// How its vCPUs are bound to them.
    pub affinity: Affinity,
    /// How its memory is bound to them.
    pub policy: MemoryPolicy,
}

/// The origin of a home. Automatic placement never overrides an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Placement chose it.
    Auto,
    /// An operator chose it.
    Explicit,
    /// The owner of the cgroup binds the domain to these nodes, and the home follows that binding.
    Adopted,
}

impl PartState {
    /// Memory it holds that can move, by node, in bytes: off its home that is its debt.
    pub fn movable_bytes(&self) -> ByNode {
        let kernel = |node| self.kernel_bytes.get(node).copied().unwrap_or(0);
        self.resident_bytes
            .iter()
            .map(|(node, bytes)| (*node, bytes.saturating_sub(kernel(node))))
            .collect()
    }

    /// Memory that cannot move, by node, in bytes.
    pub fn staying_bytes(&self) -> ByNode {
        let mut staying = self.kernel_bytes.clone();
        for (&node, &bytes) in &self.unmapped_bytes {
            let sum = staying.entry(node).or_default();
            *sum = sum.saturating_add(bytes);
        }
        staying
    }

    /// Claimed memory that is not resident yet, by node, in bytes ([`outstanding`]).
    pub fn outstanding_bytes(&self) -> ByNode {
        self.claim.as_ref().map_or_else(ByNode::new, |claim| self.outstanding_of(claim))
    }

    /// The same for another claim.
    pub(crate) fn outstanding_of(&self, claim: &Claim) -> ByNode {
        outstanding(claim, &self.resident_bytes, &self.staying_bytes())
    }

    /// Whether a pattern found its domain: Nearside claims memory for every domain it starts.
    pub fn was_found(&self) -> bool {
        self.claim.is_none()
    }
}

impl Observation {
    /// A machine without domains.
    pub fn of(topology: Topology) -> Self {
        Self { topology, ..Self::default() }
    }

    /// The reservation with this name.
    pub fn reservation(&self, name: &str) -> Option<&Reservation> {
        self.reservations.iter().find(|reservation| reservation.name == name)
    }

    /// The part with this name.
    pub fn part(&self, id: &PartId) -> Option<&PartState> {
        self.parts.iter().find(|part| part.id == *id)
    }

    /// Bytes of `node` that are still available in pages of this size: allocatable memory, less
    /// claims and reservations that are not resident yet.
    pub fn available_bytes(&self, node: NodeId, page_size: PageSize) -> u64 {
        self.available(page_size).on(node)
    }

    /// vCPUs claimed or reserved on `node`.
    pub fn claimed_vcpus(&self, node: NodeId) -> u64 {
        let claims = self.parts.iter().filter_map(|part| part.claim.as_ref());
        claims
            .map(|claim| &claim.vcpus)
            .chain(self.reservations.iter().map(|reservation| &reservation.vcpus))
            .map(|vcpus| vcpus.get(&node).copied().unwrap_or(0))
            .fold(0, u64::saturating_add)
    }
}
