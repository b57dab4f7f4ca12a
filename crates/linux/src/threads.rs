//! The nodes that threads run on, and the CPU time they used there over an interval.

use crate::{cgroup::Cgroup, read::at_once};
use nearside_policy::ByNode;
use nearside_topology::{CpuId, NodeId, NodeSet, Topology};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The longest time between two samples of a thread.
const STEP: Duration = Duration::from_millis(50);

/// More than the length of `/proc/PID/stat`: 52 numbers of at most 20 digits, and a name.
const MAX_STAT_BYTES: usize = 2048;

/// The most samples in an interval, so that a long one costs no more than a short one.
const MAX_STEPS: u32 = 20;

/// The nodes of a group's threads, and their CPU time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CpuUse {
    /// Threads by the node of the CPU they run on or ran on last, at the end of the interval.
    pub threads: ByNode,
    /// CPU time in nanoseconds by node over the interval.
    ///
    /// An approximation: every 50 ms (a twentieth of the interval, if that is longer), the CPU time
    /// of a thread since its last sample counts for the node it runs on at that moment. Time
    /// between its last sample and its end is lost.
    pub time_ns: ByNode,
}

impl CpuUse {
    /// The weight of each node as a place of computation: its CPU time, or the number of threads if
    /// none ran.
    pub fn weight(&self) -> &ByNode {
        if self.time_ns.values().any(|&time| time > 0) { &self.time_ns } else { &self.threads }
    }
}

/// A thread at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The node it runs on, or ran on last.
    pub(crate) node: NodeId,
    /// CPU time since its start.
    pub(crate) runtime_ns: u64,
    /// Time it was runnable and did not run; 0 if the kernel does not count it.
    pub(crate) waited_ns: u64,
}

/// Threads by number.
pub(crate) type Threads = BTreeMap<i32, Seen>;

/// Samples the threads of groups, and of the groups below them, for `interval`. Results are in the
/// order of the groups.
pub fn watch(
    groups: &[Cgroup],
    proc: &Path,
    topology: &Topology,
    interval: Duration,
) -> Vec<CpuUse> {
    let look = || groups.iter().map(|group| threads(group, proc, topology)).collect::<Vec<_>>();
    let mut uses = vec![CpuUse::default(); groups.len()];
    let step = STEP.max(interval / MAX_STEPS);
    let begin = Instant::now();
    let (mut before, mut looked) = (look(), begin);
    while let Some(left) = interval.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        thread::sleep(step.min(left));
        let (after, now) = (look(), Instant::now());
        for ((cpu_use, before), after) in uses.iter_mut().zip(&before).zip(&after) {
            count_time(&mut cpu_use.time_ns, before, after, now - looked);
        }
        (before, looked) = (after, now);
    }
    for (cpu_use, threads) in uses.iter_mut().zip(&before) {
        for seen in threads.values() {
            *cpu_use.threads.entry(seen.node).or_default() += 1;
        }
    }
    uses
}

/// Adds the CPU time between two samples.
fn count_time(time_ns: &mut ByNode, before: &Threads, after: &Threads, between: Duration) {
    let most_ns = u64::try_from(between.as_nanos()).unwrap_or(u64::MAX);
    for (thread, seen) in after {
        // A new thread counts with all its CPU time, whether it was started since or moved in.
        let used_ns = match before.get(thread) {
            Some(earlier) => seen.runtime_ns.saturating_sub(earlier.runtime_ns),
            None => seen.runtime_ns.min(most_ns),
        };
        let of_node = time_ns.entry(seen.node).or_default();
        *of_node = of_node.saturating_add(used_ns);
    }
}

fn threads(group: &Cgroup, proc: &Path, topology: &Topology) -> Threads {
    let look = |thread: i32| Some((thread, see(thread, proc, topology)?));
    group.all_threads().into_iter().filter_map(look).collect()
}

/// A thread's node and CPU time; none if it has ended or is hidden (`hidepid=`).
pub(crate) fn see(thread: i32, proc: &Path, topology: &Topology) -> Option<Seen> {
    // The files below "task" are the thread's; those above are the whole process's.
    let folder = proc.join(format!("{thread}/task/{thread}"));
    let mut buffer = [0; MAX_STAT_BYTES];
    let stat =
        Stat::parse(&String::from_utf8_lossy(at_once(&folder.join("stat"), &mut buffer).ok()?))?;
    let node = topology.cpu(stat.cpu)?.node?;
    let schedstat = at_once(&folder.join("schedstat"), &mut buffer).unwrap_or_default();
    let schedstat = String::from_utf8_lossy(schedstat);
    let mut figures = schedstat.split_whitespace().map_while(|word| word.parse::<u64>().ok());
    // A kernel built without scheduler statistics has no such file, or one of zeros.
    let runtime_ns = figures.next().filter(|&ns| ns > 0).unwrap_or(stat.cpu_time_ns);
    Some(Seen { node, runtime_ns, waited_ns: figures.next().unwrap_or(0) })
}

