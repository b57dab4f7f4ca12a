//! Observe, decide, act: the frame that every decision and every machine share.

use crate::{
    ByNode, Bytes, Claim, Count, Decision, Home, Limits, MemoryPolicy, MilliVcpus, Observation,
    Payback, SlowDown,
};
use nearside_topology::{CpuSet, NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, ops::ControlFlow};

/// Something that can be observed and acted upon: a Linux host, or a simulated machine.
pub trait Machine {
    /// Why a machine cannot be observed.
    type Error;

    /// What it is like now.
    fn observe(&mut self) -> Result<Observation, Self::Error>;

    /// Carries out one action. `progress` is called now and then on long ones; an action that is told to break off
    /// stops at the next point from which it can be resumed by applying it again.
    fn apply(
        &mut self,
        action: &Action,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Outcome;
}

/// What is to be done, in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The placement behind it, where there is one.
    pub decision: Option<Decision>,
    /// The steps. If one is refused the later ones must not be tried.
    pub steps: Vec<Step>,
    /// What the plan cannot do, for the user to know beforehand.
    pub limits: Vec<String>,
}

/// One action and why it is taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

/// The smallest things a machine does.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Action {
    /// Make the domain (its cgroup), with what it may use at most.
    Create {
        /// Its name.
        domain: String,
        /// Its limits.
        limits: Limits,
    },
    /// Promise memory and CPUs to the domain.
    Claim {
        /// Whose.
        domain: String,
        /// What.
        claim: Claim,
    },
    /// Make this the domain's home: what a scheduler that knows node affinity goes by. A group that was found and has
    /// no record yet gets one.
    SetHome {
        /// Whose.
        domain: String,
        /// Which.
        home: Home,
    },
    /// Allow the domain memory on these nodes only (`cpuset.mems`).
    ConfineMemory {
        /// Whose.
        domain: String,
        /// Where.
        nodes: NodeSet,
    },
    /// Allow the domain these CPUs only (`cpuset.cpus`).
    BindCpus {
        /// Whose.
        domain: String,
        /// Which.
        cpus: CpuSet,
        /// Who wants that.
        on_behalf: CpuReason,
    },
    /// Give the process that becomes the domain a memory policy.
    SetMemoryPolicy {
        /// Whose.
        domain: String,
        /// Which.
        policy: MemoryPolicy,
        /// The nodes in it.
        nodes: NodeSet,
    },
    /// Move the domain's pages to these nodes.
    MovePages {
        /// Whose.
        domain: String,
        /// Where to.
        nodes: NodeSet,
        /// Not faster than this, in bytes per second.
        rate_bytes_per_s: Option<u64>,
        /// Only so much of it; all there is where none is given.
        #[serde(skip_serializing_if = "Option::is_none")]
        batch: Option<Batch>,
    },
}

impl Action {
    /// Whose it is.
    pub fn domain(&self) -> &str {
        match self {
            Self::Create { domain, .. }
            | Self::Claim { domain, .. }
            | Self::SetHome { domain, .. }
            | Self::ConfineMemory { domain, .. }
            | Self::BindCpus { domain, .. }
            | Self::SetMemoryPolicy { domain, .. }
            | Self::MovePages { domain, .. } => domain,
        }
    }
}

/// A part of what there is to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Pages of this node.
    pub from: NodeId,
    /// Not more than this, in bytes.
    pub most_bytes: u64,
}

/// On whose behalf CPUs are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuReason {
    /// An operator asked for hard affinity.
    Operator,
    /// Nearside's own stand-in for node affinity; it is lifted as soon as a scheduler that knows node affinity runs.
    Fallback,
}

