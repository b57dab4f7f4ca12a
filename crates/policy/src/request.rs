//! A request for a home.

use crate::Bytes;
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A domain that is to be given a home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The number of vCPUs that it keeps busy.
    pub vcpus: u32,
    /// The memory that it will fill, in bytes.
    pub memory_bytes: u64,
    /// The size of its pages.
    pub page_size: PageSize,
    /// How its memory is bound to its home.
    pub policy: MemoryPolicy,
    /// The home that an operator chose; without one, placement chooses.
    pub nodes: Option<NodeSet>,
    /// Nodes of devices it should be near, in the order of the request.
    pub near: Vec<NodeId>,
}

/// The pages of a domain's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageSize {
    /// Ordinary pages (transparent huge pages included).
    #[default]
    Base,
    /// Explicit huge pages of this many bytes, from the node's pool.
    Huge(u64),
}

impl PageSize {
    /// The suffix of an amount of memory in messages: empty for ordinary pages.
    pub fn in_words(self) -> String {
        match self {
            Self::Base => String::new(),
            Self::Huge(bytes) => format!(" in pages of {}", Bytes(bytes)),
        }
    }
}

/// How memory is bound to a home. The words are libvirt's and `numactl`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryPolicy {
    /// Only these nodes (`MPOL_BIND` and `cpuset.mems`).
    Strict,
    /// One node; the others when it is full (`MPOL_PREFERRED`).
    Preferred,
    /// These nodes; the others when they are full (`MPOL_PREFERRED_MANY`, Linux 5.15).
    PreferredMany,
    /// Page by page in turn over these nodes (`MPOL_INTERLEAVE`).
    Interleave,
    /// As interleave, by the nodes' weights (`MPOL_WEIGHTED_INTERLEAVE`, Linux 6.9).
    WeightedInterleave,
    /// Only these nodes, without a task policy, so that the domain may set its own (`cpuset.mems`
    /// alone).
    Restrictive,
    /// The node of the CPU that touches a page first (`MPOL_LOCAL`).
    Local,
}

impl MemoryPolicy {
    /// Every policy, in the order in which help texts list them.
    pub const ALL: [Self; 7] = [
        Self::Strict,
        Self::Preferred,
        Self::PreferredMany,
        Self::Interleave,
        Self::WeightedInterleave,
        Self::Restrictive,
        Self::Local,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Preferred => "preferred",
            Self::PreferredMany => "preferred-many",
            Self::Interleave => "interleave",
            Self::WeightedInterleave => "weighted-interleave",
            Self::Restrictive => "restrictive",
            Self::Local => "local",
        }
    }

    /// Whether memory may never come from outside the home.
    pub const fn confines(self) -> bool {
        matches!(self, Self::Strict | Self::Restrictive)
    }
}

impl fmt::Display for MemoryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An unknown word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no memory policy: expected one of strict, preferred, preferred-many, interleave, \
     weighted-interleave, restrictive, local"
)]
pub struct UnknownPolicy(pub String);

impl FromStr for MemoryPolicy {
    type Err = UnknownPolicy;
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy(text.into()))
    }
}

/// How a domain's vCPUs are bound to its home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Affinity {
    /// They prefer it and may run elsewhere when it is full (node affinity).
    #[default]
    Soft,
    /// They never leave it (CPU affinity).
    Hard,
}

/// The limits of a domain's use, as opposed to its claim.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// CPU time in CPUs (1.5 is one and a half CPU), `cpu.max`.
    pub cpus: Option<f64>,
    /// Memory in bytes, `memory.max`.
    pub memory_bytes: Option<u64>,
}
