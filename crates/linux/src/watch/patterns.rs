//! Cgroups that a configuration names by patterns such as `machine.slice/*`.

use crate::escape;
use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt,
};

/// The most patterns: each interval compares the groups of the host with all of them.
const MAX_PATTERNS: usize = 1024;

/// The longest pattern, in bytes: no path of a cgroup is longer.
const MAX_PATTERN_BYTES: usize = 4096;

/// Patterns of cgroup paths, one glob a level, so that none crosses a `/`.
#[derive(Clone, Default)]
pub struct Patterns {
    texts: Vec<String>,
    /// The same, to be searched.
    known: BTreeSet<String>,
    /// The patterns as a tree of levels, so that each group is compared once. The first level is
    /// that of the root; an empty list has no patterns.
    levels: Vec<Level>,
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Patterns").field(&self.texts).finish()
    }
}

impl PartialEq for Patterns {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for Patterns {}

/// The names and globs that may follow the same beginning of a pattern.
#[derive(Debug, Clone, Default)]
struct Level {
    /// By name, the next level.
    names: BTreeMap<String, usize>,
    /// All globs in one matcher.
    matcher: GlobSet,
    /// By glob, the next level, in the order of the matcher.
    globs: Vec<(Glob, usize)>,
    /// The first pattern that ends here.
    ends: Option<End>,
}

/// The end of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    /// The number of the pattern.
    pattern: usize,
    /// True if it names groups in full, on its last level.
    is_name: bool,
}

/// Characters that make a name a glob.
const GLOB: [char; 4] = ['*', '?', '[', '{'];

/// An invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// One pattern is wrong.
    #[error(
        "{pattern:?} is no pattern of cgroups: {why}. Expected one name or glob a level, \
         as in machine.slice/*"
    )]
    Invalid {
        /// The pattern, or its beginning.
        pattern: String,
        /// The reason.
        why: String,
    },
    /// There are too many of them.
    #[error(
        "{0} patterns of cgroups: at most {MAX_PATTERNS} are possible. One glob names all groups \
         of a slice, as in machine.slice/*"
    )]
    TooMany(usize),
}

/// The answer of patterns to the name of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Match<'p> {
    /// The pattern that matches it, and whether that names it in full.
    pub(super) pattern: Option<(&'p str, bool)>,
    /// The levels of the groups below it; none if no pattern goes on there.
    pub(super) below: Vec<usize>,
}

impl Patterns {
    /// Reads patterns. The first level must begin with a name, because the groups on that level are
    /// the host's own: its slices, and the processes that run the host.
    ///
    /// # Errors
    /// The first invalid pattern, or that there are more than 1,024.
    pub fn parse<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Result<Self, PatternError> {
        let texts: Vec<String> = texts.into_iter().map(|text| text.as_ref().to_owned()).collect();
        if texts.len() > MAX_PATTERNS {
            return Err(PatternError::TooMany(texts.len()));
        }
        let mut levels = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            add(&mut levels, number, text)?;
        }
        for level in &mut levels {
            level.compile(&texts)?;
        }
        Ok(Self { known: texts.iter().cloned().collect(), texts, levels })
    }

    /// True if this is the text of one of the patterns.
    pub(super) fn has(&self, text: &str) -> bool {
        self.known.contains(text)
    }

    /// The levels of the groups below the root; none without patterns.
    pub(super) fn first_levels(&self) -> Vec<usize> {
        (0..self.levels.len().min(1)).collect()
    }

    /// The answer to a group of this name, among groups of these levels. None if no pattern matches
    /// it or goes on below it.
    pub(super) fn matching(&self, levels: &[usize], name: &OsStr) -> Option<Match<'_>> {
        let next: BTreeSet<usize> =
            levels.iter().flat_map(|&level| self.levels[level].after(name)).collect();
        let end = next.iter().filter_map(|&level| self.levels[level].ends).min();
        let pattern = end.map(|end| (self.texts[end.pattern].as_str(), end.is_name));
        let is_any = !next.is_empty();
        let below = next.into_iter().filter(|&level| self.levels[level].has_more()).collect();
        is_any.then_some(Match { pattern, below })
    }
}

impl Level {
    /// The levels after a group of this name, which matches as it is or as it is printed.
    fn after(&self, name: &OsStr) -> BTreeSet<usize> {
        let printed = escape::text(name);
        let names = [name.to_str(), Some(&*printed)].into_iter().flatten();
        let named = names.filter_map(|name| self.names.get(name).copied());
        let matched = match self.globs.is_empty() {
            true => Vec::new(),
            false => [self.matcher.matches(name), self.matcher.matches(&*printed)].concat(),
        };
        let globs = matched.into_iter().filter_map(|glob| Some(self.globs.get(glob)?.1));
        named.chain(globs).collect()
    }

    fn has_more(&self) -> bool {
        !self.names.is_empty() || !self.globs.is_empty()
    }

    /// Makes one matcher of the globs.
    fn compile(&mut self, texts: &[String]) -> Result<(), PatternError> {
        let mut builder = GlobSetBuilder::new();
        for (glob, _) in &self.globs {
            builder.add(glob.clone());
        }
        self.matcher = builder.build().map_err(|error| {
            let glob = error.glob().or(self.globs.first().map(|(glob, _)| glob.glob()));
            let glob = glob.unwrap_or_default();
            let text = texts.iter().find(|text| text.split('/').any(|level| level == glob));
            invalid(text.map_or(glob, String::as_str), &error.kind().to_string())
        })?;
        Ok(())
    }
}

