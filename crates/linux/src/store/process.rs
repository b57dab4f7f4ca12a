//! The state of a process, from `/proc/PID/stat` (proc_pid_stat(5)), and whether it can run.

use crate::cgroup::Tree;
use std::{fs, path::Path};

/// The state of a process, and its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    state: u8,
    /// Its start in clock ticks since boot.
    pub(crate) start_time_ticks: u64,
}

impl Process {
    /// Reads the state; none if there is no such process.
    pub(crate) fn read(proc: &Path, pid: u32) -> Option<Self> {
        Self::parse(&fs::read(proc.join(pid.to_string()).join("stat")).ok()?)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The command's name stands in parentheses and may contain any byte.
        let after = str::from_utf8(stat.rsplit(|&byte| byte == b')').next()?).ok()?;
        let mut words = after.split_ascii_whitespace();
        let state = *words.next()?.as_bytes().first()?;
        Some(Self { state, start_time_ticks: words.nth(18)?.parse().ok()? })
    }

    /// True if it cannot run until somebody lets it: a signal or a debugger has stopped it, or its
    /// cgroup is frozen (`docker pause`, `systemctl freeze`).
    pub(super) fn is_held(proc: &Path, pid: u32) -> bool {
        Self::read(proc, pid).is_some_and(|it| it.is_stopped()) || is_frozen(proc, pid)
    }

    /// True if a signal or a debugger has stopped it.
    fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// False for a zombie.
    pub(crate) fn lives(&self) -> bool {
        !matches!(self.state, b'Z' | b'X')
    }
}

/// Whether a process is in a frozen cgroup of version 2 (`frozen` in `cgroup.events`), or of
/// version 1, where it sleeps in the kernel's function `__refrigerator` (`kernel/freezer.c`).
fn is_frozen(proc: &Path, pid: u32) -> bool {
    let process = proc.join(pid.to_string());
    let tree = Tree::find(&proc.join("self/mountinfo"));
    let group = tree.and_then(|tree| tree.group_of(&process.join("cgroup")));
    let events = group.and_then(|group| group.read("cgroup.events"));
    let is_frozen = |events: String| events.lines().any(|line| line == "frozen 1");
    events.ok().flatten().is_some_and(is_frozen)
        || fs::read(process.join("wchan")).is_ok_and(|function| function == b"__refrigerator")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_a_frozen_cgroup_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let (proc, tree) = (folder.path().join("proc"), folder.path().join("cg"));
        let mount = format!("30 1 0:26 / {} rw - cgroup2 cgroup2 rw\n", tree.display());
        write("proc/self/mountinfo", &mount);
        write("cg/cgroup.controllers", "cpuset\n");
        write("cg/paused/cgroup.events", "populated 1\nfrozen 1\n");
        write("cg/running/cgroup.events", "populated 1\nfrozen 0\n");
        for (pid, group) in [(7, "paused"), (8, "running"), (9, "gone")] {
            write(&format!("proc/{pid}/cgroup"), &format!("0::/{group}\n"));
        }
        write("proc/9/wchan", "do_epoll_wait");
        write("proc/10/wchan", "__refrigerator");
        let is_held = |pid| Process::is_held(&proc, pid);
        assert_eq!([7, 8, 9, 10, 11].map(is_held), [true, false, false, true, false]);
    }

    #[test]
    fn state_and_start_follow_a_name_of_any_bytes() {
        let stat = |state: char| {
            let fields = "1 1 1 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 731 0 0";
            format!("7 (a) Z \u{fffd}) {state} {fields}\n").into_bytes()
        };
        let process = Process::parse(&stat('S')).unwrap();
        assert_eq!(process.start_time_ticks, 731);
        assert!(process.lives() && !process.is_stopped());
        assert!(Process::parse(&stat('T')).unwrap().is_stopped());
        assert!(!Process::parse(&stat('Z')).unwrap().lives());
        assert_eq!(Process::parse(b"7 (a) S 1 1"), None);
        let own = Process::read(Path::new("/proc"), std::process::id()).unwrap();
        assert!(own.lives() && own.start_time_ticks > 0);
    }
}
