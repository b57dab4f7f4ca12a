//! The subjects of the store: domains, and memory that is reserved for anything else.

use nearside_policy::{
    self as policy, ByNode, CellId, Claim, CpuReason, Decision, Home, Limits, MemoryPolicy,
    PageSize, PartId, Purpose, Unowned,
};
use nearside_topology::{CpuSet, NodeSet};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, iter};

/// A subject of the store.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// A domain.
    Domain(Record),
    /// Memory that belongs to no domain.
    Reservation(Reservation),
}

/// The record of a domain. It counts while the domain's cgroup lives.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// The boot during which it was started (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// The path of its cgroup.
    pub cgroup: String,
    /// The inode of that cgroup.
    pub inode: u64,
    /// The time at which it was started, or found, in seconds since 1970.
    pub started_unix_s: u64,
    /// The pattern that found its cgroup; none for a domain that Nearside started.
    pub found_by: Option<String>,
    /// The command that was started; empty for a domain that was found. Users other than its owner
    /// and root see only the first word.
    pub command: Vec<String>,
    /// The limits of its use.
    pub limits: Limits,
    /// Its parts.
    pub parts: Parts,
}

/// The parts of a domain, at least one: an ordinary domain has one, a virtual machine one for each
/// cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Part>", into = "Vec<Part>")]
pub struct Parts {
    first: Box<Part>,
    others: Vec<Part>,
}

/// The part of a domain that has one home.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The cell of a virtual machine; none for the one part of an ordinary domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellId>,
    /// Its home.
    pub home: Home,
    /// Memory and vCPUs claimed for it; none if the domain was found.
    pub claim: Option<Claim>,
    /// The placement behind its first home; none if the domain was found.
    pub decision: Option<Decision>,
    /// CPUs it is bound to, with the origin of the binding.
    pub cpus: Option<CpuBinding>,
    /// Nodes its memory is confined to (`cpuset.mems`).
    pub memory_nodes: Option<NodeSet>,
    /// The nodes of its processes' memory policy, for processes that start later.
    pub policy_nodes: Option<NodeSet>,
    /// The destination of a move of its memory that is under way, or was interrupted.
    pub moving_to: Option<NodeSet>,
    /// The process that moves it there; none once the process has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<Mover>,
}

/// The process that alone moves the memory of a part, for as long as it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mover {
    /// The process, of the same boot as the record.
    pub pid: u32,
    /// Its start in clock ticks since boot, which tells it from a later one of the same number.
    pub start_time_ticks: u64,
    /// The most that it moves a second, in bytes; none without a limit.
    pub rate_bytes_per_s: Option<u64>,
}

/// CPUs that a part is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuBinding {
    /// The CPUs.
    pub cpus: CpuSet,
    /// The origin. Nearside lifts its own fallback when it can, an operator's binding never.
    pub on_behalf: CpuReason,
}

/// Memory that belongs to no domain. It is reserved while its lifetime lasts.
#[derive(Debug, Clone, PartialEq)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub purpose: Purpose,
    /// The lifetime.
    pub lifetime: Lifetime,
    /// Reserved bytes by node.
    pub bytes: ByNode,
    /// Reserved vCPUs by node.
    pub vcpus: ByNode,
    /// The size of the pages that are reserved.
    pub page_size: PageSize,
}

/// The time during which a subject counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifetime {
    /// As long as a cgroup lives: same boot, same inode, a process in it.
    Cgroup {
        /// The boot (`/proc/sys/kernel/random/boot_id`).
        boot_id: String,
        /// The cgroup's path.
        path: String,
        /// The cgroup's inode.
        inode: u64,
    },
    /// As long as a process lives, and not beyond the expiry.
    Lease {
        /// The boot.
        boot_id: String,
        /// The process.
        pid: u32,
        /// The process's start in clock ticks since boot (`/proc/PID/stat`), which tells it from a
        /// later one of the same number.
        start_time_ticks: u64,
        /// The expiry in seconds since 1970, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_unix_s: Option<u64>,
    },
    /// Until an expiry, whichever processes live.
    Term {
        /// The boot.
        boot_id: String,
        /// The expiry in seconds since boot (`/proc/uptime`, which includes suspension): no one
        /// sets that clock, as they set the time of day.
        expires_boottime_s: u64,
        /// The reservation's time, in seconds since boot, if its expiry was put off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made_boottime_s: Option<u64>,
    },
}