/// Adds a pattern to the tree of levels.
fn add(levels: &mut Vec<Level>, number: usize, text: &str) -> Result<(), PatternError> {
    if text.len() > MAX_PATTERN_BYTES {
        let why = format!("it has {} bytes, at most {MAX_PATTERN_BYTES} are possible", text.len());
        return Err(invalid(text, &why));
    }
    let path = text.strip_prefix('/').unwrap_or(text);
    if path.starts_with(GLOB) {
        let why = "it could name every group of the host: it has to begin with a name";
        return Err(invalid(text, why));
    }
    if levels.is_empty() {
        levels.push(Level::default());
    }
    let mut at = 0;
    for name in path.split('/') {
        let glob = glob(name).map_err(|why| invalid(text, &why))?;
        let is_name = !name.contains(GLOB);
        let globs = &levels[at].globs;
        let known = match is_name {
            true => levels[at].names.get(name).copied(),
            false => globs.iter().find(|(known, _)| known.glob() == name).map(|(_, next)| *next),
        };
        at = match known {
            Some(next) => next,
            None => {
                let next = levels.len();
                levels.push(Level::default());
                match is_name {
                    true => drop(levels[at].names.insert(name.into(), next)),
                    false => levels[at].globs.push((glob, next)),
                }
                next
            }
        };
    }
    let is_name = !path.rsplit('/').next().unwrap_or(path).contains(GLOB);
    levels[at].ends.get_or_insert(End { pattern: number, is_name });
    Ok(())
}

/// Reads one level of a pattern.
fn glob(level: &str) -> Result<Glob, String> {
    match level {
        "" => Err("a level is empty".into()),
        "." | ".." => Err("it has \"..\" or \".\" in it".into()),
        _ if level.contains("**") => Err("** would cross levels".into()),
        // Unit names contain literal backslashes: machine-qemu\x2d1.scope.
        _ => GlobBuilder::new(level)
            .backslash_escape(false)
            .build()
            .map_err(|error| error.kind().to_string()),
    }
}

fn invalid(text: &str, why: &str) -> PatternError {
    const MAX_SHOWN: usize = 80;
    let mut pattern: String = text.chars().take(MAX_SHOWN).collect();
    if pattern.len() < text.len() {
        pattern += "...";
    }
    PatternError::Invalid { pattern, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::Tree,
        watch::search::{Found, Search},
    };
    use std::fs;

    /// The groups of `tree` that patterns match.
    fn find(patterns: &Patterns, tree: &Tree) -> Vec<Found> {
        let mut search = Search::default();
        assert!(search.look(patterns, tree) && !search.look(patterns, tree));
        search.found()
    }

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
            let found = find(&patterns, &tree);
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
            let found = find(&Patterns::parse([pattern]).unwrap(), &tree);
            found.iter().map(|found| found.group.path().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(found("jobs/*").len(), 3);
        assert_eq!(found(r"jobs/\x5cxff"), [r"/jobs/\x5cxff"]);
        assert!(found(r"jobs/\xff").contains(&r"/jobs/\xff".to_owned()));
    }

    #[test]
    fn as_many_patterns_as_possible_are_matched_in_one_pass() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        for number in 0..200 {
            fs::create_dir_all(folder.path().join(format!("a.slice/{number}.scope/x"))).unwrap();
        }
        let tree = Tree::at(folder.path()).unwrap();
        // A literal, a glob by its beginning, one by its end, and one of neither.
        let patterns = (0..MAX_PATTERNS).map(|number| match number % 4 {
            0 => format!("a.slice/{number}.scope"),
            1 => format!("a.slice/{number}.*"),
            2 => format!("a.slice/*-{number}"),
            _ => format!("a.slice/[{}]?{number}*/x", number % 10),
        });
        let patterns = Patterns::parse(patterns).unwrap();
        let found = find(&patterns, &tree);
        assert_eq!(found.len(), 100, "{found:?}");
        let group = |path: &str| found.iter().find(|found| found.group.path() == path).unwrap();
        assert!(group("/a.slice/4.scope").by_name && !group("/a.slice/5.scope").by_name);
        assert!(patterns.has("a.slice/4.scope") && !patterns.has("a.slice/6.scope"));
    }

    #[test]
    fn patterns_are_bounded_in_number_and_length() {
        let many = (0..60_000).map(|number| format!("a.slice/{number}*"));
        let said = Patterns::parse(many).unwrap_err().to_string();
        assert!(said.starts_with("60000 patterns") && said.contains("at most 1024"), "{said}");
        let long = format!("a/{}", "?".repeat(5000));
        let said = Patterns::parse([&long]).unwrap_err().to_string();
        assert!(said.contains("5002 bytes, at most 4096") && said.len() < 400, "{said}");
    }

    #[test]
    fn the_first_of_several_patterns_counts() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let tree = Tree::at(folder.path()).unwrap();
        for patterns in [["a/b", "a/*"], ["a/*", "a/b"], ["a/?", "a/*"], ["/a/b", "a/b"]] {
            let found = find(&Patterns::parse(patterns).unwrap(), &tree);
            let found: Vec<_> = found.iter().map(|found| &*found.pattern).collect();
            assert_eq!(found, [patterns[0]]);
        }
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
