//! The answers of placement.

use crate::{Bytes, Claim, CostModel, LeftOut, NoCpus, NotAllowed, PageSize, Request};
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A predicted slow-down, in millionths: 1,000,000 is a domain alone on cores of its own with all
/// memory local.
///
/// Whole numbers make the order of candidates the same on every machine and build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SlowDown(pub u64);

impl SlowDown {
    /// No slow-down.
    pub const NONE: Self = Self(1_000_000);

    /// The nearest whole millionth of `factor`; the largest slow-down for NaN and for factors
    /// beyond the range.
    pub fn from_factor(factor: f64) -> Self {
        if factor.is_finite() { Self((factor * 1e6).round() as u64) } else { Self(u64::MAX) }
    }

    /// True where no figure describes it, because no CPU of the home is online. Means over several
    /// parts keep it: no work ever takes a million times as long.
    pub fn is_endless(self) -> bool {
        self.0 >= 1_000_000 * Self::NONE.0
    }

    /// In millionths, if a figure describes it.
    pub fn ppm(self) -> Option<u64> {
        (!self.is_endless()).then_some(self.0)
    }

    /// As a factor: 1.25 means that the same work takes a quarter longer.
    pub fn factor(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for SlowDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_endless() {
            true => f.pad("endless (no CPU of its home is online)"),
            false => f.pad(&format!("{:.3}", self.factor())),
        }
    }
}

/// A set of nodes as a home, and its consequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The nodes.
    pub nodes: NodeSet,
    /// The predicted slow-down, which is the product of its parts.
    pub slow_down: SlowDown,
    /// Its factors.
    pub parts: Parts,
    /// vCPUs a core on the nodes that its own vCPUs would run on, residents' included: the mean
    /// over its vCPUs, in millionths. Unknown in older records.
    #[serde(default)]
    pub vcpus_per_core_ppm: Option<u64>,
    /// The promise: vCPUs and bytes by node, spilled bytes included.
    pub claim: Claim,
    /// Bytes that do not fit the nodes and come from others (never with a policy that confines).
    pub spilled_bytes: u64,
    /// Memory that would remain available on the nodes, in bytes.
    pub free_after_bytes: u64,
}

/// The factors of a slow-down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Waiting for CPUs, or sharing cores with SMT siblings.
    pub cpu: SlowDown,
    /// Waiting for memory that is far, or whose node's bandwidth is exhausted.
    pub memory: SlowDown,
    /// Distance to the devices asked for.
    pub devices: SlowDown,
}

/// The home of a domain, and the reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The request.
    pub request: Request,
    /// The home.
    pub chosen: Candidate,
    /// The next best candidates, best first. If the operator chose the nodes, the choice of
    /// placement.
    pub runners_up: Vec<Candidate>,
    /// CPUs and memory of the machine that were left out.
    #[serde(default)]
    pub left_out: LeftOut,
    /// The number of candidates that were evaluated.
    pub candidates: u64,
    /// Whether these were all possible sets.
    pub exhaustive: bool,
    /// The assumptions behind the slow-downs.
    pub model: CostModel,
}

/// The reason why a domain cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No vCPUs were asked for.
    #[error("a domain needs at least 1 vCPU")]
    NoVcpus,
    /// No memory was asked for.
    #[error("a domain needs memory: 0 bytes were asked for")]
    NoMemory,
    /// The set of nodes is empty.
    #[error("the set of nodes is empty: name at least one of {}", known.named())]
    NoNodes {
        /// The machine's nodes.
        known: NodeSet,
    },
    /// A node that the machine does not have.
    #[error("there is no node {node}: this machine has {}", known.named())]
    UnknownNode {
        /// The first such node.
        node: NodeId,
        /// The machine's nodes.
        known: NodeSet,
    },
    /// Nodes that domains may not use.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The nodes have no CPU.
    #[error(transparent)]
    NoCpus(#[from] NoCpus),
    /// The kernel has no pages of that size.
    #[error("this machine has no huge pages of {}: {known}", Bytes(*page_bytes))]
    NoHugePages {
        /// The requested size.
        page_bytes: u64,
        /// The known sizes, for the message.
        known: String,
    },
    /// Pages of that size are possible, but no node's pool has any.
    #[error(
        "no huge pages of {} are set aside on any node: write how many to \
         /sys/devices/system/node/nodeN/hugepages/hugepages-{}kB/nr_hugepages",
        Bytes(*page_bytes),
        page_bytes / 1024
    )]
    NoPool {
        /// The requested size.
        page_bytes: u64,
    },
    /// More than the known memory, on a machine with nodes of unknown memory.
    #[error(
        "{} are more than is known to be there: nothing in {machine} tells how much memory there \
         is on {}",
        Bytes(*needed_bytes),
        nodes.named()
    )]
    UnknownMemory {
        /// The requested bytes, rounded up to whole pages.
        needed_bytes: u64,
        /// The nodes of unknown memory.
        nodes: NodeSet,
        /// The source of the machine's description.
        machine: String,
    },
    /// More memory than the machine has.
    #[error(
        "{}{} are more than the whole machine has ({}): {} too few ({} bytes)",
        Bytes(*needed_bytes),
        page_size.in_words(),
        Bytes(*machine_bytes),
        Bytes(needed_bytes.saturating_sub(*machine_bytes)),
        needed_bytes.saturating_sub(*machine_bytes)
    )]
    MoreThanMachine {
        /// The requested bytes, rounded up to whole pages.
        needed_bytes: u64,
        /// The machine's bytes.
        machine_bytes: u64,
        /// The requested size of pages.
        page_size: PageSize,
    },
    /// More memory than is available now.
    #[error(
        "{}{} do not fit: {} are available on {where_}, {} too few ({short_by_bytes} bytes)",
        Bytes(*needed_bytes),
        page_size.in_words(),
        Bytes(*available_bytes),
        Bytes(*short_by_bytes)
    )]
    DoesNotFit {
        /// The requested bytes, rounded up to whole pages.
        needed_bytes: u64,
        /// Bytes available there.
        available_bytes: u64,
        /// The difference.
        short_by_bytes: u64,
        /// The nodes in question: "nodes 0-3", "node 1 (policy strict)".
        where_: String,
        /// The requested size of pages.
        page_size: PageSize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_figure_stands_for_a_home_without_online_cpus() {
        for endless in [SlowDown(u64::MAX), SlowDown(u64::MAX / 3), SlowDown::from_factor(f64::NAN)]
        {
            assert_eq!(endless.to_string(), "endless (no CPU of its home is online)");
            assert_eq!(endless.ppm(), None);
        }
        assert_eq!(SlowDown(1_250_000).to_string(), "1.250");
        assert_eq!(format!("{:>7}", SlowDown(900_000_000_000)), "900000.000");
        assert_eq!(SlowDown(1_250_000).ppm(), Some(1_250_000));
    }
}
