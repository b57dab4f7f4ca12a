//! Figures of a window of time, from the logs of all threads. Pure.

use crate::worker::{Log, Segment};
use nearside_workloads::clock::STEP_NS;
use serde::Serialize;

/// The longest time in which an idle CPU finds work.
const SEARCH_NS: u64 = 100_000;

/// The begin and the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

impl Window {
    pub(crate) fn span_ns(self) -> f64 {
        (self.to_ns - self.from_ns) as f64
    }

    fn overlap_ns(self, segment: &Segment) -> u64 {
        segment.to_ns.min(self.to_ns).saturating_sub(segment.from_ns.max(self.from_ns))
    }

    /// The work done in it, of a segment that may reach beyond it.
    fn work_ns(self, segment: &Segment) -> f64 {
        let length_ns = segment.to_ns.saturating_sub(segment.from_ns).max(1);
        (segment.steps * STEP_NS) as f64 * self.overlap_ns(segment) as f64 / length_ns as f64
    }

    fn meets(self, segment: &Segment) -> bool {
        segment.to_ns > self.from_ns && segment.from_ns < self.to_ns
    }
}

/// A control group and the logs of its threads.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) logs: Vec<Log>,
}

/// The result of a group.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Share {
    pub(crate) name: String,
    pub(crate) threads: usize,
    /// CPU time over the window's length: CPUs.
    pub(crate) cpus: f64,
    /// Work done over the window's length, in CPUs: CPU time without that of interrupts.
    pub(crate) work_cpus: f64,
    pub(crate) cpus_by_node: Vec<f64>,
    pub(crate) moves: u64,
    pub(crate) violations: u64,
    /// The longest time in which a thread that never sleeps did not run.
    pub(crate) longest_wait_ms: f64,
    pub(crate) wakes: u64,
    pub(crate) mean_late_ms: f64,
    pub(crate) max_late_ms: f64,
}

/// The judgement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    pub(crate) span_ms: f64,
    pub(crate) groups: Vec<Share>,
    /// Of all CPU time, the part in which a CPU ran none of these threads while another of them
    /// waited and was free to run anywhere. An upper bound of idling: such a CPU may have run
    /// another program.
    pub(crate) others_while_waiting: f64,
    /// .. counting only CPUs that had run none of them for 0.1 ms already.
    pub(crate) long_while_waiting: f64,
}

impl Verdict {
    pub(crate) fn cpus(&self) -> f64 {
        self.groups.iter().map(|group| group.cpus).sum()
    }

    /// Work done by all groups.
    pub(crate) fn work_cpus(&self) -> f64 {
        self.groups.iter().map(|group| group.work_cpus).sum()
    }

    pub(crate) fn longest_wait_ms(&self) -> f64 {
        self.groups.iter().map(|group| group.longest_wait_ms).fold(0.0, f64::max)
    }

    /// Jain's index of the groups' shares: 1 where all have the same, 1/n where one has all.
    pub(crate) fn jain(&self) -> f64 {
        let squares: f64 = self.groups.iter().map(|group| group.cpus * group.cpus).sum();
        self.cpus().powi(2) / (self.groups.len() as f64 * squares)
    }
}

/// `nodes`: of each CPU.
pub(crate) fn judge(groups: &[Group], nodes: &[usize], window: Window) -> Verdict {
    let cpu_time_ns = window.span_ns() * nodes.len() as f64;
    let (others_ns, long_ns) = while_waiting(groups, nodes.len(), window);
    Verdict {
        span_ms: window.span_ns() / 1e6,
        groups: groups.iter().map(|group| share(group, nodes, window)).collect(),
        others_while_waiting: others_ns / cpu_time_ns,
        long_while_waiting: long_ns / cpu_time_ns,
    }
}

