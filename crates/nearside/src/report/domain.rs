//! Phrases about a domain that several reports share.

use super::{
    table::{
        Side::{Left, Right},
        listing,
    },
    units::short,
};
use crate::{domains::Domain, printable::printable};
use nearside_linux::usage::Account;
use nearside_policy::{Affinity, ByNode, CpuReason, Origin, total};
use std::fmt::Display;

/// The effect of narrowing `cpuset.mems` on others: the kernel moves all pages that processes map
/// (`MPOL_MF_MOVE_ALL` in `kernel/cgroup/cpuset.c`).
pub(crate) const CONFINED: &str = "confining memory also moved pages of files that other domains \
                                   share (libc): the domain confined last has them on its nodes";

/// A value, or a dash for none.
pub(crate) fn dash(value: Option<impl Display>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

/// The label of its line: its name, or the cell.
pub(crate) fn label(domain: &Domain) -> String {
    printable(domain.label.as_ref().unwrap_or(&domain.name))
}

/// The origin of a home.
pub(crate) const fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Auto => "auto",
        Origin::Explicit => "explicit",
        Origin::Adopted => "adopted",
    }
}

/// The binding of vCPUs to the home; a star marks a fallback binding by Nearside itself, an
/// exclamation mark a binding that is not in force.
pub(crate) fn affinity(domain: &Domain) -> String {
    let Some(home) = &domain.home else { return "-".into() };
    let word = match home.affinity {
        Affinity::Soft => "soft",
        Affinity::Hard => "hard",
    };
    let mark = match (&domain.cpus_effective, domain.cpus_bound_by) {
        (Some(_), _) => "!",
        (None, Some(CpuReason::Fallback)) => "*",
        (None, _) => "",
    };
    format!("{word}{mark}")
}

/// `498M/512M`: resident and claimed memory.
pub(crate) fn used_of_claim(domain: &Domain) -> String {
    let held = match domain.usage.memory_seen {
        Account::Hidden => "?".into(),
        Account::Charged | Account::Mapped => short(total(&domain.resident_bytes)),
    };
    match &domain.claim {
        Some(claim) => format!("{held}/{}", short(claim.total_bytes())),
        None => held,
    }
}

/// A local share in whole percent, rounded down so that 100 % means all of it.
pub(crate) fn local(share: Option<f64>) -> String {
    dash(share.map(|share| format!("{} %", (share * 100.0).floor())))
}

/// The status in the control loop, in one word.
pub(crate) fn stands(domain: &Domain) -> String {
    dash(domain.status.as_ref().map(|status| printable(&status.place)))
}

/// `0:2 3:1`: nodes with a count above 0.
pub(crate) fn by_node(amounts: &ByNode) -> String {
    in_words(amounts, |amount| amount.to_string())
}

/// Own memory by node.
pub(crate) fn memory_by_node(domain: &Domain) -> String {
    match domain.usage.memory_seen {
        Account::Hidden => "?".into(),
        Account::Charged | Account::Mapped => by_node_bytes(&domain.own_bytes),
    }
}

/// `0:512M 3:12K`
pub(crate) fn by_node_bytes(bytes: &ByNode) -> String {
    in_words(bytes, short)
}

fn in_words(amounts: &ByNode, word: impl Fn(u64) -> String) -> String {
    let words: Vec<_> = amounts
        .iter()
        .filter(|(_, amount)| **amount > 0)
        .map(|(node, &n)| format!("{node}:{}", word(n)))
        .collect();
    if words.is_empty() { "-".into() } else { words.join(" ") }
}

/// A table of the cgroups among `domains` that Nearside did not start; empty if there are none.
pub(crate) fn others(domains: &[Domain], nodes: bool) -> String {
    // The path comes last because it may be long.
    let mut columns = vec![("threads", Right), ("memory", Right), ("local", Right)];
    if nodes {
        columns.extend([("memory at", Left), ("threads at", Left)]);
    }
    columns.push(("cgroup", Left));
    let row = |domain: &Domain| {
        let threads = &domain.usage.cpu.threads;
        let mut row =
            vec![total(threads).to_string(), used_of_claim(domain), local(domain.local_share)];
        if nodes {
            row.extend([memory_by_node(domain), by_node(threads)]);
        }
        row.push(printable(&domain.cgroup));
        row
    };
    let rows: Vec<_> = domains.iter().filter(|domain| domain.home.is_none()).map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\nNot started by Nearside\n{}", listing(&columns, &rows)),
    }
}

/// Invented domains for the tests of reports.
#[cfg(test)]
pub(crate) mod examples {
    use super::*;
    use crate::report::answers::StatusAnswer;
    use nearside_linux::{
        memory::MemoryByKind,
        oom::OomKills,
        store::{CpuBinding, Part, Record},
        threads::CpuUse,
        usage::Usage,
    };
    use nearside_policy::{
        Candidate, Claim, CostModel, Decision, Home, LeftOut, Limits, MemoryPolicy, PageSize,
        Parts, Request, SlowDown,
    };
    use nearside_topology::{CpuId, CpuSet, NodeId, NodeSet, Withheld};

    pub(crate) const MIB: u64 = 1 << 20;

