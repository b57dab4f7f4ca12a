//! Processes that the kernel killed for lack of memory, from `memory.events` of a cgroup.

use crate::cgroup::Cgroup;

/// The file, which counts for the group and those below it.
pub(crate) const FILE: &str = "memory.events";

/// Kills in a group and those below it since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OomKills {
    /// Processes that were killed (`oom_kill`).
    pub killed: u64,
    /// Times that a limit of memory on these groups was the reason (`oom`). A process that is
    /// killed because its nodes are full counts in `killed` alone.
    pub at_limit: u64,
}

impl OomKills {
    /// The present counts; none without the memory controller.
    pub(crate) fn of(group: &Cgroup) -> Option<Self> {
        Self::parse(&group.read(FILE).ok()??)
    }

    pub(crate) fn parse(events: &str) -> Option<Self> {
        let count = |key: &str| {
            let mut lines = events.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(name, _)| *name == key)?.1.trim().parse().ok()
        };
        // `oom` is older than `oom_kill` (Linux 4.13).
        Some(Self { killed: count("oom_kill")?, at_limit: count("oom").unwrap_or(0) })
    }

    /// The kills since an earlier count.
    pub fn since(self, before: Self) -> Self {
        Self {
            killed: self.killed.saturating_sub(before.killed),
            at_limit: self.at_limit.saturating_sub(before.at_limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_on_full_nodes_are_told_from_those_at_a_limit() {
        // Linux 7.3: a process that is bound to one node was killed while the next had room.
        let events = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(OomKills::parse(events), Some(OomKills { killed: 1, at_limit: 0 }));
        let later = OomKills::parse("oom 2\noom_kill 3\n").unwrap();
        let before = OomKills { killed: 1, at_limit: 0 };
        assert_eq!(later.since(before), OomKills { killed: 2, at_limit: 2 });
        // Another group of the same name counts from 0.
        assert_eq!(before.since(later), OomKills::default());
        assert_eq!(OomKills::parse("low 0\noom 0\n"), None);
        assert_eq!(OomKills::parse("oom_kill x\n"), None);
    }
}