fn share(group: &Group, nodes: &[usize], window: Window) -> Share {
    let mut cpus_by_node = vec![0.0; nodes.iter().max().map_or(0, |most| most + 1)];
    let mut moves = 0;
    for log in &group.logs {
        for segment in &log.segments {
            cpus_by_node[nodes[segment.cpu]] +=
                window.overlap_ns(segment) as f64 / window.span_ns();
        }
        let inside = |from_ns| from_ns > window.from_ns && from_ns < window.to_ns;
        moves += log
            .segments
            .windows(2)
            .filter(|pair| pair[0].cpu != pair[1].cpu && inside(pair[1].from_ns))
            .count();
    }
    let wakes: u64 = group.logs.iter().map(|log| log.wakes).sum();
    let segments = group.logs.iter().flat_map(|log| &log.segments);
    let late_ns: u64 = group.logs.iter().map(|log| log.late_ns).sum();
    Share {
        name: group.name.clone(),
        threads: group.logs.len(),
        cpus: cpus_by_node.iter().sum(),
        work_cpus: segments.map(|segment| window.work_ns(segment)).sum::<f64>() / window.span_ns(),
        cpus_by_node,
        moves: moves as u64,
        violations: group.logs.iter().map(|log| log.violations).sum(),
        longest_wait_ms: group
            .logs
            .iter()
            .map(|log| longest_wait_ns(log, window))
            .max()
            .unwrap_or(0) as f64
            / 1e6,
        wakes,
        mean_late_ms: late_ns as f64 / wakes.max(1) as f64 / 1e6,
        max_late_ms: group.logs.iter().map(|log| log.latest_ns).max().unwrap_or(0) as f64 / 1e6,
    }
}

fn longest_wait_ns(log: &Log, window: Window) -> u64 {
    if log.naps {
        return 0;
    }
    let (mut ran_until_ns, mut longest_ns) = (window.from_ns, 0);
    for segment in log.segments.iter().filter(|segment| window.meets(segment)) {
        longest_ns = longest_ns.max(segment.from_ns.saturating_sub(ran_until_ns));
        ran_until_ns = segment.to_ns;
    }
    // A thread that was stopped before the window's end no longer waits.
    let goes_on = log.segments.last().is_some_and(|last| last.to_ns >= window.to_ns);
    if goes_on { longest_ns.max(window.to_ns.saturating_sub(ran_until_ns)) } else { longest_ns }
}

/// A change in the number of threads that a CPU runs, or that wait.
enum Change {
    Stops(usize),
    Waits,
    Runs(usize),
    WaitsNoMore,
}

/// CPU time in ns in which CPUs ran none of the threads while others waited; and the same for CPUs
/// that had run none for a while.
fn while_waiting(groups: &[Group], cpus: usize, window: Window) -> (f64, f64) {
    let mut changes = vec![];
    for log in groups.iter().flat_map(|group| &group.logs) {
        for (index, segment) in log.segments.iter().enumerate() {
            if !window.meets(segment) {
                continue;
            }
            changes.push((segment.from_ns, Change::Runs(segment.cpu)));
            changes.push((segment.to_ns, Change::Stops(segment.cpu)));
            let next = log.segments.get(index + 1).filter(|next| next.from_ns > segment.to_ns);
            if let (false, false, Some(next)) = (log.naps, log.bound, next) {
                changes.push((segment.to_ns, Change::Waits));
                changes.push((next.from_ns, Change::WaitsNoMore));
            }
        }
    }
    // Among changes at the same time, ends come first: a thread that passes its CPU on leaves no
    // gap.
    changes.sort_by_key(|(at_ns, change)| {
        (*at_ns, matches!(change, Change::Runs(_) | Change::WaitsNoMore))
    });
    changes.push((window.to_ns, Change::Waits));

    let (mut running, mut since_ns) = (vec![0_i32; cpus], vec![window.from_ns; cpus]);
    let (mut waiting, mut now_ns) = (0_i32, window.from_ns);
    let (mut wasted_ns, mut long_ns) = (0.0, 0.0);
    for (at_ns, change) in changes {
        let at_ns = at_ns.min(window.to_ns);
        if at_ns > now_ns {
            let free = (0..cpus).filter(|&cpu| running[cpu] <= 0);
            let long = free.clone().filter(|&cpu| at_ns - since_ns[cpu] > SEARCH_NS);
            wasted_ns += (free.count() as i32).min(waiting).max(0) as f64 * (at_ns - now_ns) as f64;
            long_ns += (long.count() as i32).min(waiting).max(0) as f64 * (at_ns - now_ns) as f64;
            now_ns = at_ns;
        }
        match change {
            Change::Runs(cpu) => running[cpu] += 1,
            Change::Stops(cpu) => {
                running[cpu] -= 1;
                since_ns[cpu] = at_ns;
            }
            Change::Waits => waiting += 1,
            Change::WaitsNoMore => waiting -= 1,
        }
    }
    (wasted_ns, long_ns)
}