/// Why an action is taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Reason {
    /// A new domain needs a place to be kept in.
    NewDomain,
    /// What is promised must not be promised to another.
    Promise {
        /// Bytes by node that could be promised before.
        unclaimed_bytes: ByNode,
    },
    /// The policy lets no memory come from elsewhere.
    PolicyConfines {
        /// The policy.
        policy: MemoryPolicy,
    },
    /// The policy that was asked for.
    PolicyAsked {
        /// The policy.
        policy: MemoryPolicy,
    },
    /// An operator asked for hard affinity.
    HardAffinity,
    /// No scheduler that knows node affinity runs.
    NoScheduler,
    /// Pages can only move to nodes that are allowed, so both homes are until they have.
    MovesNeedBoth,
    /// An operator gave the domain another home.
    NewHome {
        /// The home it had.
        from: NodeSet,
        /// The home it gets.
        to: NodeSet,
    },
    /// A domain was found that has no home.
    FirstHome {
        /// What it wants of the CPUs.
        demand: MilliVcpus,
        /// The slow-down predicted for it there.
        slow_down: SlowDown,
        /// What it holds elsewhere, in bytes.
        bytes_to_move: u64,
    },
    /// A domain was found that somebody else keeps on some nodes.
    BoundByOther {
        /// Where.
        nodes: NodeSet,
    },
    /// Nobody keeps a domain where its home was any more.
    LetGo,
    /// Another home saves more CPU time than going there costs.
    PaysBack {
        /// In figures.
        payback: Payback,
    },
    /// Two domains have it better in each other's homes.
    Swap {
        /// The other one.
        with: String,
        /// Both together, in figures.
        payback: Payback,
    },
    /// Pages lie off the home.
    Debt {
        /// How much of the domain's memory does, in bytes.
        debt_bytes: u64,
        /// How far the full rate is held back for the sake of nodes that are short of memory: 1,000,000 is not at all.
        pace_ppm: u64,
    },
    /// What can move has come home.
    Arrived,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewDomain => write!(f, "a new domain needs a cgroup of its own"),
            Self::Promise { unclaimed_bytes } => {
                let each = unclaimed_bytes
                    .iter()
                    .map(|(node, bytes)| format!("{} on node {node}", Bytes(*bytes)));
                let each = each.collect::<Vec<_>>().join(", ");
                write!(f, "so that nobody else counts on it; unclaimed before: {each}")
            }
            Self::PolicyConfines { policy } => {
                write!(f, "policy {policy} lets no memory come from elsewhere")
            }
            Self::PolicyAsked { policy } => write!(f, "policy {policy}"),
            Self::HardAffinity => write!(f, "hard affinity was asked for"),
            Self::NoScheduler => write!(f, "no scheduler that knows node affinity is attached"),
            Self::MovesNeedBoth => write!(f, "pages only move to nodes that are allowed"),
            Self::NewHome { from, to } if from == to => write!(f, "the home stays {}", to.named()),
            Self::NewHome { from, to } => {
                write!(f, "the home changes from {} to {}", from.named(), to.named())
            }
            Self::FirstHome { demand, slow_down, bytes_to_move } => write!(
                f,
                "found without a home; wants {demand} vCPUs, predicted slow-down there {slow_down}, {} to move",
                Bytes(*bytes_to_move)
            ),
            Self::BoundByOther { nodes } => {
                write!(f, "somebody else keeps it on {}", nodes.named())
            }
            Self::LetGo => write!(f, "nobody keeps it there any more"),
            Self::PaysBack { payback } => payback.fmt(f),
            Self::Swap { with, payback } => {
                write!(f, "changes places with {with}; both together: {payback}")
            }
            Self::Debt { debt_bytes, pace_ppm } => {
                write!(f, "{} lie off its home", Bytes(*debt_bytes))?;
                match pace_ppm {
                    1_000_000.. => Ok(()),
                    _ => write!(
                        f,
                        "; at {} % of the rate, for a node is short of memory",
                        pace_ppm / 10_000
                    ),
                }
            }
            Self::Arrived => write!(f, "what can move has come home"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { domain, limits } => {
                write!(f, "create domain {domain}")?;
                match (limits.cpus, limits.memory_bytes.map(Bytes)) {
                    (None, None) => Ok(()),
                    (Some(cpus), None) => write!(f, " with a CPU limit of {cpus}"),
                    (None, Some(memory)) => write!(f, " with a memory limit of {memory}"),
                    (Some(cpus), Some(memory)) => {
                        write!(f, " with a CPU limit of {cpus} and a memory limit of {memory}")
                    }
                }
            }
            Self::Claim { claim, .. } => {
                let part = |node| {
                    let on =
                        |by_node: &ByNode| by_node.get(&node).copied().filter(|&amount| amount > 0);
                    let vcpus = on(&claim.vcpus).map(|vcpus| Count(vcpus, "vCPU").to_string());
                    let bytes = on(&claim.bytes).map(|bytes| Bytes(bytes).to_string());
                    let amounts = vcpus.into_iter().chain(bytes).collect::<Vec<_>>().join(", ");
                    format!("node {node}: {amounts}")
                };
                write!(f, "claim {}", claim.nodes().iter().map(part).collect::<Vec<_>>().join("; "))
            }
            Self::SetHome { home, .. } => write!(f, "make {} the home", home.nodes.named()),
            Self::ConfineMemory { nodes, .. } => {
                write!(f, "allow memory on {} only", nodes.named())
            }
            Self::BindCpus { cpus, on_behalf: CpuReason::Operator, .. } => {
                write!(f, "run on {} only", cpus.named())
            }
            Self::BindCpus { cpus, .. } => write!(f, "run on {} for the time being", cpus.named()),
            Self::SetMemoryPolicy { policy, nodes, .. } if nodes.is_empty() => {
                write!(f, "set memory policy {policy}")
            }
            Self::SetMemoryPolicy { policy, nodes, .. } => {
                write!(f, "set memory policy {policy} on {}", nodes.named())
            }
            Self::MovePages { nodes, rate_bytes_per_s, batch, .. } => {
                match batch {
                    Some(Batch { from, most_bytes }) => write!(
                        f,
                        "move {} of node {from} to {}",
                        Bytes(*most_bytes),
                        nodes.named()
                    )?,
                    None => write!(f, "move pages to {}", nodes.named())?,
                }
                rate_bytes_per_s.map_or(Ok(()), |rate| write!(f, ", at most {}/s", Bytes(rate)))
            }
        }
    }
}

