//! The processes of the host by mount namespace.

use crate::{
    file_id::FileId,
    mountinfo::{Mount, mounts_of},
    store::SOURCE,
};
use std::{collections::BTreeMap, fs, io, path::PathBuf};

/// One look at all processes.
#[derive(Debug, Default)]
pub(crate) struct Census {
    processes: BTreeMap<u32, FileId>,
    namespaces: BTreeMap<FileId, Vec<u32>>,
}

impl Census {
    /// Looks at `/proc`. Processes that end meanwhile are not in it.
    ///
    /// # Errors
    /// If it cannot be read, for want of descriptors or memory.
    pub(crate) fn take() -> io::Result<Self> {
        Self::default().again()
    }

    /// The same shortly after this look. Processes that were in it count as where they were, which
    /// saves most of the time.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn again(&self) -> io::Result<Self> {
        let mut census = Self::default();
        let entries = fs::read_dir("/proc")?;
        for process in entries.flatten().filter_map(|it| it.file_name().to_str()?.parse().ok()) {
            let known = self.processes.get(&process).copied();
            if let Some(namespace) = known.or_else(|| namespace_of(process)) {
                census.processes.insert(process, namespace);
                census.namespaces.entry(namespace).or_default().push(process);
            }
        }
        Ok(census)
    }

    /// Each namespace and its processes.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (FileId, &[u32])> {
        self.namespaces.iter().map(|(id, processes)| (*id, processes.as_slice()))
    }

    /// The processes in a namespace.
    pub(crate) fn processes(&self, namespace: FileId) -> &[u32] {
        self.namespaces.get(&namespace).map_or(&[], Vec::as_slice)
    }
}

/// The mount namespace of a process, or of another of its threads if the first one has ended.
fn namespace_of(process: u32) -> Option<FileId> {
    let at = |folder: PathBuf| FileId::at(&folder.join("ns/mnt")).ok();
    let folder = PathBuf::from(format!("/proc/{process}"));
    at(folder.clone()).or_else(|| {
        let threads = fs::read_dir(folder.join("task")).ok()?.flatten();
        threads.map(|thread| thread.path()).find_map(at)
    })
}

/// The copies among the mounts of a `mountinfo`, those on top first.
pub(crate) fn copies(mountinfo: &[u8]) -> Vec<Mount> {
    // Lines without the source are not parsed: a host of containers has thousands.
    let source = SOURCE.as_bytes();
    let names_source = |line: &[u8]| line.windows(source.len()).any(|part| part == source);
    let mut found = mounts_of(mountinfo, names_source);
    found.retain(is_copy);
    found.reverse();
    found
}

/// Copies are known by the source of their tmpfs.
fn is_copy(mount: &Mount) -> bool {
    mount.kind == "tmpfs" && mount.source == SOURCE.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_known_by_type_and_source_of_their_mount() {
        let mountinfo = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 22 0:42 /a /usr/lib/a.so ro,nodev - tmpfs nearside-text rw,size=1k\n\
            41 22 0:43 / /tmp rw - tmpfs tmpfs rw\n\
            42 22 8:2 / /disk rw - ext4 nearside-text rw\n";
        let found = copies(mountinfo);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].point, std::path::Path::new("/usr/lib/a.so"));
    }

    #[test]
    fn this_process_is_in_its_namespace() {
        let own = FileId::at("/proc/self/ns/mnt".as_ref()).unwrap();
        assert!(Census::take().unwrap().processes(own).contains(&std::process::id()));
    }

    #[test]
    fn another_look_finds_new_processes_and_keeps_the_namespace_of_the_others() {
        let elsewhere = FileId { device: 1, inode: 2 };
        let own = FileId::at("/proc/self/ns/mnt".as_ref()).unwrap();
        let mut before = Census::default();
        // Number 0 is no process's.
        before.processes.extend([(std::process::id(), elsewhere), (0, elsewhere)]);
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let census = before.again().unwrap();
        assert_eq!(census.processes(elsewhere), [std::process::id()]);
        assert!(census.processes(own).contains(&child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
