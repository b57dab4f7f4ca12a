//! Targets of the crate `linux`: the kernel's files about processes and groups, and Nearside's own
//! records.

use nearside_libvirt::Domain;
use nearside_linux::{
    cgroup::Tree,
    counters,
    facts::Facts,
    guest::{self, Shape},
    memory, migrate,
    store::{Change, Journal, Part, Store},
    usage,
};
use nearside_policy::{
    ByNode, CostModel, Observation, PageSize, PartState, Rehome, Request, home_after,
    later_policy_nodes, outstanding, place, rehome,
};
use nearside_topology::{Cpu, CpuId, MAX_NODES, Node, NodeId, NodeSet, Topology};
use std::{fs, io, path::Path, time::Duration};

/// The sections of an input of [`procfs`], and where the kernel has those files.
const FILES: [(&str, &str); 15] = [
    ("procs", "cgroup/a/cgroup.procs"),
    ("threads", "cgroup/a/cgroup.threads"),
    ("numa_stat", "cgroup/a/memory.numa_stat"),
    ("hugetlb", "cgroup/a/hugetlb.2MB.numa_stat"),
    ("numa_maps", "proc/7/numa_maps"),
    ("maps", "proc/7/maps"),
    ("stat", "proc/7/task/7/stat"),
    ("schedstat", "proc/7/task/7/schedstat"),
    ("numastat", "sys/devices/system/node/node0/numastat"),
    ("mountinfo", "proc/self/mountinfo"),
    ("cgroup", "proc/self/cgroup"),
    ("status", "proc/self/status"),
    ("cmdline", "proc/cmdline"),
    ("meminfo", "proc/meminfo"),
    ("osrelease", "proc/sys/kernel/osrelease"),
];

/// A guest of two cells of one size.
fn two_cells() -> Domain {
    let xml = "<domain><vcpu>2</vcpu><cpu><numa><cell id='0' memory='4'/>\
               <cell id='1' memory='4'/></numa></cpu></domain>";
    Domain::read(xml).expect("a domain")
}

/// The kernel's text files about processes, groups and itself. In an input each starts with a line
/// `@NAME`; `@ROOT` stands for the folder they are unpacked in.
pub fn procfs(input: &[u8]) {
    let sections = sections(input);
    let text = |name: &str| {
        sections.iter().find(|(of, _)| *of == name).map(|(_, text)| String::from_utf8_lossy(text))
    };
    let has = |names: &[&str]| sections.iter().any(|(name, _)| names.contains(name));
    let nodes = NodeSet::from([NodeId(0)]);

    if let Some(numa_maps) = text("numa_maps") {
        let mappings = memory::numa_maps(&numa_maps);
        let once = memory::mapped([mappings.as_slice()]);
        check(&once.all());
        check(&memory::mapped([mappings.as_slice(), mappings.as_slice()]).all());
        let maps = text("maps").unwrap_or_default();
        let cells = guest::memory_by_cell(&Shape::from(&two_cells()), &maps, &numa_maps);
        assert!(cells.values().all(|cell| mappings.contains(&cell.mapping)));
        for (area, page_bytes) in
            migrate::areas_off(&numa_maps, &text("maps").unwrap_or_default(), &nodes)
        {
            // Going through it page by page stays within the address space.
            assert!(!area.is_empty() && page_bytes > 0, "{area:x?} {page_bytes}");
            assert!(area.end.checked_add(page_bytes).is_some(), "{area:x?} {page_bytes}");
        }
    }
    if let Some(numa_stat) = text("numa_stat") {
        memory::numa_stat(&numa_stat, &["anon", "total"]).values().for_each(check);
    }

    let Ok(folder) = unpacked(&sections) else { return };
    let root = folder.path();
    if has(&["procs", "threads", "numa_stat", "hugetlb", "numa_maps", "stat", "schedstat"]) {
        let group = Tree::at(&root.join("cgroup"))
            .and_then(|tree| tree.group("/a"))
            .expect("the group is there");
        let used = usage::usage(
            std::slice::from_ref(&group),
            &root.join("proc"),
            &machine(),
            Duration::ZERO,
        )
        .remove(0);
        check(&used.memory.all());
        assert!(
            used.local_share().is_none_or(|share| (0.0..=1.0 + 1e-9).contains(&share)),
            "{used:?}"
        );
        assert!(used.debt_bytes(&nodes) <= total(&used.memory.own()));
        let mapped = usage::mapped(&group, &root.join("proc"));
        if has(&["numa_maps"]) && !has(&["procs"]) {
            assert_eq!(
                (mapped.processes, mapped.hidden_processes),
                (1, 0),
                "not hidden by what it contains"
            );
        }
        mapped.policies.values().for_each(check);
    }
    if has(&["numastat"]) {
        let read = counters::counters(root, NodeId(0)).unwrap_or_default();
        assert_eq!(read.since(&read), counters::Counters::default());
    }
    if has(&["mountinfo", "cgroup", "status", "cmdline", "meminfo", "osrelease"]) {
        let facts = Facts::collect(root, root, false);
        assert!(facts.cgroups.v2.is_some() || facts.cgroups.own_group.is_none());
        _ = facts.kernel_version();
    }
}