/// How far a long action is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes dealt with: moved, found in place or found immovable.
    pub done_bytes: u64,
    /// Bytes to deal with, as far as is known.
    pub total_bytes: u64,
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// All of it was done.
    Applied {
        /// Bytes of memory that moved.
        moved_bytes: u64,
    },
    /// Some of it was done.
    Partly {
        /// Bytes of memory that moved.
        moved_bytes: u64,
        /// What did not, and why.
        stayed: Stayed,
        /// It was told to break off; applying it again goes on.
        interrupted: bool,
    },
    /// Nothing was done.
    Refused {
        /// Why.
        why: String,
    },
}

/// Bytes that did not move, by reason.
pub type Stayed = BTreeMap<StayedWhy, u64>;

/// Why a page stayed where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StayedWhy {
    /// The kernel was using it (`EBUSY`).
    Busy,
    /// Other processes map it too and moving theirs was not allowed (`EACCES`).
    MappedElsewhere,
    /// No free page on the target (`ENOMEM`).
    NoRoom,
    /// No free huge page in the target's pool (`ENOMEM` on a huge page).
    NoHugePage,
    /// Busy, and its process lets a device address its memory (VFIO).
    Device,
    /// Charged to the domain and mapped by none of its processes: files of tmpfs, shared memory that nobody is attached to.
    NotMapped,
    /// Another error of the kernel's.
    Other,
}

impl StayedWhy {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::MappedElsewhere => "mapped elsewhere",
            Self::NoRoom => "no room on the target",
            Self::NoHugePage => "no free huge page on the target",
            Self::Device => "held by a device (VFIO)",
            Self::NotMapped => "not mapped by its processes (tmpfs files, detached shared memory)",
            Self::Other => "the kernel refused",
        }
    }
}