/// The nodes of the CPUs on which the threads of a process ran last, from its folder in `/proc`.
/// Empty once it has ended.
pub fn nodes_of_process(folder: &Path, node_of: impl Fn(CpuId) -> Option<NodeId>) -> NodeSet {
    let threads = fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| node_of(of_process(&thread.path())?.cpu)).collect()
}

/// The CPU on which the first thread of a process ran last, from its folder in `/proc`. None if the
/// thread is of `SCHED_FIFO` or `SCHED_RR`, since it may keep its CPU from all others.
pub fn shared_cpu_of_process(folder: &Path) -> Option<CpuId> {
    let stat = of_process(folder)?;
    (!stat.is_real_time).then_some(stat.cpu)
}

/// The figures of a whole process, or of a thread, from its folder; none if it has ended or is
/// hidden.
pub(crate) fn of_process(folder: &Path) -> Option<Stat> {
    let mut buffer = [0; MAX_STAT_BYTES];
    let text = at_once(&folder.join("stat"), &mut buffer).ok()?;
    Stat::parse(&String::from_utf8_lossy(text))
}

/// The useful fields of `/proc/PID/stat` (proc_pid_stat(5)).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Fields 14 and 15, user and system time.
    pub(crate) cpu_time_ns: u64,
    /// Field 20.
    pub(crate) threads: u64,
    /// Field 39.
    cpu: CpuId,
    /// Field 40, a priority above 0.
    is_real_time: bool,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // Field 2 is the command's name in parentheses. It may contain blanks and parentheses
        // itself.
        let (_, after_name) = text.rsplit_once(')')?;
        let mut fields = after_name.split_whitespace().skip(14 - 3);
        let mut next = |skip: usize| fields.nth(skip)?.parse::<u64>().ok();
        let (user, system) = (next(0)?, next(0)?);
        // Fields 18 and 19 may be negative.
        let threads = next(20 - 16)?;
        let cpu = u32::try_from(next(39 - 21)?).ok()?;
        let is_real_time = next(0)? > 0;
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Some(Self {
            cpu_time_ns: user.saturating_add(system).saturating_mul(tick_ns),
            threads,
            cpu: CpuId(cpu),
            is_real_time,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(seen: &[(i32, u32, u64)]) -> Threads {
        let thread = |&(thread, node, runtime_ns)| {
            (thread, Seen { node: NodeId(node), runtime_ns, waited_ns: 0 })
        };
        seen.iter().map(thread).collect()
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let name = "7 (a) R 1 (b)) S 1 7 7 0 -1 4194560 0 0 0 0 12 30 0 0 20 0 1 0 5 1 1 \
                    18446744073709551615 \
                    1 1 0 0 0 0 0 0 0 0 0 0 17 6 0 0 0 0 0";
        let stat =
            Stat { cpu_time_ns: 420_000_000, threads: 1, cpu: CpuId(6), is_real_time: false };
        assert_eq!(Stat::parse(name), Some(stat));
        let real_time = name.replace(" 6 0 ", " 6 1 ");
        assert!(Stat::parse(&real_time).unwrap().is_real_time);
        assert_eq!(Stat::parse("7 (short) S 1 7"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn time_counts_for_the_node_a_thread_is_seen_on() {
        let mut time_ns = ByNode::new();
        let before = threads(&[(1, 0, 500), (2, 0, 900), (3, 1, 100)]);
        // 1 stayed, 2 moved to node 1, 3 has ended, 4 is new, 5 moved in after a long time
        // elsewhere.
        let after = threads(&[(1, 0, 700), (2, 1, 950), (4, 1, 30), (5, 2, 1_000_000)]);
        count_time(&mut time_ns, &before, &after, Duration::from_nanos(1000));
        assert_eq!(time_ns, ByNode::from([(NodeId(0), 200), (NodeId(1), 80), (NodeId(2), 1000)]));
    }

    #[test]
    fn threads_count_alike_if_none_ran() {
        let threads = ByNode::from([(NodeId(0), 1), (NodeId(2), 3)]);
        let idle = CpuUse { threads: threads.clone(), time_ns: ByNode::from([(NodeId(0), 0)]) };
        assert_eq!(idle.weight(), &threads);
        let busy = CpuUse { threads, time_ns: ByNode::from([(NodeId(1), 5)]) };
        assert_eq!(busy.weight(), &busy.time_ns);
    }
}
