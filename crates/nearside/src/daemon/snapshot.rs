//! Where the control loop and the API meet: snapshots of the intervals that the loop publishes, and
//! events that it takes.

use super::{access::Caller, text::TextReport, totals::Totals};
use crate::{
    domains::{Domain, is_below},
    report::{
        cell_stat,
        stat::{NodeStat, ReservedStat, Stat},
    },
};
use nearside_linux::{counters::Counters, guest::GuestCell, store::Record, usage::Usage};
use nearside_policy::{Affinity, CellId, ControlPlan, History, Home, Observation, Reservation};
use nearside_topology::{NodeId, NodeSet, Topology};
use serde::Serialize;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::oneshot;

/// An interval of the control loop: what it observed, decided and did. A [`Snapshot`] is made from
/// it.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// The machine, with the use of its memory.
    pub topology: Topology,
    /// The domains in the order of their names.
    pub domains: Vec<SeenDomain>,
    /// Memory that is reserved for other subjects.
    pub reservations: Vec<Reservation>,
    /// Counters of the page allocator on each node since boot, at the begin and at the end of the
    /// interval.
    pub counters: BTreeMap<NodeId, [Option<Counters>; 2]>,
    /// Time between the two samples of CPU time and counters.
    pub length: Duration,
    /// Configured length of an interval.
    pub interval: Duration,
    /// The decisions.
    pub plan: ControlPlan,
    /// The state that the loop keeps between intervals, including the status of each domain.
    pub history: Arc<History>,
    /// Totals since the start of the daemon.
    pub totals: Totals,
    /// The text of domains.
    pub text: TextReport,
    /// Whether the scheduler is attached.
    pub scheduler_attached: bool,
    /// `kernel.numa_balancing`; `None` if the kernel has no such sysctl.
    pub numa_balancing: Option<u64>,
}

/// A domain as the loop saw it.
#[derive(Debug, Clone, Default)]
pub struct SeenDomain {
    /// The path of its cgroup.
    pub cgroup: String,
    /// Its record; `None` for a found cgroup without a home.
    pub record: Option<Record>,
    /// Its use of CPUs and memory.
    pub usage: Usage,
    /// Bytes of huge pages of its claim that it has reserved and not touched yet.
    pub reserved_bytes: u64,
    /// The cells of a virtual machine with several.
    pub cells: Vec<GuestCell>,
    /// The counters of nodes when its cells were first seen.
    pub counters_at_first: BTreeMap<NodeId, Counters>,
}

/// A machine and its domains after an interval. It never changes.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) topology: Topology,
    /// Nodes and domains in numbers. Its domains are in the order of `records`.
    pub(crate) stat: Stat,
    /// Configured length of an interval. The first interval has no measured length.
    pub(crate) interval: Duration,
    pub(crate) records: Vec<Option<Record>>,
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) plan: ControlPlan,
    pub(crate) history: Arc<History>,
    pub(crate) totals: Totals,
    pub(crate) text: TextReport,
    pub(crate) scheduler_attached: bool,
    pub(crate) numa_balancing: Option<u64>,
}

impl Snapshot {
    /// A snapshot of an interval.
    pub fn new(seen: Seen) -> Self {
        let Seen {
            topology,
            domains,
            reservations,
            counters,
            length,
            interval,
            plan,
            history,
            totals,
            text,
            scheduler_attached,
            numa_balancing,
        } = seen;
        let (domains, records): (Vec<Domain>, Vec<_>) = domains
            .into_iter()
            .map(|seen| {
                let SeenDomain { cgroup, record, usage, reserved_bytes, .. } = seen;
                let domain = Domain::new(&cgroup, record.as_ref(), usage);
                let missed =
                    |home: &NodeSet| missed_pages(home, &seen.counters_at_first, &counters);
                let cells = cell_stat::cells(record.as_ref(), seen.cells, missed);
                (Domain { reserved_bytes, ..domain.with_cells(cells) }, record)
            })
            .unzip();
        let observation = Observation {
            topology,
            parts: domains.iter().map(Domain::state).collect(),
            reservations,
        };
        let counted = |node: NodeId| counters.get(&node).copied().unwrap_or([None; 2]);
        let nodes = observation.topology.nodes.iter();
        let stat = Stat {
            interval_s: (length.as_secs_f64() * 1000.0).round() / 1000.0,
            nodes: nodes.map(|node| NodeStat::new(&observation, node, counted(node.id))).collect(),
            reserved_huge_pages: ReservedStat::all(&observation),
            domains,
            heap: None,
        };
        let Observation { topology, reservations, .. } = observation;
        Self {
            topology,
            stat,
            interval,
            records,
            reservations,
            plan,
            history,
            totals,
            text,
            scheduler_attached,
            numa_balancing,
        }
    }

