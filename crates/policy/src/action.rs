//! The changes that a machine can make, and the reasons for them.

use crate::{
    ByNode, Bytes, CgroupId, Claim, Count, Home, Limits, MemoryPolicy, MilliVcpus, PartId, Payback,
    Reservation, SlowDown, Subject, Until,
};
use nearside_topology::{CpuSet, NodeId, NodeSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One action and its reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step<A = Action> {
    /// The action.
    pub action: A,
    /// Its reason.
    pub reason: Reason,
}

/// The smallest changes of a machine that a transaction is made of.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Action {
    /// Create the domain (its cgroup) with its limits, and put this process into it.
    Create {
        /// The part; a domain is created with one, a virtual machine with its first cell.
        part: PartId,
        /// Its limits.
        limits: Limits,
    },
    /// Claim memory and CPUs.
    Claim {
        /// The part.
        part: PartId,
        /// The claim.
        claim: Claim,
    },
    /// Set the home: a scheduler that knows node affinity goes by it. A cgroup that a pattern
    /// found gets its record with its first home.
    SetHome {
        /// The part.
        part: PartId,
        /// Its home.
        home: Home,
    },
    /// Allow memory on these nodes only (`cpuset.mems`).
    ConfineMemory {
        /// The part.
        part: PartId,
        /// The nodes.
        nodes: NodeSet,
    },
    /// Allow these CPUs only (`cpuset.cpus`).
    BindCpus {
        /// The part.
        part: PartId,
        /// The CPUs.
        cpus: CpuSet,
        /// The origin of the binding.
        on_behalf: CpuReason,
    },
    /// Take Nearside's own binding of CPUs back.
    UnbindCpus {
        /// The part.
        part: PartId,
    },
    /// Forget a domain that a pattern found. Nothing of its cgroup changes.
    Forget {
        /// The part.
        part: PartId,
    },
    /// Give the process that becomes the domain a memory policy.
    SetMemoryPolicy {
        /// The part.
        part: PartId,
        /// The policy.
        policy: MemoryPolicy,
        /// The nodes in it.
        nodes: NodeSet,
    },
    /// Reserve memory for something that is no domain.
    Reserve {
        /// The reservation.
        reservation: Reservation,
        /// Its end.
        until: Until,
    },
    /// End a reservation.
    Release {
        /// Its name.
        name: String,
    },
    /// Give a reservation to its domain: it then lasts as long as that, and counts only memory that
    /// the domain does not hold yet.
    Adopt {
        /// Its name.
        name: String,
        /// The path of the domain's cgroup.
        owner: String,
        /// The identity of that cgroup.
        cgroup: CgroupId,
    },
    /// Put off the end of a reservation whose domain may have started. Nothing changes while most
    /// of its time is left, or once it has been put off for as long as is possible.
    PutOff {
        /// Its name.
        name: String,
    },
    /// Make this process the only one that moves the memory of a part.
    BeginMove {
        /// The part.
        part: PartId,
        /// The nodes that the memory moves to.
        nodes: NodeSet,
        /// The highest rate, in bytes per second.
        rate_bytes_per_s: Option<u64>,
    },
    /// Let other processes move the memory of a part again.
    EndMove {
        /// The part.
        part: PartId,
        /// Whether the move is over. Otherwise its destination stays, so that it can be resumed.
        is_complete: bool,
    },
}

impl Action {
    /// The subject it changes.
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Self::Create { part, .. }
            | Self::Claim { part, .. }
            | Self::SetHome { part, .. }
            | Self::ConfineMemory { part, .. }
            | Self::BindCpus { part, .. }
            | Self::UnbindCpus { part }
            | Self::Forget { part }
            | Self::SetMemoryPolicy { part, .. }
            | Self::BeginMove { part, .. }
            | Self::EndMove { part, .. } => Subject::Part(part),
            Self::Reserve { reservation, .. } => Subject::Reservation(&reservation.name),
            Self::Release { name } | Self::Adopt { name, .. } | Self::PutOff { name } => {
                Subject::Reservation(name)
            }
        }
    }

    /// The part it changes; none if it changes a reservation.
    pub fn part(&self) -> Option<&PartId> {
        self.subject().part()
    }
}

