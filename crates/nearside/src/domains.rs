//! Domains in the form that commands use: their records and their use of the machine.

use crate::{
    failure::Failure,
    printable::printable,
    report::{
        answers::StatusAnswer,
        cell_stat::{self, CellStat},
        json::{self, MoverJson},
    },
};
use clap::builder::{OsStringValueParser, TypedValueParser};
use nearside_linux::{
    Host, Paths,
    cgroup::{Cgroup, Tree},
    escape, huge,
    store::Record,
    threads::CpuUse,
    usage,
    usage::Usage,
};
use nearside_policy::{
    ByNode, CgroupId, Claim, CpuReason, Home, LeftOut, PartId, PartState, RehomeRefusal,
    outstanding,
};
use nearside_topology::{CpuSet, NodeSet, Topology};
use serde::Serialize;
use std::{ffi::OsString, time::Duration};

/// A domain, or a cgroup that Nearside did not start.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Domain {
    /// Its name, or the path of its cgroup if Nearside did not start it.
    pub(crate) name: String,
    /// The path of its cgroup in the cgroup v2 tree.
    pub(crate) cgroup: String,
    /// Its home; none for a cgroup without one.
    #[serde(serialize_with = "json::home")]
    pub(crate) home: Option<Home>,
    /// The reason why its CPUs are bound, if they are.
    pub(crate) cpus_bound_by: Option<CpuReason>,
    /// The CPUs that its cgroup lets it have (`cpuset.cpus.effective`), if these are not among
    /// those it is bound to: the kernel lets a binding go whose CPUs are all offline, or in another
    /// cgroup's partition.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "json::set_if_any")]
    pub(crate) cpus_effective: Option<CpuSet>,
    /// Its claim.
    #[serde(serialize_with = "json::claim")]
    pub(crate) claim: Option<Claim>,
    /// Claimed memory that is not resident yet, in bytes by node.
    pub(crate) outstanding_bytes: ByNode,
    /// Resident memory that counts against the claim, in bytes by node.
    pub(crate) resident_bytes: ByNode,
    /// Bytes of `outstanding_bytes` that the domain has reserved, if its claim is in huge pages.
    pub(crate) reserved_bytes: u64,
    /// Its own memory, in bytes by node: without files and without the kernel's memory for it.
    pub(crate) own_bytes: ByNode,
    /// The local share of its own memory, from 0 to 1.
    pub(crate) local_share: Option<f64>,
    /// Bytes of its own memory that lie off its home; none if its memory cannot be read.
    pub(crate) debt_bytes: Option<u64>,
    /// Its processes that the kernel killed for lack of memory; none without the memory controller.
    pub(crate) oom_kills: Option<u64>,
    /// The process that moves its memory, if one does.
    pub(crate) mover: Option<MoverJson>,
    /// The figures behind all of this.
    pub(crate) usage: Usage,
    /// The cells of a virtual machine with several; empty for other domains.
    #[serde(rename = "guest_cells")]
    pub(crate) cells: Vec<CellStat>,
    /// The lines of these cells in tables.
    #[serde(skip)]
    pub(crate) cell_lines: Vec<Domain>,
    /// The label of such a line: that of a domain is its name.
    #[serde(skip)]
    pub(crate) label: Option<String>,
    /// Its status in the control loop, if a daemon answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<StatusAnswer>,
}