    /// The domain of a name, or of the path of its cgroup or of one inside.
    pub(crate) fn domain(&self, name: &str) -> Option<(&Domain, &Option<Record>)> {
        let mut all = self.stat.domains.iter().zip(&self.records);
        match name.starts_with('/') {
            true => all
                .filter(|(domain, _)| is_below(name, &domain.cgroup))
                .max_by_key(|(d, _)| d.cgroup.len()),
            false => all.find(|(domain, _)| domain.name == name),
        }
    }
}

/// Pages that were wanted on these nodes and allocated elsewhere since `first`. None if a counter
/// is unknown.
fn missed_pages(
    nodes: &NodeSet,
    first: &BTreeMap<NodeId, Counters>,
    counters: &BTreeMap<NodeId, [Option<Counters>; 2]>,
) -> Option<u64> {
    let missed = |node: NodeId| {
        let [_, now] = counters.get(&node)?;
        Some(now.as_ref()?.since(first.get(&node)?).foreign_pages)
    };
    nodes.iter().map(missed).sum()
}

/// An event for the control loop. The API sends changes and the signal handler the others, so the
/// loop waits at one place.
#[derive(Debug)]
pub enum Event {
    /// A permitted change.
    Change(Asked),
    /// Read the configuration again.
    Reload,
    /// End.
    Stop,
}

/// A requested change, and the way of its answer.
#[derive(Debug)]
pub struct Asked {
    /// The change.
    pub change: Change,
    /// The process that asks for it.
    pub caller: Arc<Caller>,
    /// Sends the answer. If it is dropped, the API answers that the change was not made.
    pub answer: oneshot::Sender<Answer>,
}

/// A change. The domain and the nodes exist in the last snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub enum Change {
    /// Makes nodes the domain's home, of origin explicit. Its memory elsewhere comes home as debt
    /// in later intervals.
    SetAffinity {
        /// The domain's name.
        domain: String,
        /// The cell, if it is a virtual machine with several.
        cell: Option<CellId>,
        /// The nodes.
        nodes: NodeSet,
        /// The binding of its vCPUs to the home; `None` leaves it as it is.
        affinity: Option<Affinity>,
    },
    /// Gives the home back to placement, or those of all cells: the origin becomes auto.
    Release {
        /// The domain's name.
        domain: String,
    },
}

impl Change {
    /// The domain's name.
    pub fn domain(&self) -> &str {
        match self {
            Self::SetAffinity { domain, .. } | Self::Release { domain } => domain,
        }
    }
}

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The change was made.
    Done {
        /// The nodes of the former home.
        nodes_before: NodeSet,
        /// The new home.
        home: Home,
        /// Notices for the user.
        notes: Vec<String>,
    },
    /// The domain has ended.
    Gone,
    /// The request is invalid: the domain may not use these nodes.
    Unusable(String),
    /// The change is refused: not enough memory is available, the cgroup's owner would undo it, or
    /// the machine does not allow it.
    Refused(String),
}

/// An invented snapshot for tests.
#[cfg(test)]
pub(crate) mod examples {
    use super::*;
    use crate::{
        daemon::{copies::CopiesReport, text::TextFileReport},
        report::{
            domain::examples::{self, MIB},
            stat::tests::topology,
        },
    };
    use nearside_policy::{
        Batch, DebtBlocker, HomeBlocker, MilliVcpus, NodeHistory, Outcome, PageMove, PartHistory,
        Place, Reason, SlowDown, Status, StayedWhy, Step,
        text::{Candidate, FileId, FileState, TextState},
    };