    pub(crate) fn by_node(amounts: &[u64]) -> ByNode {
        amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount)).collect()
    }

    pub(crate) fn nodes(nodes: &[u32]) -> NodeSet {
        nodes.iter().copied().map(NodeId).collect()
    }

    /// An isolated CPU, and CPUs and memory withheld by a cgroup.
    pub(crate) fn left_out() -> LeftOut {
        let by = "/nearside".into();
        let withheld =
            Withheld { cpus: [CpuId(6), CpuId(7)].into(), memory_nodes: nodes(&[3]), by };
        LeftOut { isolated_cpus: [CpuId(2)].into(), withheld }
    }

    pub(crate) fn candidate(on: &[u32], slow_down: [f64; 3], free_after_mib: u64) -> Candidate {
        let [cpu, memory, devices] = slow_down;
        let parts = Parts {
            cpu: SlowDown::from_factor(cpu),
            memory: SlowDown::from_factor(memory),
            devices: SlowDown::from_factor(devices),
        };
        let share = |amount: u64| {
            on.iter().map(|&node| (NodeId(node), amount / on.len() as u64)).collect::<ByNode>()
        };
        Candidate {
            nodes: nodes(on),
            slow_down: SlowDown::from_factor(cpu * memory * devices),
            parts,
            vcpus_per_core_ppm: Some(500_000),
            claim: Claim { bytes: share(512 * MIB), vcpus: share(2), page_size: PageSize::Base },
            spilled_bytes: 0,
            free_after_bytes: free_after_mib * MIB,
        }
    }

    /// A domain that placement put on node 1.
    pub(crate) fn record() -> Record {
        let chosen = candidate(&[1], [1.0, 1.0, 1.0], 1400);
        let request = Request {
            vcpus: 2,
            memory_bytes: 512 * MIB,
            page_size: PageSize::Base,
            policy: MemoryPolicy::Strict,
            nodes: None,
            near: Vec::new(),
        };
        let decision = Decision {
            request,
            runners_up: vec![
                candidate(&[2], [1.0, 1.0, 1.0], 1400),
                candidate(&[0], [1.0, 1.0, 1.0], 900),
                candidate(&[0, 1], [1.0, 1.2, 1.0], 2300),
                Candidate { spilled_bytes: 100 * MIB, ..candidate(&[3], [1.25, 1.1, 1.0], 0) },
            ],
            left_out: LeftOut::default(),
            candidates: 15,
            exhaustive: true,
            model: CostModel::default(),
            chosen: chosen.clone(),
        };
        let home = Home {
            nodes: chosen.nodes.clone(),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Strict,
        };
        let part = Part {
            claim: Some(chosen.claim),
            decision: Some(decision),
            cpus: Some(CpuBinding {
                cpus: CpuSet::from([CpuId(2), CpuId(3)]),
                on_behalf: CpuReason::Fallback,
            }),
            memory_nodes: Some(nodes(&[1])),
            policy_nodes: Some(nodes(&[1])),
            ..Part::at(home)
        };
        Record {
            name: "db".into(),
            boot_id: "b".into(),
            cgroup: "/nearside/db".into(),
            inode: 7,
            started_unix_s: 1_000_000,
            found_by: None,
            command: vec!["/usr/bin/postgres".into(), "-D".into(), "/srv/my data".into()],
            limits: Limits { cpus: Some(1.5), memory_bytes: None },
            parts: part.into(),
        }
    }

    pub(crate) fn usage(
        threads: &[u64],
        time_ns: &[u64],
        anonymous_mib: &[u64],
        file_mib: &[u64],
    ) -> Usage {
        let mib =
            |amounts: &[u64]| by_node(&amounts.iter().map(|mib| mib * MIB).collect::<Vec<_>>());
        Usage {
            processes: 1,
            cpu: CpuUse { threads: by_node(threads), time_ns: by_node(time_ns) },
            memory: MemoryByKind {
                anonymous: mib(anonymous_mib),
                file: mib(file_mib),
                ..MemoryByKind::default()
            },
            memory_seen: Account::Charged,
            hidden_processes: 0,
            oom_kills: Some(OomKills::default()),
        }
    }

    /// A domain that an operator put on nodes 2 and 3.
    pub(crate) fn other_record() -> Record {
        let home = Home {
            nodes: nodes(&[2, 3]),
            origin: Origin::Explicit,
            affinity: Affinity::Hard,
            policy: MemoryPolicy::WeightedInterleave,
        };
        let mut part = record().part().clone();
        part.home = home;
        if let Some(binding) = &mut part.cpus {
            binding.on_behalf = CpuReason::Operator;
        }
        Record {
            name: "web-frontend".into(),
            cgroup: "/nearside/web-frontend".into(),
            parts: part.into(),
            ..record()
        }
    }

    /// A domain at home, one off its home, and a cgroup that Nearside did not start.
    pub(crate) fn domains() -> Vec<Domain> {
        let (db, web) = (record(), other_record());
        // Any user may create cgroups with such names.
        let cron = "/system.slice/a-rather-long-name-with-\x1b[2J.service";
        vec![
            Domain::new(&db.cgroup, Some(&db), usage(&[0, 2], &[0, 900], &[0, 498], &[0, 3])),
            Domain::new(
                &web.cgroup,
                Some(&web),
                usage(&[0, 1, 1, 2], &[0, 100, 500, 400], &[64, 0, 300, 100], &[]),
            ),
            Domain::new(
                cron,
                None,
                Usage { memory_seen: Account::Hidden, ..usage(&[3], &[0], &[], &[]) },
            ),
        ]
    }
    /// The same domains, with the status that a daemon reports.
    pub(crate) fn domains_told_of() -> Vec<Domain> {
        let history = crate::daemon::snapshot::examples::snapshot().history;
        let told = |domain: Domain| {
            let status = history.parts.get(&domain.name.as_str().into()).map(StatusAnswer::of);
            Domain { status, ..domain }
        };
        domains().into_iter().map(told).collect()
    }
}