impl Domain {
    pub(crate) fn new(cgroup: &str, record: Option<&Record>, usage: Usage) -> Self {
        let home = record.map(Record::whole_home);
        let claim = record.and_then(|record| record.part().claim.clone());
        let seen = usage.memory_seen != usage::Account::Hidden;
        let resident_bytes = usage.memory.compared_to(claim.as_ref());
        Self {
            name: record.map_or(cgroup, |record| &record.name).to_owned(),
            cgroup: cgroup.to_owned(),
            cpus_bound_by: record
                .and_then(|record| record.part().cpus.as_ref())
                .map(|binding| binding.on_behalf),
            cpus_effective: None,
            outstanding_bytes: claim
                .as_ref()
                .map(|claim| outstanding(claim, &resident_bytes, &usage.memory.staying(claim)))
                .unwrap_or_default(),
            own_bytes: usage.memory.own(),
            local_share: usage.local_share(),
            debt_bytes: home.as_ref().filter(|_| seen).map(|home| usage.debt_bytes(&home.nodes)),
            resident_bytes,
            reserved_bytes: 0,
            oom_kills: usage.oom_kills.map(|kills| kills.killed),
            mover: record.and_then(MoverJson::of),
            home,
            claim,
            usage,
            cells: Vec::new(),
            cell_lines: Vec::new(),
            label: None,
            status: None,
        }
    }

    /// As a virtual machine with these cells: each one's memory is compared with its own home.
    pub(crate) fn with_cells(self, cells: Vec<CellStat>) -> Self {
        let debts: Option<Vec<u64>> = cells.iter().map(|cell| cell.debt_bytes).collect();
        let (local_share, debt_bytes) = match cells.is_empty() {
            true => (self.local_share, self.debt_bytes),
            false => (cell_stat::local_share(&cells), debts.map(|debts| debts.iter().sum())),
        };
        let cell_lines = cells.iter().map(|cell| self.cell_line(cell)).collect();
        Self { local_share, debt_bytes, cells, cell_lines, ..self }
    }

    /// A line below that of its guest. Its cgroup tells it from the guest's line.
    fn cell_line(&self, cell: &CellStat) -> Self {
        let number = cell.guest.cell.map_or("-".into(), |cell| cell.to_string());
        let label = format!("  cell {number}");
        let bytes = cell.guest.bytes.clone();
        let memory_seen = match bytes {
            Some(_) => usage::Account::Mapped,
            None => usage::Account::Hidden,
        };
        let threads = cell.guest.threads.clone();
        let cpu = CpuUse { threads, ..CpuUse::default() };
        let resident_bytes = bytes.unwrap_or_default();
        Self {
            name: self.name.clone(),
            cgroup: format!("{}{label}", self.cgroup),
            label: Some(label),
            home: cell.home.clone(),
            own_bytes: resident_bytes.clone(),
            resident_bytes,
            local_share: cell.guest.local_share,
            debt_bytes: cell.debt_bytes,
            usage: Usage { cpu, memory_seen, ..Usage::default() },
            ..Self::default()
        }
    }

    /// Its line in a table, followed by those of its cells.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.cell_lines)
    }

    /// The domain in the form that placement uses.
    pub(crate) fn state(&self) -> PartState {
        let Self { name, home, claim, resident_bytes, reserved_bytes, .. } = self.clone();
        let memory = &self.usage.memory;
        let kernel_bytes = memory.kept_by_kernel(claim.as_ref());
        let unmapped_bytes = memory.unmapped_by_any(claim.as_ref());
        let memory_nodes = None;
        PartState {
            id: PartId::of(name),
            cgroup: CgroupId::default(),
            home,
            claim,
            memory_nodes,
            resident_bytes,
            kernel_bytes,
            unmapped_bytes,
            reserved_bytes,
            mover: None,
        }
    }
}

/// Opens this host.
pub(crate) fn open_host() -> Result<Host, Failure> {
    Host::open(Paths::default()).map_err(Failure::could_not)
}

/// A cgroup, and its record if Nearside started it.
pub(crate) type Found = (Cgroup, Option<Record>);

/// The running domains by name, and with `all` every other cgroup with processes of its own by
/// path; and the errors of records that cannot be read.
pub(crate) fn running(host: &Host, all: bool) -> Result<(Vec<Found>, Vec<String>), Failure> {
    let (records, broken) = host.records();
    let mut found = Vec::new();
    for record in records {
        found.push((host.tree().group(&record.cgroup).map_err(Failure::could_not)?, Some(record)));
    }
    if all {
        let started: Vec<String> = found.iter().map(|(group, _)| group.path().to_owned()).collect();
        let of_a_domain = |path: &str| started.iter().any(|cgroup| is_below(path, cgroup));
        let others =
            host.tree().populated_groups().into_iter().filter(|group| !of_a_domain(group.path()));
        found.extend(others.map(|group| (group, None)));
    }
    Ok((found, broken.iter().map(ToString::to_string).collect()))
}