/// A change of one subject. Both sides have the same name and kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The record before; none if it is created.
    pub before: Option<Subject>,
    /// The record after; none if it is removed.
    pub after: Option<Subject>,
}

impl Record {
    /// Its first part: the only one of an ordinary domain.
    pub fn part(&self) -> &Part {
        &self.parts.first
    }

    /// As [`part`](Self::part), to be changed.
    pub fn part_mut(&mut self) -> &mut Part {
        &mut self.parts.first
    }

    /// All its parts.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    /// One of its parts.
    pub fn part_of(&self, id: &PartId) -> Option<&Part> {
        self.parts().find(|part| part.cell == id.cell())
    }

    /// The name of one of its parts.
    pub fn id_of(&self, part: &Part) -> PartId {
        match part.cell {
            None => PartId::of(&self.name),
            Some(cell) => PartId::cell_of(&self.name, cell),
        }
    }

    /// The home of its only part; of a guest with cells, that of the first with the nodes of all.
    pub fn whole_home(&self) -> Home {
        Home { nodes: self.home_nodes(), ..self.part().home.clone() }
    }

    /// The nodes that its memory cannot leave; none if Nearside binds it to none. Where
    /// `cpuset.mems` lets them, policies other than strict fall back to other nodes.
    pub fn bound_memory_nodes(&self) -> Option<NodeSet> {
        let of_part = |part: &Part| {
            let by_policy =
                || part.policy_nodes.clone().filter(|_| part.home.policy == MemoryPolicy::Strict);
            part.memory_nodes.clone().or_else(by_policy)
        };
        self.parts().filter_map(of_part).reduce(|all, nodes| all.union(&nodes))
    }

    /// The nodes of all its parts' homes.
    pub fn home_nodes(&self) -> NodeSet {
        self.parts().fold(NodeSet::new(), |all, part| all.union(&part.home.nodes))
    }

    /// The record as all users may see it: of its command the program's name alone, because
    /// arguments may be secrets.
    #[must_use]
    pub fn for_all(&self) -> Self {
        let command = self.command.iter().take(1).cloned().collect();
        Self { command, ..self.clone() }
    }

    /// The lifetime of its cgroup.
    pub fn lifetime(&self) -> Lifetime {
        let Self { boot_id, cgroup, inode, .. } = self;
        Lifetime::Cgroup { boot_id: boot_id.clone(), path: cgroup.clone(), inode: *inode }
    }

    /// The reason why this is no valid record, if there is one. It finds records with missing
    /// parts.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let has_all = |part: &Part| part.claim.is_some() && part.decision.is_some();
        let has_none = |part: &Part| part.claim.is_none() && part.decision.is_none();
        let cells: BTreeSet<_> = self.parts().map(|part| part.cell).collect();
        if cells.len() < self.parts().count() || cells.len() > 1 && cells.contains(&None) {
            return Some("each of several parts must be a cell of its own");
        }
        match &self.found_by {
            None if self.parts().all(has_all) => None,
            None => Some(
                "it has no claim or no decision, as a domain that was found, and no pattern that \
                 found it",
            ),
            Some(_) if !self.parts().all(has_none) => {
                Some("a domain that was found has neither a claim nor a decision")
            }
            Some(_) if self.name != self.cgroup => {
                Some("the name of a domain that was found must be the path of its cgroup")
            }
            Some(_) => None,
        }
    }
}

impl Parts {
    /// The parts in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        iter::once(&*self.first).chain(&self.others)
    }

    /// As [`iter`](Self::iter), to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        iter::once(&mut *self.first).chain(&mut self.others)
    }
}

impl From<Part> for Parts {
    fn from(part: Part) -> Self {
        Self { first: Box::new(part), others: Vec::new() }
    }
}

impl From<Parts> for Vec<Part> {
    fn from(parts: Parts) -> Self {
        iter::once(*parts.first).chain(parts.others).collect()
    }
}

impl TryFrom<Vec<Part>> for Parts {
    type Error = &'static str;