    pub(crate) fn seen() -> Seen {
        let records = [Some(examples::record()), Some(examples::other_record()), None];
        let domain = |(domain, record): (Domain, Option<Record>)| SeenDomain {
            cgroup: domain.cgroup,
            record,
            usage: domain.usage,
            ..SeenDomain::default()
        };
        let counters = |hit_pages| {
            Some(Counters { hit_pages, miss_pages: 5, foreign_pages: 3, ..Counters::default() })
        };
        let mut totals = Totals { intervals: 17, ..Totals::default() };
        let stayed = [(StayedWhy::Busy, 8192)].into();
        totals.count(
            "web-frontend",
            &Outcome::Partly { moved_bytes: 4096, stayed, interrupted: false },
        );
        totals.count("web-frontend", &Outcome::Refused { why: "no room".into() });
        let status = Status {
            place: Place::Contended { intervals: 3, off_home_ppm: 400_000 },
            debt_bytes: 64 * MIB,
            home_blocker: Some(HomeBlocker::NoneBetter {
                here: SlowDown(1_200_000),
                best: SlowDown(1_190_000),
            }),
            debt_blocker: Some(DebtBlocker::NoBudget),
        };
        let web = PartHistory {
            demand: MilliVcpus(1500),
            contention_intervals: 3,
            status,
            ..PartHistory::default()
        };
        let step = Step {
            action: PageMove {
                part: "web-frontend".into(),
                nodes: examples::nodes(&[2]),
                rate_bytes_per_s: Some(1 << 30),
                batch: Some(Batch { from: NodeId(0), max_bytes: 32 * MIB }),
            },
            reason: Reason::Debt { debt_bytes: 64 * MIB, rate_ppm: 1_000_000 },
        };
        Seen {
            topology: topology(),
            domains: examples::domains().into_iter().zip(records).map(domain).collect(),
            reservations: Vec::new(),
            counters: [0, 1].map(|node| (NodeId(node), [counters(1000), counters(1600)])).into(),
            length: Duration::from_secs(2),
            interval: Duration::from_secs(2),
            plan: ControlPlan { interval: 17, transactions: Vec::new(), moves: vec![step] },
            history: Arc::new(History {
                parts: [("db".into(), PartHistory::default()), ("web-frontend".into(), web)].into(),
                nodes: [(NodeId(0), NodeHistory { others: MilliVcpus(0), rate_ppm: 500_000 })]
                    .into(),
            }),
            totals,
            text: text(),
            scheduler_attached: true,
            numa_balancing: Some(1),
        }
    }

    fn text() -> TextReport {
        let file = FileId { major: 8, minor: 2, inode: 1027 };
        let state = FileState {
            file,
            path: "/usr/lib/libc.so.6".into(),
            bytes: [(NodeId(0), 2 * MIB)].into(),
            domains: vec!["db".into(), "web-frontend".into()],
            nodes: None,
            off_home_bytes: 4 * MIB,
            state: TextState::CopiesPay,
        };
        let candidate = Candidate {
            file,
            path: state.path.clone(),
            process: 4711,
            nodes: examples::nodes(&[1, 2]),
            domains: state.domains.clone(),
            bytes: state.bytes.clone(),
            off_home_bytes: state.off_home_bytes,
        };
        let moved = FileState {
            file: FileId { inode: 1028, ..file },
            path: "/usr/bin/db".into(),
            bytes: [(NodeId(1), MIB)].into(),
            domains: vec!["db".into()],
            nodes: Some(examples::nodes(&[1])),
            off_home_bytes: 0,
            state: TextState::InPlace,
        };
        let told = |state, moved_bytes| TextFileReport { state, moved_bytes };
        TextReport {
            moved_bytes: MIB,
            files: vec![told(state, 0), told(moved, MIB)],
            candidates: vec![candidate],
            copies: CopiesReport { files: 2, bytes: 3 * MIB, why: None },
            wide: [("web-frontend".into(), 1)].into(),
        }
    }

    pub(crate) fn snapshot() -> Snapshot {
        Snapshot::new(seen())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_found_by_its_name_and_by_any_group_within_it() {
        let snapshot = examples::snapshot();
        let found = |name: &str| snapshot.domain(name).map(|(domain, _)| domain.name.clone());
        for name in ["db", "/nearside/db", "/nearside/db/workers/1"] {
            assert_eq!(found(name).as_deref(), Some("db"), "{name}");
        }
        for name in ["", "d", "/", "/nearside", "/nearside/dbx", "nearside/db", "../db"] {
            assert_eq!(found(name), None, "{name}");
        }
    }
}