/// True if the group at `path` is the one at `above` or lies below it.
pub(crate) fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The record of a domain.
pub(crate) fn named(host: &Host, name: &str) -> Result<Record, Failure> {
    host.record(name)
        .map_err(Failure::could_not)?
        .ok_or_else(|| Failure::could_not(RehomeRefusal::UnknownDomain(name.to_owned())))
}

/// The argument that names a domain or a cgroup.
pub(crate) fn argument() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(name_given)
}

/// The name of a domain or a cgroup that an argument gives. Bytes that are no text become escapes,
/// as reports have them.
pub(crate) fn name_given(name: OsString) -> String {
    name.into_string().unwrap_or_else(escape::text)
}

/// Finds a domain by its name, or by a path: the domain that this cgroup is or belongs to, else the
/// cgroup itself. The path may begin with the mount point of the tree.
pub(crate) fn find(host: &Host, name: &str) -> Result<Found, Failure> {
    if !name.starts_with('/') {
        let record = named(host, name)?;
        return Ok((host.tree().group(&record.cgroup).map_err(Failure::could_not)?, Some(record)));
    }
    let mounted = escape::text(host.tree().root());
    let path = if is_below(name, &mounted) { &name[mounted.len()..] } else { name };
    let group = group_at(host.tree(), path)?;
    // A group below a domain's is part of that domain.
    match host.records().0.into_iter().find(|record| is_below(group.path(), &record.cgroup)) {
        Some(record) => {
            Ok((host.tree().group(&record.cgroup).map_err(Failure::could_not)?, Some(record)))
        }
        None => Ok((group, None)),
    }
}

/// The group at `path`: as JSON and the API write it, else as the kernel does, else as tables do.
fn group_at(tree: &Tree, path: &str) -> Result<Cgroup, Failure> {
    let group = tree.group(path).map_err(Failure::could_not)?;
    if group.exists() {
        return Ok(group);
    }
    let as_bytes = tree.group(&escape::text(path)).map_err(Failure::could_not)?;
    if as_bytes.exists() {
        return Ok(as_bytes);
    }
    let all = tree.group("/").map_err(Failure::could_not)?.subtree();
    let mut shown = all.into_iter().filter(|it| printable(it.path()) == path.trim_end_matches('/'));
    match (shown.next(), shown.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(Failure::could_not(format_args!(
            "several cgroups are shown as {path}: give the name's own bytes"
        ))),
        (None, _) => Err(Failure::could_not(format_args!(
            "there is no cgroup {}",
            escape::text(group.directory())
        ))),
    }
}

/// Reads the use of the groups, with CPU time over `interval`.
pub(crate) fn sample(
    host: &Host,
    found: &[Found],
    topology: &Topology,
    interval: Duration,
) -> Vec<Domain> {
    let groups: Vec<Cgroup> = found.iter().map(|(group, _)| group.clone()).collect();
    let usages = usage::usage(&groups, &host.proc(), topology, interval);
    let domain = |((group, record), usage): (&Found, Usage)| {
        let mut domain = Domain::new(group.path(), record.as_ref(), usage);
        if let Some(claim) = &domain.claim {
            domain.reserved_bytes =
                huge::reserved_bytes(group, &host.proc(), claim, &domain.resident_bytes);
        }
        domain.cpus_effective = record.as_ref().and_then(|record| beside_binding(group, record));
        let guest = host.guest(group, topology).and_then(Result::ok).unwrap_or_default();
        let cells = cell_stat::cells(record.as_ref(), guest.cells, |_| None);
        domain.with_cells(cells)
    };
    found.iter().zip(usages).map(domain).collect()
}

