//! What the control loop sees once an interval.

use crate::{ByNode, Observation, Outcome, PartId, Stayed};
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// A machine, its domains, and what both did in the last interval.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ControlObservation {
    /// Counts the intervals.
    pub interval: u64,
    /// How long the last one was.
    pub length_ns: u64,
    /// The machine and its domains. Of a domain that was not looked at this may be what was seen before.
    pub machine: Observation,
    /// What domains did since they were looked at last. One that was not looked at is missing.
    pub loads: BTreeMap<PartId, DomainLoad>,
    /// What happened on nodes in the last interval.
    pub nodes: BTreeMap<NodeId, NodeLoad>,
    /// Share of the interval in which some task of the host waited for memory (PSI), where the kernel tells.
    pub memory_stall_ppm: Option<u64>,
    /// Whether a scheduler that knows node affinity is attached, so that vCPUs whose home is full run elsewhere.
    pub soft_affinity: bool,
    /// `kernel.numa_balancing`: 0 where it is off; none where the kernel has none.
    pub numa_balancing: Option<u64>,
    /// What became of the pages that were to move.
    pub moved: Vec<MoveReport>,
}

impl ControlObservation {
    /// Whether the kernel's NUMA balancing looks for pages to move. Tasks of a sched_ext scheduler are none of its business, and
    /// that has them all (`task_tick_numa` in `kernel/sched/fair.c`).
    pub fn balancing_scans(&self) -> bool {
        !self.soft_affinity && self.numa_balancing.is_some_and(|mode| mode != 0)
    }
}

/// What a domain did since it was looked at last.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DomainLoad {
    /// How long ago that was.
    pub over_ns: u64,
    /// CPU time by the node it ran on, in ns.
    pub cpu_ns: ByNode,
    /// Time its threads were runnable and did not run (`schedstat`), in ns.
    pub waited_ns: u64,
    /// Whose cgroup it is.
    pub owner: Owner,
    /// The nodes on which somebody else keeps it, by hard affinity or `cpuset`; none where it may run anywhere.
    pub bound_to: Option<NodeSet>,
    /// Whether somebody else has set CPUs of its `cpuset`, be it some of each node.
    pub has_cpuset: bool,
    /// Nodes of devices it should be near.
    pub near: Vec<NodeId>,
}

/// Whose cgroup a domain's is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// Made by Nearside.
    #[default]
    Nearside,
    /// A scope of systemd's, with which ends what is set through its interface.
    Systemd,
    /// A service or a slice of systemd's: what is set stays when it is started anew, until the next boot.
    SystemdUnit,
    /// kubelet's, which rewrites what others set.
    Kubelet,
    /// libvirt's, which rewrites what others set.
    Libvirt,
    /// Somebody else's.
    Foreign,
}

impl Owner {
    /// Whether Nearside may set where the domain may run and have memory (`cpuset`). Preferring a home and moving pages
    /// there need no such right.
    pub const fn lets_bind(self) -> bool {
        matches!(self, Self::Nearside | Self::Systemd)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nearside => "Nearside",
            Self::Systemd | Self::SystemdUnit => "systemd",
            Self::Kubelet => "kubelet",
            Self::Libvirt => "libvirt",
            Self::Foreign => "another program",
        })
    }
}

/// What happened on a node in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeLoad {
    /// CPU time that anybody used there, in ns.
    pub busy_ns: u64,
    /// Allocations that had to wait (`allocstall_*`).
    pub allocation_stalls: u64,
    /// Pages that whoever allocated had to reclaim itself (`pgscan_direct`).
    pub direct_reclaim_pages: u64,
    /// Pages that the kernel looked at to reclaim them in the background (`pgscan_kswapd`).
    #[serde(default)]
    pub background_reclaim_pages: u64,
}

/// What became of a batch of pages that was to move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// Whose.
    pub part: PartId,
    /// Where they lay.
    pub from: NodeId,
    /// How many bytes moved.
    pub moved_bytes: u64,
    /// How many stayed, and why.
    pub stayed: Stayed,
}

impl MoveReport {
    /// What became of a batch of `domain`'s pages from `from`, by the outcome of the action; nothing where it was refused.
    pub fn new(part: &PartId, from: NodeId, outcome: &Outcome) -> Option<Self> {
        let (moved_bytes, stayed) = match outcome {
            Outcome::Applied { moved_bytes } => (*moved_bytes, Stayed::new()),
            Outcome::Partly { moved_bytes, stayed, .. } => (*moved_bytes, stayed.clone()),
            Outcome::Refused { .. } => return None,
        };
        Some(Self { part: part.clone(), from, moved_bytes, stayed })
    }
}
