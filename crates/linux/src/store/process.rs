//! The state of a process, from `/proc/PID/stat` (proc_pid_stat(5)).

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

    /// True if a signal or a debugger has stopped it.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// False for a zombie.
    pub(super) fn lives(&self) -> bool {
        !matches!(self.state, b'Z' | b'X')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
