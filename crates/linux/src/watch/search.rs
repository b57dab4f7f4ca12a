//! The search for groups that patterns match. It is repeated in each interval, and most times finds
//! what it found before. No file of a group tells whether others were made or removed below it, so
//! each folder is listed every time; its names are compared with patterns only if the list has
//! changed.

use super::patterns::Patterns;
use crate::cgroup::{Cgroup, Tree};
use rustix::fs::{FileType, Mode, OFlags, RawDir, open};
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt, path::Path};

/// The room for one part of a list: about 800 groups.
const LIST_BYTES: usize = 32 << 10;

/// A group that a pattern matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) group: Cgroup,
    pub(super) inode: u64,
    pub(super) pattern: String,
    /// True if the pattern names the group in full.
    pub(super) by_name: bool,
}

/// A search, for the same patterns and tree each time.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// None before the first look.
    root: Option<Folder>,
    list: Vec<u8>,
    buffer: Vec<u8>,
}

/// A folder that groups are searched in.
#[derive(Debug)]
struct Folder {
    group: Cgroup,
    /// The levels of the groups in it.
    levels: Vec<usize>,
    /// The groups in it; none before the first look.
    list: Option<Vec<u8>>,
    found: Vec<Found>,
    below: Vec<Folder>,
}

impl Search {
    /// Searches once more. True if the groups found are, or may be, others than before.
    pub(super) fn look(&mut self, patterns: &Patterns, tree: &Tree) -> bool {
        if self.root.is_none() {
            let root = tree.group("/").ok();
            self.root = root.map(|group| Folder::new(group, patterns.first_levels()));
        }
        let Self { root, list, buffer } = self;
        buffer.reserve(LIST_BYTES);
        root.as_mut().is_some_and(|root| root.look(patterns, list, buffer))
    }

    /// The groups that were found, with or without processes, in the order of their paths. A group
    /// that two patterns match counts for the first.
    pub(super) fn found(&self) -> Vec<Found> {
        let mut found = Vec::new();
        let mut left: Vec<&Folder> = self.root.iter().collect();
        while let Some(folder) = left.pop() {
            found.extend(folder.found.iter().cloned());
            left.extend(&folder.below);
        }
        found.sort_by(|a, b| a.group.path().cmp(b.group.path()));
        found
    }
}

impl Folder {
    fn new(group: Cgroup, levels: Vec<usize>) -> Self {
        Self { group, levels, list: None, found: Vec::new(), below: Vec::new() }
    }

    /// Looks at this folder and those below. True if anything has changed. `list` and `buffer` are
    /// room for lists.
    fn look(&mut self, patterns: &Patterns, list: &mut Vec<u8>, buffer: &mut Vec<u8>) -> bool {
        list.clear();
        if !self.levels.is_empty() && read_list(self.group.directory(), list, buffer).is_err() {
            // The folder has gone.
            list.clear();
        }
        let mut has_changed = self.list.as_ref() != Some(list);
        if has_changed {
            self.compare(patterns, list);
            self.list = Some(list.clone());
        }
        for folder in &mut self.below {
            has_changed |= folder.look(patterns, list, buffer);
        }
        has_changed
    }

    /// Compares the names in a list with the patterns.
    fn compare(&mut self, patterns: &Patterns, list: &[u8]) {
        self.found.clear();
        self.below.clear();
        for (inode, name) in entries(list) {
            let Some(matching) = patterns.matching(&self.levels, name) else { continue };
            let group = self.group.child(name);
            if !matching.below.is_empty() {
                self.below.push(Self::new(group.clone(), matching.below));
            }
            if let Some((pattern, by_name)) = matching.pattern {
                self.found.push(Found { group, inode, pattern: pattern.into(), by_name });
            }
        }
    }
}

/// Reads the groups in a folder: of each the inode, and the name, which has no 0 in it.
fn read_list(folder: &Path, list: &mut Vec<u8>, buffer: &mut Vec<u8>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = open(folder, flags, Mode::empty())?;
    let mut entries = RawDir::new(file, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes_with_nul();
        if entry.file_type() == FileType::Directory && ![&b".\0"[..], b"..\0"].contains(&name) {
            list.extend(entry.ino().to_ne_bytes());
            list.extend(name);
        }
    }
    Ok(())
}

/// The inodes and names in a list.
fn entries(mut list: &[u8]) -> impl Iterator<Item = (u64, &OsStr)> {
    std::iter::from_fn(move || {
        let (inode, rest) = list.split_first_chunk()?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        list = &rest[end + 1..];
        Some((u64::from_ne_bytes(*inode), OsStr::from_bytes(&rest[..end])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_found_stands_until_a_folder_changes() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("a/1/x")).unwrap();
        fs::create_dir_all(at("a/2")).unwrap();
        fs::create_dir_all(at("b")).unwrap();
        let tree = Tree::at(folder.path()).unwrap();
        let patterns = Patterns::parse(["a/*", "a/*/x"]).unwrap();
        let mut search = Search::default();
        let mut look = || {
            let has_changed = search.look(&patterns, &tree);
            let found = search.found();
            assert!(found.iter().all(|found| found.group.inode().unwrap() == found.inode));
            let paths: Vec<_> = found.iter().map(|found| found.group.path()).collect();
            (has_changed, paths.join(" "))
        };
        assert_eq!(look(), (true, "/a/1 /a/1/x /a/2".into()));
        assert_eq!(look(), (false, "/a/1 /a/1/x /a/2".into()));
        fs::write(at("a/1/cpu.stat"), "").unwrap();
        fs::create_dir(at("b/1")).unwrap();
        assert_eq!(look(), (false, "/a/1 /a/1/x /a/2".into()), "no pattern names files or b");
        fs::create_dir(at("a/2/x")).unwrap();
        assert_eq!(look(), (true, "/a/1 /a/1/x /a/2 /a/2/x".into()));
        // As many groups as before, one of them another of the same path.
        fs::create_dir(at("b/2")).unwrap();
        fs::remove_dir_all(at("a/2")).unwrap();
        fs::rename(at("b/2"), at("a/2")).unwrap();
        assert_eq!(look(), (true, "/a/1 /a/1/x /a/2".into()));
        fs::remove_dir_all(at("a")).unwrap();
        assert_eq!(look(), (true, String::new()));
        assert_eq!(look(), (false, String::new()));
    }

    #[test]
    fn a_list_that_takes_several_reads_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        for number in 0..1500 {
            fs::create_dir_all(folder.path().join(format!("a/{number:064}"))).unwrap();
        }
        let tree = Tree::at(folder.path()).unwrap();
        let mut search = Search::default();
        assert!(search.look(&Patterns::parse(["a/*"]).unwrap(), &tree));
        assert_eq!(search.found().len(), 1500);
    }
}