/// The time from `from_ns` until the thread is on the node again; `None` if it never is.
pub(crate) fn reaches_after_ns(
    log: &Log,
    node: usize,
    nodes: &[usize],
    from_ns: u64,
) -> Option<u64> {
    // A segment that ends within this time began before.
    let there =
        |segment: &&Segment| nodes[segment.cpu] == node && segment.to_ns > from_ns + 4 * STEP_NS;
    log.segments.iter().find(there).map(|segment| segment.from_ns.saturating_sub(from_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn log(segments: &[(u64, u64, usize)]) -> Log {
        let segment = |&(from, to, cpu): &(u64, u64, usize)| Segment {
            from_ns: from * MS,
            to_ns: to * MS,
            cpu,
            steps: (to - from) * MS / STEP_NS,
        };
        Log { segments: segments.iter().map(segment).collect(), ..Log::default() }
    }

    fn window(from: u64, to: u64) -> Window {
        Window { from_ns: from * MS, to_ns: to * MS }
    }

    fn group(logs: Vec<Log>) -> Group {
        Group { name: "g".into(), logs }
    }

    #[test]
    fn shares_are_clipped_to_the_window() {
        // 5 ms on node 0 (of which 3 inside), 4 ms on node 1 (2 inside), window of 10 ms.
        let groups = [group(vec![log(&[(0, 5, 0), (10, 14, 3)])])];
        let verdict = judge(&groups, &[0, 0, 1, 1], window(2, 12));
        assert_eq!(verdict.groups[0].cpus_by_node, [0.3, 0.2]);
        assert_eq!((verdict.groups[0].cpus, verdict.work_cpus()), (0.5, 0.5));
        assert_eq!(verdict.groups[0].moves, 1);
        assert_eq!(verdict.groups[0].longest_wait_ms, 5.0);
    }

    #[test]
    fn time_that_interrupts_took_is_no_work() {
        let mut log = log(&[(0, 6, 0)]);
        log.segments[0].steps /= 2;
        let verdict = judge(&[group(vec![log])], &[0], window(2, 12));
        assert_eq!((verdict.groups[0].cpus, verdict.work_cpus()), (0.4, 0.2));
    }

    #[test]
    fn a_free_cpu_beside_a_waiting_thread_is_waste() {
        // Both threads run on CPU 0, one after the other, while CPU 1 is free: at any time one
        // thread waits and one CPU is free.
        let groups = [group(vec![
            log(&[(0, 5, 0), (10, 15, 0)]),
            log(&[(0, 1, 1), (5, 10, 0), (15, 16, 0)]),
        ])];
        let verdict = judge(&groups, &[0, 0], window(0, 10));
        // From 1 to 10: 9 ms of 20 ms of CPU time.
        assert_eq!(verdict.others_while_waiting, 0.45);
        assert_eq!(verdict.long_while_waiting, 0.45);
    }

    #[test]
    fn no_waste_without_a_waiting_thread_or_a_free_cpu() {
        let alone = [group(vec![log(&[(0, 20, 0)])])];
        assert_eq!(judge(&alone, &[0, 0], window(0, 10)).others_while_waiting, 0.0);
        let crowd = [group(vec![log(&[(0, 5, 0), (10, 15, 0)]), log(&[(5, 10, 0), (15, 20, 0)])])];
        assert_eq!(judge(&crowd, &[0], window(0, 20)).others_while_waiting, 0.0);
    }

    #[test]
    fn a_thread_that_may_not_run_elsewhere_waits_for_nothing_else() {
        let bound = Log { bound: true, ..log(&[(0, 1, 0), (9, 20, 0)]) };
        assert_eq!(judge(&[group(vec![bound])], &[0, 0], window(0, 10)).others_while_waiting, 0.0);
    }

    #[test]
    fn jain_counts_groups() {
        let groups = [group(vec![log(&[(0, 10, 0)])]), group(vec![log(&[(20, 30, 0)])])];
        assert_eq!(judge(&groups, &[0], window(0, 10)).jain(), 0.5);
        assert_eq!(judge(&groups, &[0], window(5, 25)).jain(), 1.0);
    }

    #[test]
    fn a_thread_is_home_when_it_runs_there_next() {
        let log = log(&[(0, 10, 0), (10, 14, 2), (14, 20, 0)]);
        assert_eq!(reaches_after_ns(&log, 1, &[0, 0, 1], 8 * MS), Some(2 * MS));
        assert_eq!(reaches_after_ns(&log, 1, &[0, 0, 1], 12 * MS), Some(0));
        assert_eq!(reaches_after_ns(&log, 1, &[0, 0, 1], 15 * MS), None);
    }
}