    fn try_from(parts: Vec<Part>) -> Result<Self, Self::Error> {
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or("a domain has at least one part")?;
        Ok(Self { first: Box::new(first), others: parts.collect() })
    }
}

impl Part {
    /// The one part of an ordinary domain with a home and no other fact.
    pub fn at(home: Home) -> Self {
        Self {
            cell: None,
            home,
            claim: None,
            decision: None,
            cpus: None,
            memory_nodes: None,
            policy_nodes: None,
            moving_to: None,
            mover: None,
        }
    }
}

impl Subject {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Domain(record) => &record.name,
            Self::Reservation(reservation) => &reservation.name,
        }
    }

    /// True if the other is a record of the same subject.
    pub fn is_same(&self, other: &Self) -> bool {
        let is_domain = |subject: &Self| matches!(subject, Self::Domain(_));
        is_domain(self) == is_domain(other) && self.name() == other.name()
    }

    /// It as all users may see it.
    #[must_use]
    pub(super) fn for_all(&self) -> Self {
        match self {
            Self::Domain(record) => Self::Domain(record.for_all()),
            Self::Reservation(_) => self.clone(),
        }
    }

    /// Its lifetime.
    pub fn lifetime(&self) -> Lifetime {
        match self {
            Self::Domain(record) => record.lifetime(),
            Self::Reservation(reservation) => reservation.lifetime.clone(),
        }
    }
}

impl From<Record> for Subject {
    fn from(record: Record) -> Self {
        Self::Domain(record)
    }
}

impl From<Reservation> for Subject {
    fn from(reservation: Reservation) -> Self {
        Self::Reservation(reservation)
    }
}

impl Reservation {
    /// The path of the cgroup whose domain owns it; none if no domain does.
    pub fn owner(&self) -> Option<&str> {
        match &self.lifetime {
            Lifetime::Cgroup { path, .. } => Some(path),
            Lifetime::Lease { .. } | Lifetime::Term { .. } => None,
        }
    }

    /// The reservation that waits for its domain to start; none if it has an owner or a process, or
    /// if its record cannot be read.
    pub fn unowned(&self) -> Option<Unowned> {
        if self.purpose == Purpose::Unknown {
            return None;
        }
        let Lifetime::Term { expires_boottime_s, made_boottime_s, .. } = self.lifetime else {
            return None;
        };
        let made_s = expires_boottime_s.saturating_sub(policy::RESERVED_FOR_S);
        let (bytes, vcpus) = (self.bytes.clone(), self.vcpus.clone());
        let claim = Claim { bytes, vcpus, ..Claim::default() };
        Some(Unowned {
            name: self.name.clone(),
            purpose: self.purpose.clone(),
            nodes: claim.nodes(),
            vcpus: policy::total(&self.vcpus),
            bytes: claim.total_bytes(),
            made_boottime_s: made_boottime_s.unwrap_or(made_s),
        })
    }

    /// The claim that its owner's memory is compared to; none for memory of every page size.
    ///
    /// The memory of a domain that has adopted it counts wherever it lies and whichever its page
    /// size is: another manager may have moved it, or may have given the domain huge pages. For the
    /// claim of an unreadable record, memory of its page size on the claimed nodes counts.
    pub fn claim(&self) -> Option<Claim> {
        let Self { bytes, page_size, .. } = self.clone();
        let is_claim = self.purpose == Purpose::Unknown;
        is_claim.then(|| Claim { bytes, page_size, ..Claim::default() })
    }

    /// The memory and vCPUs that it keeps from others while its owner holds `resident` memory, as
    /// [compared](Self::claim) to it.
    pub fn unfilled(&self, resident: &ByNode) -> policy::Reservation {
        let Self { name, purpose, bytes, vcpus, page_size, .. } = self.clone();
        let bytes = match self.claim() {
            Some(claim) => policy::outstanding(&claim, resident, &ByNode::new()),
            None => {
                let claim = Claim { bytes, page_size, ..Claim::default() };
                policy::outstanding(&claim, resident, resident)
            }
        };
        let owner = self.owner().map(Into::into);
        policy::Reservation { name, purpose, owner, bytes, vcpus, page_size }
    }
}

impl Change {
    /// The reverse change.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { before: self.after.clone(), after: self.before.clone() }
    }
}
