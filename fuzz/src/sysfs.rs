//! The target `sysfs`: a machine's files of `/sys` and `/proc`.
//!
//! An input is an archive as in `crates/topology/fixtures`. It is unpacked below a folder of its
//! own and must not reach beyond it; and it must be small, for the fuzzer to be fast.

use nearside_topology::{
    CpuSet, MAX_NODES, Topology,
    fake::{self, FakeSpec},
    sysfs,
};
use std::{fs, io, os::unix::fs::symlink, path::Path};

/// The number of files and links in an archive.
const MAX_ENTRIES: usize = 64;

/// The number of CPUs in a list: a machine has ten files for each.
const MAX_CPUS: usize = 16;

/// An entry of an archive.
enum Entry {
    File(String),
    Link(String),
}

/// For any files, the machine must be one that the rest of Nearside can rely on.
pub fn sysfs(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Some(entries) = archive(&text) else { return };
    let Ok(root) = folder() else { return };
    for (path, entry) in &entries {
        // A file where another has a folder: the first one stays.
        let _ = unpack(&root.path().join(path), entry);
    }
    let Ok((machine, notes)) = sysfs::read(root.path()) else { return };
    for note in &notes {
        assert!(!note.to_string().contains('\n'), "one line: {note:?}");
    }
    check(&machine);
    for spec in ["3", "2U"] {
        let Ok(spec) = spec.parse::<FakeSpec>() else { continue };
        let Ok(faked) = fake::fake(&machine, &spec) else { continue };
        assert_eq!(faked.memory_bytes(), machine.memory_bytes());
        check(&faked);
    }
}

fn check(machine: &Topology) {
    let is_known = |node| machine.node(node).is_some();
    assert!((1..=MAX_NODES as usize).contains(&machine.nodes.len()));
    assert!(
        machine.nodes.is_sorted_by(|a, b| a.id < b.id)
            && machine.nodes.iter().all(|node| node.id.0 < MAX_NODES)
    );
    assert!(machine.cpus.is_sorted_by(|a, b| a.id < b.id));
    assert!(machine.cpus.iter().all(|cpu| cpu.node.is_none_or(is_known) && cpu.core <= cpu.id));
    assert!(
        machine
            .nodes
            .iter()
            .all(|node| machine.distances.row(node.id).count() == machine.nodes.len())
    );
    assert!(machine.performance.iter().all(|of| is_known(of.initiator) && is_known(of.target)));
    assert!(machine.devices.iter().all(|device| device.node.is_none_or(is_known)));
    assert!(machine.nodes.iter().all(|node| node.zones.iter().all(|zone| zone.managed_bytes > 0)));
    assert!(
        machine.nodes.iter().all(|node| node.huge_pages.is_sorted_by_key(|pool| pool.page_bytes))
    );
    assert!(machine.nodes.iter().map(|node| node.id).eq(machine.distances.nodes().iter().copied()));
}

/// A folder in memory where the system has one for that.
fn folder() -> io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

fn unpack(path: &Path, entry: &Entry) -> io::Result<()> {
    let make = || match entry {
        Entry::File(content) => fs::write(path, content),
        Entry::Link(target) => symlink(target, path),
    };
    // Most have their folder already.
    make().or_else(|_| {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        make()
    })
}

/// The entries of an archive that is small and keeps to its folder.
fn archive(text: &str) -> Option<Vec<(String, Entry)>> {
    let mut entries = Vec::new();
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    while let Some(line) = lines.next() {
        if let Some((path, target)) = line.split_once(" -> ") {
            entries.push((path.to_owned(), Entry::Link(target.to_owned())));
        } else if let Some(pattern) = line.strip_suffix(':') {
            let mut content = String::new();
            while let Some(more) = lines.next_if(|next| next.starts_with('\t')) {
                content.extend([more.trim_start_matches('\t'), "\n"]);
            }
            files(pattern, &content, &mut entries)?;
        } else if let Some((pattern, content)) = line.split_once(": ") {
            files(pattern, &format!("{content}\n"), &mut entries)?;
        }
        if entries.len() > MAX_ENTRIES {
            return None;
        }
    }
    let links: Vec<_> =
        entries.iter().filter(|(_, entry)| matches!(entry, Entry::Link(_))).collect();
    // Nothing is written behind a link, so every folder is at its path, and links can be checked to
    // stay inside.
    let is_behind =
        |path: &str, link: &str| path.strip_prefix(link).is_some_and(|rest| rest.starts_with('/'));
    let stays = |(path, entry): &(String, Entry)| {
        is_plain(path)
            && !links.iter().any(|(link, _)| is_behind(path, link))
            && match entry {
                Entry::File(_) => true,
                Entry::Link(target) => {
                    let up = target.split('/').take_while(|&part| part == "..").count();
                    let down = target.get(up * 3..).unwrap_or("x");
                    up < path.split('/').count() && is_plain(down)
                }
            }
    };
    entries.iter().all(stays).then_some(entries)
}

/// The same file for each number of the list in braces, if there is one.
fn files(pattern: &str, content: &str, entries: &mut Vec<(String, Entry)>) -> Option<()> {
    if content.parse::<CpuSet>().is_ok_and(|list| list.len() > MAX_CPUS) {
        return None;
    }
    let file = || Entry::File(content.to_owned());
    match pattern.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        None => entries.push((pattern.to_owned(), file())),
        Some((before, (list, after))) => {
            let numbers =
                list.parse::<CpuSet>().ok().filter(|numbers| numbers.len() <= MAX_CPUS)?;
            entries
                .extend(numbers.iter().map(|number| (format!("{before}{number}{after}"), file())));
        }
    }
    Some(())
}

/// Whether a path is made of names alone.
fn is_plain(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}
