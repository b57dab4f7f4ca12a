//! The processes that use copies.

use crate::{
    file_id::FileId,
    remap::{Segment, maps, segments_at},
    whole,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::Range,
    path::PathBuf,
};

/// So many descriptors of a process are looked at to count users. A server may have a hundred
/// thousand, and writers wait meanwhile.
const COUNTED_DESCRIPTORS: usize = 1024;

/// For each file on `devices` the number of these processes that map it or have it open, as far as
/// their first descriptors tell. A process that ends meanwhile, or may not be looked at, does not
/// count.
pub(crate) fn users(
    processes: impl Iterator<Item = u32>,
    devices: &BTreeSet<u64>,
) -> BTreeMap<FileId, u32> {
    let mut users = BTreeMap::new();
    let uses = |process| used_of_first(process, devices, COUNTED_DESCRIPTORS).into_keys();
    for file in processes.flat_map(uses) {
        *users.entry(file).or_default() += 1;
    }
    users
}

/// Whether a process uses any of some files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Use {
    /// It maps one, or has one open. These are all its segments; those of files may lack
    /// names.
    Some(Vec<Segment>),
    /// It does neither.
    None,
    /// It has ended.
    Ended,
}

impl Use {
    pub(crate) fn of(files: &BTreeSet<FileId>, process: u32) -> Self {
        // Descriptors first: a loader opens a copy, maps it and closes it.
        let opens_one = has_open(process, files);
        let Some(segments) = segments_of(process) else {
            return if is_kernel_thread(process) { Self::None } else { Self::Ended };
        };
        let maps_one = segments.iter().filter_map(file).any(|file| files.contains(&file));
        if maps_one || opens_one { Self::Some(segments) } else { Self::None }
    }
}

/// The segments of a process, which another of its threads has if the first one has ended.
fn segments_of(process: u32) -> Option<Vec<Segment>> {
    let at = |folder: PathBuf| segments_at(&folder).ok().filter(|segments| !segments.is_empty());
    let folder = PathBuf::from(format!("/proc/{process}"));
    at(folder.clone()).or_else(|| {
        let threads = fs::read_dir(folder.join("task")).ok()?.flatten();
        threads.map(|thread| thread.path()).find_map(at)
    })
}

/// By its flags in `/proc/PID/stat`, the seventh field behind the name.
fn is_kernel_thread(process: u32) -> bool {
    /// `include/linux/sched.h`
    const PF_KTHREAD: u64 = 0x0020_0000;
    let stat = whole::read(format!("/proc/{process}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let flags = fields.split(' ').nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

fn has_open(process: u32, files: &BTreeSet<FileId>) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let mut open = descriptors.flatten().filter_map(|it| FileId::at(&it.path()).ok());
    open.any(|file| files.contains(&file))
}

/// The files that a process maps by mounts of them alone that are attached nowhere.
pub(crate) fn nameless(process: u32) -> BTreeSet<FileId> {
    let mut segments = maps(&whole::read(format!("/proc/{process}/maps")).unwrap_or_default());
    segments.retain(|segment| segment.is_named("/"));
    files(segments)
}

/// The files on `devices` that a process maps or has open, each with a link of `/proc` to it.
pub(crate) fn used_at(process: u32, devices: &BTreeSet<u64>) -> BTreeMap<FileId, PathBuf> {
    used_of_first(process, devices, usize::MAX)
}

/// The same, of so many descriptors.
fn used_of_first(
    process: u32,
    devices: &BTreeSet<u64>,
    descriptors: usize,
) -> BTreeMap<FileId, PathBuf> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let segments = maps(&whole::read(folder.join("maps")).unwrap_or_default());
    let mapped = segments.iter().filter_map(|segment| {
        let Range { start, end } = segment.addresses;
        Some((file(segment)?, folder.join(format!("map_files/{start:x}-{end:x}"))))
    });
    let all = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
    let open = all
        .take(descriptors)
        .filter_map(|entry| Some((FileId::at(&entry.path()).ok()?, entry.path())));
    mapped.chain(open).filter(|(file, _)| devices.contains(&file.device)).collect()
}

/// The files of segments. Those on btrfs and overlayfs have other devices there than elsewhere;
/// copies lie on a tmpfs.
fn files(segments: Vec<Segment>) -> BTreeSet<FileId> {
    segments.iter().filter_map(file).collect()
}

fn file(segment: &Segment) -> Option<FileId> {
    let file = segment.file?;
    Some(FileId { device: rustix::fs::makedev(file.major, file.minor), inode: file.inode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn an_open_file_is_used_and_a_closed_one_is_not() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        let id = FileId::of(&file).unwrap();
        let uses = || Use::of(&[id].into(), std::process::id());
        assert!(matches!(uses(), Use::Some(segments) if !segments.is_empty()));
        drop(file);
        assert_eq!(uses(), Use::None);
    }

    #[test]
    fn kernel_threads_use_nothing_and_a_process_that_has_ended_is_no_such_thread() {
        // kthreadd(8), where this process sees it.
        if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(Use::of(&BTreeSet::new(), 2), Use::None);
        }
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let id = rustix::process::WaitId::Pid(rustix::process::Pid::from_child(&child));
        rustix::process::waitid(id, ended).unwrap();
        assert_eq!(Use::of(&BTreeSet::new(), child.id()), Use::Ended);
        child.wait().unwrap();
    }

    #[test]
    fn files_in_use_are_found_by_their_device_with_a_link_to_each() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        let id = FileId::of(&file).unwrap();
        let used = used_at(std::process::id(), &[id.device].into());
        assert_eq!(FileId::at(&used[&id]).unwrap(), id);
        assert!(used_at(std::process::id(), &BTreeSet::new()).is_empty());
    }

    #[test]
    fn a_process_that_maps_a_file_and_one_that_has_it_open_are_its_users() {
        let own = std::process::id();
        let text = fs::read("/proc/self/maps").unwrap();
        // The device may differ from that of stat(2).
        let program = file(&maps(&text)[0]).unwrap();
        assert_eq!(users([own].into_iter(), &[program.device].into())[&program], 1);
        let open = tempfile::tempfile().unwrap();
        let id = FileId::of(&open).unwrap();
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("infinity").stdin(open).spawn().unwrap();
        // It keeps the file open in this process.
        drop(command);
        assert_eq!(users([own, child.id()].into_iter(), &[id.device].into())[&id], 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