/// A record in the store, or a journal: as another version of Nearside or another program wrote it.
pub fn record(input: &[u8]) {
    journal_in_store(input).expect("only the journal is wrong");
    // Of a domain that was started, and of one that was found.
    for (name, file) in [("x", "x.json"), ("/a", "%2Fa.json")] {
        record_in_store(input, name, file).expect("only the record is wrong");
    }
}

fn record_in_store(input: &[u8], name: &str, file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let folder = folder()?;
    let group = folder.path().join("cgroup/a");
    fs::create_dir_all(&group)?;
    fs::write(folder.path().join("cgroup/cgroup.controllers"), "")?;
    fs::write(group.join("cgroup.events"), "populated 1\n")?;
    let tree = Tree::at(&folder.path().join("cgroup"))?;
    fs::create_dir(folder.path().join("domains"))?;
    fs::write(folder.path().join("domains").join(file), input)?;
    let store = Store::new(folder.path(), "this boot");

    let (alive, broken) = store.records(&tree);
    let record = match store.record(name) {
        Ok(record) => record.expect("it is there"),
        Err(error) => {
            // One that says of itself that its domain has ended is left out, and swept away.
            assert!(alive.is_empty() && broken.len() <= 1);
            assert!(broken.iter().all(|broken| broken.to_string() == error.to_string()));
            store.lock()?.sweep(&tree, None)?;
            assert_eq!(store.record(name).is_err(), !broken.is_empty());
            return Ok(());
        }
    };
    assert!(broken.is_empty());
    // Its file is where changes of it are written.
    assert_eq!(record.name, name);
    for part in record.parts() {
        assert_eq!(part.claim.is_none(), record.found_by.is_some());
        assert_eq!(part.decision.is_none(), record.found_by.is_some());
        if let Some(claim) = &part.claim {
            _ = claim.nodes();
            assert!(
                total(&outstanding(claim, &ByNode::new(), &ByNode::new())) <= claim.total_bytes()
            );
        }
        plan_beside(&record.name, part);
    }

    let locked = store.lock()?;
    locked.put(&record)?;
    assert_eq!(store.record(name)?.as_ref(), Some(&record));
    let mut living = record;
    living.boot_id = store.boot_id().into();
    living.cgroup = "/a".into();
    living.inode = tree.group("/a")?.inode()?;
    locked.put(&living)?;
    locked.sweep(&tree, None)?;
    assert_eq!(store.records(&tree).0, [living.clone()]);
    living.boot_id = "another".into();
    locked.put(&living)?;
    assert!(store.records(&tree).0.is_empty());
    locked.sweep(&tree, None)?;
    assert_eq!(store.record(name)?, None);
    Ok(())
}

fn journal_in_store(input: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    let folder = folder()?;
    let group = folder.path().join("cgroup/a");
    fs::create_dir_all(&group)?;
    fs::write(folder.path().join("cgroup/cgroup.controllers"), "")?;
    let tree = Tree::at(&folder.path().join("cgroup"))?;
    let store = Store::new(folder.path(), "this boot");
    let locked = store.lock()?;
    fs::write(folder.path().join("journal.json"), input)?;
    let Ok(Some(journal)) = locked.unfinished(&tree) else { return Ok(()) };
    locked.end_journal()?;
    locked.begin_journal(&journal)?;
    assert_eq!(locked.unfinished(&tree)?.as_ref(), Some(&journal));
    // A name may be too long for a file's; then none of the changes is made.
    let undo = Journal { changes: journal.changes.iter().map(Change::reversed).collect() };
    if locked.put_all(&journal.changes).is_ok() {
        _ = locked.put_all(&undo.changes);
    }
    Ok(())
}