/// The CPUs that a group lets its domain have, if none of those that it is bound to are left: the
/// kernel then offers the CPUs of the group above.
fn beside_binding(group: &Cgroup, record: &Record) -> Option<CpuSet> {
    let read = |file| group.read(file).ok().flatten()?.trim().parse::<CpuSet>().ok();
    // Without CPUs of its own, the group does not bind its threads.
    let own = read("cpuset.cpus").filter(|own| !own.is_empty())?;
    let effective = read("cpuset.cpus.effective")?;
    let bound = record.parts().filter_map(|part| Some(part.cpus.as_ref()?.cpus.clone()));
    let bound = bound.reduce(|all, cpus| all.union(&cpus))?;
    // Another program may have changed the set.
    let is_ours = own.difference(&bound).is_empty();
    (is_ours && effective.intersection(&bound).is_empty()).then_some(effective)
}

/// Notes about CPUs and memory that placement does not offer to a request that names these nodes.
pub(crate) fn left_out(
    offered: &Topology,
    named: Option<&NodeSet>,
) -> impl Iterator<Item = String> {
    LeftOut::of(offered, named)
        .lines()
        .into_iter()
        .map(|line| format!("left out of placement: {line}"))
}

/// A note about domains whose memory cannot be read completely.
pub(crate) fn hidden(domains: &[Domain]) -> Option<String> {
    let hidden = domains.iter().filter(|domain| domain.usage.hidden_processes > 0);
    let names: Vec<&str> = hidden.map(|domain| domain.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "some memory of {} is unknown: without the cgroup memory controller it is read from \
             numa_maps, and some processes have no readable one (CAP_SYS_PTRACE opens those of \
             other users)",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::domain::examples;
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

    #[test]
    fn a_binding_is_compared_with_the_cpus_that_are_effective() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "cpuset").unwrap();
        fs::create_dir(folder.path().join("db")).unwrap();
        let group = Tree::at(folder.path()).unwrap().group("/db").unwrap();
        let file = |name: &str, text: &str| {
            fs::write(folder.path().join("db").join(name), text).unwrap();
        };
        // It is bound to CPUs 2 and 3.
        let record = examples::record();
        let beside = || beside_binding(&group, &record).map(|cpus| cpus.to_string());
        assert_eq!(beside(), None, "no cpuset controller");
        for (own, effective, expected) in [
            ("2-3\n", "2-3\n", None),
            // Another cgroup's partition holds one of them, and both.
            ("2-3\n", "2\n", None),
            ("2-3\n", "0-1,4-7\n", Some("0-1,4-7")),
            ("\n", "0-7\n", None),
        ] {
            file("cpuset.cpus", own);
            file("cpuset.cpus.effective", effective);
            assert_eq!(beside().as_deref(), expected, "{own}{effective}");
        }
    }

    #[test]
    fn a_group_is_found_by_its_bytes_and_as_reports_show_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        let names =
            [&b"a\xff"[..], b"b\\xff", b"c\xfe", b"c\\xfe", b"d\x1b", b"e \"'\\", &[b'x'; 255]];
        for name in names {
            fs::create_dir(folder.path().join(OsStr::from_bytes(name))).unwrap();
        }
        let tree = Tree::at(folder.path()).unwrap();
        let found = |path: &str| {
            let group = group_at(&tree, path).ok()?;
            Some(group.directory().file_name()?.as_bytes().to_vec())
        };
        for (path, expected) in [
            (r"/a\xff", &b"a\xff"[..]),
            // As the kernel writes it, and as JSON does.
            (r"/b\xff", br"b\xff"),
            (r"/b\x5cxff", br"b\xff"),
            (r"/c\xfe", b"c\xfe"),
            (r"/c\x5cxfe", br"c\xfe"),
            ("/d\x1b", b"d\x1b"),
            (r"/d\u{1b}", b"d\x1b"),
            ("/e \"'\\", b"e \"'\\"),
            (&format!("/{}", "x".repeat(255)), &[b'x'; 255]),
        ] {
            assert_eq!(found(path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(found(r"/a\xfe"), None);
    }
}
