//! What was seen of a machine at one moment.

use crate::{Affinity, ByNode, Claim, MemoryPolicy, PageSize};
use nearside_topology::{NodeId, NodeSet, Topology};
use serde::{Deserialize, Serialize};

/// A machine and its domains as they were seen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// The machine, with what its memory is used for.
    pub topology: Topology,
    /// The domains, in the order of their names.
    pub domains: Vec<DomainState>,
}

/// A domain as it was seen.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DomainState {
    /// Its name; for a domain that Nearside did not start, its cgroup's path.
    pub name: String,
    /// Its home, where it has one.
    pub home: Option<Home>,
    /// What is promised to it.
    pub claim: Option<Claim>,
    /// The nodes on which it may have memory, where it is confined.
    pub memory_nodes: Option<NodeSet>,
    /// Memory it holds by node, in bytes, without what counts as reclaimable cache: comparable to its claim.
    pub resident_bytes: ByNode,
    /// What of that the kernel keeps for it (page tables, stacks, slabs), by node, in bytes. It stays where it is.
    #[serde(default)]
    pub kernel_bytes: ByNode,
    /// What of that no process maps for sure, by node, in bytes: files of a tmpfs, shared memory that nobody is attached to.
    /// No call moves it.
    #[serde(default)]
    pub unmapped_bytes: ByNode,
    /// Explicit huge pages of its claim's size that it has reserved and not touched yet, in bytes.
    pub reserved_bytes: u64,
}

/// The outcome of placement for one domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Home {
    /// The nodes it prefers.
    pub nodes: NodeSet,
    /// Who chose them.
    pub origin: Origin,
    /// How its vCPUs are bound to them.
    pub affinity: Affinity,
    /// How its memory is bound to them.
    pub policy: MemoryPolicy,
}

/// Who chose a home. Automatic placement never overrides an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Placement did.
    Auto,
    /// An operator did.
    Explicit,
    /// Whoever keeps a domain that was found on some nodes: its home is there as long as it is kept there.
    Adopted,
}

impl DomainState {
    /// Memory it holds that can move, by node, in bytes: off its home that is its debt.
    pub fn movable_bytes(&self) -> ByNode {
        let kernel = |node| self.kernel_bytes.get(node).copied().unwrap_or(0);
        self.resident_bytes
            .iter()
            .map(|(node, bytes)| (*node, bytes.saturating_sub(kernel(node))))
            .collect()
    }

    /// Whether it was found: what Nearside starts has a claim.
    pub(crate) fn was_found(&self) -> bool {
        self.claim.is_none()
    }
}

impl Observation {
    /// Bytes of `node` that can still be promised in pages of this size: what counts as free, less what is spoken for.
    pub fn unclaimed_bytes(&self, node: NodeId, page_size: PageSize) -> u64 {
        self.unclaimed(page_size).on(node)
    }

    /// vCPUs promised on `node`.
    pub fn claimed_vcpus(&self, node: NodeId) -> u64 {
        let claims = self.domains.iter().filter_map(|domain| domain.claim.as_ref());
        claims
            .map(|claim| claim.vcpus.get(&node).copied().unwrap_or(0))
            .fold(0, u64::saturating_add)
    }
}