/// Gives a home to another domain, and another home to the recorded part.
fn plan_beside(name: &str, part: &Part) {
    let domain = PartState {
        id: name.into(),
        home: Some(part.home.clone()),
        claim: part.claim.clone(),
        memory_nodes: part.memory_nodes.clone(),
        resident_bytes: ByNode::from([(NodeId(0), 1 << 20)]),
        ..PartState::default()
    };
    let observation = Observation { parts: vec![domain], ..Observation::of(machine()) };
    let request = Request {
        vcpus: 2,
        memory_bytes: 1 << 20,
        page_size: part.claim.as_ref().map_or(PageSize::Base, |claim| claim.page_size),
        policy: part.home.policy,
        nodes: None,
        near: Vec::new(),
    };
    if let Ok(decision) = place(&request, &observation, &CostModel::default()) {
        assert!(decision.chosen.nodes.is_subset(&observation.topology.node_set()));
    }
    let nodes = NodeSet::from([NodeId(1)]);
    let wish = Rehome {
        part: name.into(),
        affinity: None,
        nodes,
        move_memory: true,
        rate_bytes_per_s: None,
    };
    _ = rehome(&wish, &observation);
    _ = home_after(&wish, Some(&part.home));
    if let Some(claim) = &part.claim {
        _ = later_policy_nodes(&part.home, claim, &observation.topology);
    }
}

/// Bytes on nodes that a machine can have, such that they can go into sets next.
fn check(by_node: &ByNode) {
    assert!(by_node.keys().all(|node| node.0 < MAX_NODES), "{by_node:?}");
    assert!(by_node.keys().copied().collect::<NodeSet>().len() == by_node.len());
}

fn total(by_node: &ByNode) -> u64 {
    by_node.values().fold(0, |sum, &amount| sum.saturating_add(amount))
}

/// Two nodes with a CPU each.
fn machine() -> Topology {
    let node = |id| Node { id: NodeId(id), memory_bytes: 1 << 30, ..Node::default() };
    let cpus = vec![Cpu::new(CpuId(0), NodeId(0)), Cpu::new(CpuId(1), NodeId(1))];
    Topology { nodes: vec![node(0), node(1)], cpus, ..Topology::default() }
}

/// The files of an input by name; text before the first is ignored.
fn sections(input: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut sections = Vec::new();
    for line in input.split_inclusive(|&byte| byte == b'\n') {
        if let Some(name) = line.strip_prefix(b"@") {
            let known = FILES.iter().find(|(file, _)| name.trim_ascii_end() == file.as_bytes());
            sections.extend(known.map(|&(file, _)| (file, Vec::new())));
        } else if let Some((_, text)) = sections.last_mut() {
            text.extend_from_slice(line);
        }
    }
    sections
}

fn unpacked(sections: &[(&str, Vec<u8>)]) -> io::Result<tempfile::TempDir> {
    let folder = folder()?;
    let root = folder.path();
    let file = |path: &str, content: &[u8]| {
        let path = root.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, content)
    };
    file("cgroup/cgroup.controllers", b"")?;
    file("cgroup/a/cgroup.procs", b"7\n")?;
    file("cgroup/a/cgroup.threads", b"7\n")?;
    for (name, text) in sections {
        let Some((_, path)) = FILES.iter().find(|(file, _)| file == name) else { continue };
        file(path, &with_root(text, root))?;
    }
    Ok(folder)
}

fn with_root(text: &[u8], root: &Path) -> Vec<u8> {
    const ROOT: &[u8] = b"@ROOT";
    match text.windows(ROOT.len()).position(|window| window == ROOT) {
        Some(at) => {
            [&text[..at], root.as_os_str().as_encoded_bytes(), &text[at + ROOT.len()..]].concat()
        }
        None => text.to_vec(),
    }
}

/// A folder in memory where the system has one for that.
fn folder() -> io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}
