//! Cgroups that a configuration names by patterns such as `machine.slice/*`.

use crate::{
    cgroup::{Cgroup, Tree},
    escape,
};
use globset::{GlobBuilder, GlobMatcher};
use std::{fs, os::unix::fs::DirEntryExt};

/// Patterns of cgroup paths, one glob a level, so that none crosses a `/`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Patterns(Vec<Pattern>);

#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    levels: Vec<GlobMatcher>,
    /// True if it names groups in full, on its last level.
    is_name: bool,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

/// Characters that make a name a glob.
const GLOB: [char; 4] = ['*', '?', '[', '{'];

/// An invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{pattern:?} is no pattern of cgroups: {why}. Expected one name or glob a level, \
         as in machine.slice/*"
)]
pub struct PatternError {
    /// The pattern.
    pub pattern: String,
    /// The reason.
    pub why: String,
}

/// A group that a pattern matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) group: Cgroup,
    pub(super) inode: u64,
    pub(super) pattern: String,
    /// True if the pattern names the group in full.
    pub(super) by_name: bool,
}

impl Patterns {
    /// Reads patterns. The first level must begin with a name, because the groups on that level are
    /// the host's own: its slices, and the processes that run the host.
    ///
    /// # Errors
    /// The first invalid pattern.
    pub fn parse<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Result<Self, PatternError> {
        texts
            .into_iter()
            .map(|text| Pattern::parse(text.as_ref()))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// True if this is the text of one of the patterns.
    pub(super) fn has(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.text == text)
    }

    /// The groups of `tree` that they match, with or without processes. A group that two patterns
    /// match counts for the first.
    pub(super) fn find(&self, tree: &Tree) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        for pattern in &self.0 {
            if let Ok(root) = tree.group("/") {
                descend(&root, &pattern.levels, &mut |group, inode| {
                    found.push(Found {
                        group,
                        inode,
                        pattern: pattern.text.clone(),
                        by_name: pattern.is_name,
                    });
                });
            }
        }
        found.sort_by(|a, b| a.group.path().cmp(b.group.path()));
        found.dedup_by(|a, b| a.group.path() == b.group.path());
        found
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, PatternError> {
        let wrong = |why: &str| PatternError { pattern: text.into(), why: why.into() };
        let level = |level: &str| match level {
            "" => Err(wrong("a level is empty")),
            "." | ".." => Err(wrong("it has \"..\" or \".\" in it")),
            _ if level.contains("**") => Err(wrong("** would cross levels")),
            // Unit names contain literal backslashes: machine-qemu\x2d1.scope.
            _ => match GlobBuilder::new(level).backslash_escape(false).build() {
                Ok(glob) => Ok(glob.compile_matcher()),
                Err(error) => Err(wrong(&error.kind().to_string())),
            },
        };
        if text.strip_prefix('/').unwrap_or(text).starts_with(GLOB) {
            return Err(wrong(
                "it could name every group of the host: it has to begin with a name",
            ));
        }
        let levels = text
            .strip_prefix('/')
            .unwrap_or(text)
            .split('/')
            .map(level)
            .collect::<Result<_, _>>()?;
        let is_name = !text.rsplit('/').next().unwrap_or(text).contains(GLOB);
        Ok(Self { text: text.into(), levels, is_name })
    }
}

fn descend(group: &Cgroup, levels: &[GlobMatcher], each: &mut dyn FnMut(Cgroup, u64)) {
    let Some((level, below)) = levels.split_first() else { return };
    let Ok(entries) = fs::read_dir(group.directory()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named = level.is_match(&name) || level.is_match(escape::text(&name));
        if !is_named || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let child = group.child(&name);
        match below {
            [] => each(child, entry.ino()),
            below => descend(&child, below, each),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_matched_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        for path in [
            "machine.slice/machine-qemu\\x2d1.scope/libvirt/vcpu0",
            "machine.slice/libpod-1.scope",
            "machine.slice.wants/x",
            "kubepods.slice/kubepods-a.slice/pod1",
            "kubepods.slice/kubepods-b.slice/pod2",
            "kubepods.slice/pod3",
        ] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        fs::write(folder.path().join("machine.slice/cgroup.procs"), "").unwrap();
        let tree = Tree::at(folder.path()).unwrap();
        let found = |patterns: &[&str]| {
            let patterns = Patterns::parse(patterns).unwrap();
            let found = patterns.find(&tree);
            assert!(found.iter().all(|found| found.group.inode().unwrap() == found.inode));
            found
                .iter()
                .map(|found| format!("{} {}", found.group.path(), found.pattern))
                .collect::<Vec<_>>()
        };
        let machines = ["/machine.slice/libpod-1.scope", "/machine.slice/machine-qemu\\x2d1.scope"];
        assert_eq!(
            found(&["machine.slice/*"]),
            machines.map(|path| format!("{path} machine.slice/*"))
        );
        assert_eq!(
            found(&["/machine.slice/machine-qemu\\x2d*.scope"]),
            ["/machine.slice/machine-qemu\\x2d1.scope /machine.slice/machine-qemu\\x2d*.scope"]
        );
        assert_eq!(found(&["kubepods.slice/*/*"]).len(), 2);
        assert_eq!(found(&["kubepods.slice/*/pod{1,3}"]).len(), 1);
        assert_eq!(
            found(&["k*.slice/pod3", "kubepods.slice/pod?"]),
            ["/kubepods.slice/pod3 k*.slice/pod3"]
        );
        assert_eq!(found(&["none/*"]).len() + found(&[]).len(), 0);
    }

    #[test]
    fn names_that_are_no_text_match() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        let names = [&b"\xff"[..], br"\xff", &[0xfe; 255]].map(OsStr::from_bytes);
        for name in names {
            fs::create_dir_all(folder.path().join("jobs").join(name)).unwrap();
        }
        let tree = Tree::at(folder.path()).unwrap();
        let found = |pattern: &str| {
            let found = Patterns::parse([pattern]).unwrap().find(&tree);
            found.iter().map(|found| found.group.path().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found("jobs/*").len(), 3);
        assert_eq!(found(r"jobs/\x5cxff"), [r"/jobs/\x5cxff"]);
        assert!(found(r"jobs/\xff").contains(&r"/jobs/\xff".to_owned()));
    }

    #[test]
    fn invalid_patterns_are_named() {
        for (pattern, why) in [
            ("", "a level is empty"),
            ("a//b", "a level is empty"),
            ("a/", "a level is empty"),
            ("a/../b", "\"..\""),
            ("a/**", "cross levels"),
            ("a/[x", "unclosed"),
            ("*", "begin with a name"),
            ("*/*", "begin with a name"),
            ("*.slice", "begin with a name"),
            ("/?*", "begin with a name"),
            ("[a-z]*/x", "begin with a name"),
            ("{system,user}.slice/*", "begin with a name"),
        ] {
            let said = Patterns::parse(["b/*", pattern]).unwrap_err().to_string();
            assert!(said.contains(why) && said.contains(&format!("{pattern:?}")), "{said}");
        }
    }
}
