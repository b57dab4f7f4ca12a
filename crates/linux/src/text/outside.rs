//! Busy processes outside of all domains.

use crate::threads;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// A process is busy from this share of a CPU on: 1/50, as a domain is in the control loop.
const BUSY_DIVISOR: u64 = 50;

/// CPU time of all processes outside of domains at the last look.
#[derive(Debug, Default)]
pub(super) struct Outside {
    used_ns: BTreeMap<i32, u64>,
    looked_ns: Option<u64>,
}

impl Outside {
    /// The processes that are in no domain and were busy since the last look. The first look knows
    /// none; text moves at the second one at the earliest.
    pub(super) fn busy(
        &mut self,
        proc: &Path,
        in_domains: &BTreeSet<i32>,
        now_ns: u64,
    ) -> Vec<i32> {
        let names = fs::read_dir(proc).into_iter().flatten().flatten();
        let processes = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let others = processes.filter(|process| !in_domains.contains(process));
        let used = |process: i32| {
            Some((process, threads::of_process(&proc.join(process.to_string()))?.cpu_time_ns))
        };
        let used_ns: BTreeMap<i32, u64> = others.filter_map(used).collect();
        let over_ns = self.looked_ns.map(|looked| now_ns.saturating_sub(looked));
        let busy = over_ns.map(|over_ns| busy(&self.used_ns, &used_ns, over_ns));
        (self.used_ns, self.looked_ns) = (used_ns, Some(now_ns));
        busy.unwrap_or_default()
    }
}

fn busy(before: &BTreeMap<i32, u64>, now: &BTreeMap<i32, u64>, over_ns: u64) -> Vec<i32> {
    let is_busy = |(process, used_ns): &(&i32, &u64)| {
        // A number that was used again begins at 0, as a new one does.
        let before_ns = before.get(process).filter(|before_ns| *before_ns <= used_ns);
        let since_ns = *used_ns - before_ns.unwrap_or(&0);
        since_ns > 0 && since_ns >= over_ns / BUSY_DIVISOR
    };
    now.iter().filter(is_busy).map(|(process, _)| *process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_busy_from_a_fiftieth_of_a_cpu_on() {
        let before = [(1, 1_000), (2, 5_000), (3, 9_000), (4, 0)].into();
        // One stood still, two used a fiftieth, three is another process now, five is new.
        let now = [(1, 1_000), (2, 5_020), (3, 30), (4, 19), (5, 40)].into();
        assert_eq!(busy(&before, &now, 1_000), [2, 3, 5]);
        assert_eq!(busy(&before, &now, 0), [2, 3, 4, 5]);
    }

    #[test]
    fn the_first_look_knows_nobody() {
        let (mut outside, proc) = (Outside::default(), Path::new("/proc"));
        assert_eq!(outside.busy(proc, &BTreeSet::new(), 7), [0; 0]);
        let mine = i32::try_from(std::process::id()).unwrap();
        assert!(outside.used_ns.contains_key(&mine));
        outside.busy(proc, &[mine].into(), 9);
        assert!(!outside.used_ns.contains_key(&mine) && outside.looked_ns == Some(9));
    }
}
