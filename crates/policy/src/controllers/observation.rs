//! The input of a controller: one interval of a host.

use crate::{ByNode, Observation, Outcome, PartId, Stayed};
use nearside_topology::{NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// A machine, its parts, and their activity in the last interval.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ControlObservation {
    /// Counts the intervals.
    pub interval: u64,
    /// How long the last one was.
    pub length_ns: u64,
    /// The machine and its parts. Of a part that was not sampled this may be the state of an
    /// earlier interval.
    pub machine: Observation,
    /// The activity of each part since its last sample. A part that was not sampled is missing.
    pub loads: BTreeMap<PartId, PartLoad>,
    /// The activity on each node in the last interval.
    pub nodes: BTreeMap<NodeId, NodeLoad>,
    /// Share of the interval in which some task of the host waited for memory (PSI); None where the
    /// kernel has no figure.
    pub memory_stall_ppm: Option<u64>,
    /// Whether a scheduler that knows node affinity is attached, so that vCPUs whose home is full
    /// run elsewhere.
    pub soft_affinity: bool,
    /// `kernel.numa_balancing`: 0 where it is off; none where the kernel has none.
    pub numa_balancing: Option<u64>,
    /// The results of the page moves of the last interval.
    pub moved: Vec<MoveReport>,
}

impl ControlObservation {
    /// Whether the kernel's NUMA balancing scans for pages to move. It never scans tasks of a
    /// sched_ext scheduler, which has all tasks where it is attached (`task_tick_numa` in
    /// `kernel/sched/fair.c`).
    pub fn balancing_scans(&self) -> bool {
        !self.soft_affinity && self.numa_balancing.is_some_and(|mode| mode != 0)
    }
}

/// The activity of a part since its last sample.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PartLoad {
    /// The time since that sample, in ns.
    pub over_ns: u64,
    /// CPU time by the node it ran on, in ns.
    pub cpu_ns: ByNode,
    /// Time its threads were runnable and did not run (`schedstat`), in ns.
    pub waited_ns: u64,
    /// The owner of its cgroup.
    pub owner: Owner,
    /// The nodes to which another program binds it, by hard affinity or `cpuset`; None where it may
    /// run anywhere.
    pub bound_to: Option<NodeSet>,
    /// Whether another program has set CPUs of its `cpuset`, even if these include some of every
    /// node.
    pub has_cpuset: bool,
    /// Whether it is a guest with several cells that are unknown: one home for all of them.
    pub has_cells: bool,
    /// Nodes of devices it should be near.
    pub near: Vec<NodeId>,
}

impl PartLoad {
    /// This load and the one just before it as one: times add up, the rest is as it is now.
    pub fn following(mut self, earlier: Self) -> Self {
        self.over_ns = self.over_ns.saturating_add(earlier.over_ns);
        self.waited_ns = self.waited_ns.saturating_add(earlier.waited_ns);
        for (node, ns) in earlier.cpu_ns {
            let of_node = self.cpu_ns.entry(node).or_default();
            *of_node = of_node.saturating_add(ns);
        }
        self
    }
}

/// The owner of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// Nearside made it.
    #[default]
    Nearside,
    /// A scope of systemd: settings made through its interface end with it.
    Systemd,
    /// A service or a slice of systemd: settings survive a restart of the unit, until the next
    /// boot.
    SystemdUnit,
    /// kubelet, which overwrites settings of others.
    Kubelet,
    /// libvirt, which overwrites settings of others, and takes wishes itself.
    Libvirt,
    /// Another program.
    Foreign,
}

impl Owner {
    /// Whether Nearside may set the CPUs and memory nodes of the cgroup (`cpuset`), itself or
    /// through the owner. A preferred home and page moves need no such right.
    pub const fn lets_bind(self) -> bool {
        matches!(self, Self::Nearside | Self::Systemd | Self::Libvirt)
    }

    /// Whether Nearside may bind the vCPUs of one cell of a guest, thread by thread: no setting of
    /// the cgroup changes. A pod's launcher has bound them already.
    pub const fn lets_bind_cells(self) -> bool {
        !matches!(self, Self::Kubelet)
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

/// The activity on a node in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeLoad {
    /// CPU time used there, in ns.
    pub busy_ns: u64,
    /// Allocations that had to wait (`allocstall_*`).
    pub allocation_stalls: u64,
    /// Pages scanned by allocating tasks, which had to reclaim themselves (`pgscan_direct`).
    pub direct_reclaim_pages: u64,
    /// Pages scanned by background reclaim (`pgscan_kswapd`).
    #[serde(default)]
    pub background_reclaim_pages: u64,
}

/// The result of one page move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The part that the pages belong to.
    pub part: PartId,
    /// The node they were to leave.
    pub from: NodeId,
    /// Bytes that moved.
    pub moved_bytes: u64,
    /// Bytes that stayed, by reason.
    pub stayed: Stayed,
}

impl MoveReport {
    /// The report of a move of `part`'s pages from `from`; None where the move was refused.
    pub fn new(part: &PartId, from: NodeId, outcome: &Outcome) -> Option<Self> {
        let (moved_bytes, stayed) = match outcome {
            Outcome::Applied { moved_bytes } => (*moved_bytes, Stayed::new()),
            Outcome::Partly { moved_bytes, stayed, .. } => (*moved_bytes, stayed.clone()),
            Outcome::Refused { .. } => return None,
        };
        Some(Self { part: part.clone(), from, moved_bytes, stayed })
    }
}