/// Pages that are to move. Moving takes minutes, can be interrupted and resumed, and is limited
/// in its rate; so it is no part of a transaction.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename = "move-pages", tag = "do")]
pub struct PageMove {
    /// The part that the pages belong to.
    pub part: PartId,
    /// The nodes they move to.
    pub nodes: NodeSet,
    /// The highest rate, in bytes per second.
    pub rate_bytes_per_s: Option<u64>,
    /// The share of the pages that moves; all of them without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
}

/// A share of the pages that are to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The node they lie on.
    pub from: NodeId,
    /// At most this many bytes.
    pub max_bytes: u64,
}

/// On whose behalf CPUs are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuReason {
    /// An operator asked for hard affinity.
    Operator,
    /// Nearside's own stand-in for node affinity; it is lifted as soon as a scheduler that knows
    /// node affinity runs.
    Fallback,
}

/// The reason for an action.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "because")]
pub enum Reason {
    /// A new domain needs a cgroup of its own.
    NewDomain,
    /// The claim, or the reservation, reserves memory and CPUs.
    Reserves {
        /// Bytes by node that were available before.
        available_bytes: ByNode,
    },
    /// Placement, or an operator, chose it.
    Placed,
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
    /// Pages move only to nodes that are allowed, so both homes are allowed until they have.
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
        /// The CPUs that it demands.
        demand: MilliVcpus,
        /// The slow-down predicted for it there.
        slow_down: SlowDown,
        /// Its memory elsewhere, in bytes.
        bytes_to_move: u64,
    },
    /// The owner of its cgroup binds a found domain to some nodes.
    BoundByOther {
        /// The nodes.
        nodes: NodeSet,
    },
    /// The owner of its cgroup no longer binds a domain to its home.
    LetGo,
    /// A scheduler that knows node affinity is attached.
    SchedulerAttached,
    /// No pattern names its cgroup any more.
    NoLongerNamed,
    /// Another home saves more CPU time than going there costs.
    PaysBack {
        /// Cost and savings.
        payback: Payback,
    },
    /// Two parts take each other's homes.
    Exchange {
        /// The other part.
        with: PartId,
        /// Cost and savings of both together.
        payback: Payback,
    },
    /// Pages lie off the home.
    Debt {
        /// The debt, in bytes.
        debt_bytes: u64,
        /// The reduction of the rate for nodes that are short of memory, in millionths of the full
        /// rate.
        rate_ppm: u64,
    },
    /// All memory that can move has come home.
    Arrived,
    /// Another reservation takes the place of this one, or no process waits for it.
    NotNeeded,
    /// The domain that a reservation was made for has started.
    DomainStarted,
    /// The domain that a reservation was made for may have started; its manager does not answer.
    ManagerSilent,
    /// Memory follows the home of its domain.
    FollowsHome,
    /// No process moves the memory any more.
    MoveEnded,
    /// The command of a new domain could not be started.
    NotStarted,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewDomain => write!(f, "a new domain needs a cgroup of its own"),
            Self::Reserves { available_bytes } => {
                let each = available_bytes
                    .iter()
                    .map(|(node, bytes)| format!("{} on node {node}", Bytes(*bytes)));
                let each = each.collect::<Vec<_>>().join(", ");
                write!(f, "reserves it; available before: {each}")
            }
            Self::Placed => write!(f, "the chosen nodes"),
            Self::PolicyConfines { policy } => {
                write!(f, "policy {policy} lets no memory come from elsewhere")
            }
            Self::PolicyAsked { policy } => write!(f, "policy {policy}"),
            Self::HardAffinity => write!(f, "hard affinity was asked for"),
            Self::NoScheduler => write!(f, "no scheduler that knows node affinity is attached"),
            Self::MovesNeedBoth => write!(f, "pages move only to nodes that are allowed"),
            Self::NewHome { from, to } if from == to => write!(f, "the home stays {}", to.named()),
            Self::NewHome { from, to } => {
                write!(f, "the home changes from {} to {}", from.named(), to.named())
            }
            Self::FirstHome { demand, slow_down, bytes_to_move } => write!(
                f,
                "found without a home; demands {demand} vCPUs, predicted slow-down there \
                 {slow_down}, {} to move",
                Bytes(*bytes_to_move)
            ),
            Self::BoundByOther { nodes } => {
                write!(f, "the owner of its cgroup binds it to {}", nodes.named())
            }
            Self::LetGo => write!(f, "the owner of its cgroup binds it no more"),
            Self::SchedulerAttached => {
                write!(f, "a scheduler that knows node affinity is attached")
            }
            Self::NoLongerNamed => write!(f, "no pattern names its cgroup any more"),
            Self::PaysBack { payback } => payback.fmt(f),
            Self::Exchange { with, payback } => {
                write!(f, "exchanges homes with {with}; both together: {payback}")
            }
            Self::Debt { debt_bytes, rate_ppm } => {
                write!(f, "{} lie off its home", Bytes(*debt_bytes))?;
                match rate_ppm {
                    1_000_000.. => Ok(()),
                    _ => write!(
                        f,
                        "; at {} % of the rate, for a node is short of memory",
                        rate_ppm / 10_000
                    ),
                }
            }
            Self::Arrived => write!(f, "all memory that can move has come home"),
            Self::NotNeeded => write!(f, "another takes its place, or no process waits for it"),
            Self::DomainStarted => write!(f, "its domain has started"),
            Self::ManagerSilent => {
                write!(f, "its domain may have started, and the domain's manager does not answer")
            }
            Self::FollowsHome => write!(f, "memory follows the home"),
            Self::MoveEnded => write!(f, "no process moves its memory any more"),
            Self::NotStarted => write!(f, "its command could not be started"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { part, limits } => {
                write!(f, "create domain {}", part.domain())?;
                match (limits.cpus, limits.memory_bytes.map(Bytes)) {
                    (None, None) => Ok(()),
                    (Some(cpus), None) => write!(f, " with a CPU limit of {cpus}"),
                    (None, Some(memory)) => write!(f, " with a memory limit of {memory}"),
                    (Some(cpus), Some(memory)) => {
                        write!(f, " with a CPU limit of {cpus} and a memory limit of {memory}")
                    }
                }
            }
            Self::Claim { claim, .. } => write!(f, "claim {}", amounts(claim)),
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
            Self::UnbindCpus { .. } => write!(f, "run wherever its cgroup may"),
            Self::Forget { .. } => write!(f, "forget its home"),
            Self::Reserve { reservation, until } => {
                let Reservation { name, bytes, vcpus, .. } = reservation.clone();
                let claim = Claim { bytes, vcpus, ..Claim::default() };
                write!(f, "reserve {} as {name} {until}", amounts(&claim))
            }
            Self::Release { name } => write!(f, "end reservation {name}"),
            Self::Adopt { name, owner, .. } => write!(f, "give reservation {name} to {owner}"),
            Self::PutOff { name } => write!(f, "put off the end of reservation {name}"),
            Self::BeginMove { nodes, rate_bytes_per_s, .. } => {
                write!(f, "begin the move of its memory to {}", nodes.named())?;
                rate_bytes_per_s.map_or(Ok(()), |rate| write!(f, ", at most {}/s", Bytes(rate)))
            }
            Self::EndMove { is_complete: true, .. } => write!(f, "end the move of its memory"),
            Self::EndMove { .. } => write!(f, "interrupt the move of its memory"),
        }
    }
}

/// vCPUs and bytes by node, in words.
fn amounts(claim: &Claim) -> String {
    let part = |node| {
        let on = |by_node: &ByNode| by_node.get(&node).copied().filter(|&amount| amount > 0);
        let vcpus = on(&claim.vcpus).map(|vcpus| Count(vcpus, "vCPU").to_string());
        let bytes = on(&claim.bytes).map(|bytes| Bytes(bytes).to_string());
        let amounts = vcpus.into_iter().chain(bytes).collect::<Vec<_>>().join(", ");
        format!("node {node}: {amounts}")
    };
    claim.nodes().iter().map(part).collect::<Vec<_>>().join("; ")
}

impl fmt::Display for PageMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, rate_bytes_per_s, batch, .. } = self;
        match batch {
            Some(Batch { from, max_bytes }) => {
                write!(f, "move {} of node {from} to {}", Bytes(*max_bytes), nodes.named())?
            }
            None => write!(f, "move pages to {}", nodes.named())?,
        }
        rate_bytes_per_s.map_or(Ok(()), |rate| write!(f, ", at most {}/s", Bytes(rate)))
    }
}
