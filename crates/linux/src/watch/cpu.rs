//! The nodes a domain ran on since its last sample, and the time it waited.
//!
//! `cpu.stat` has the CPU time of a domain. A scheduler that counts it by node is exact. Without
//! one, threads are read, and each counts for the CPU it runs on. That takes two files a thread, so
//! the threads of an idle domain are seldom read.

use crate::threads::{Seen, Threads};
use nearside_policy::{ByNode, total};
use nearside_topology::{CpuSet, NodeSet, Topology};

/// The most threads of a domain that are read; in a larger domain they represent all.
const MAX_THREADS: usize = 512;

/// The busiest threads that together have this percentage of a domain's CPU time decide where it is
/// kept. Helper threads that hardly run may be bound otherwise than its vCPUs.
const MAX_PERCENT: u64 = 90;

/// The CPU time of one thread between two samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ThreadUse {
    /// Its present state.
    pub(super) seen: Seen,
    /// CPU time since.
    pub(super) used_ns: u64,
    /// Time it was runnable and did not run since.
    pub(super) waited_ns: u64,
}

/// The threads of a domain that are read. A hash chooses them, so that the first threads, often
/// mere helpers, do not represent all. A chosen thread stays chosen while others start and end.
pub(super) fn sample(mut threads: Vec<i32>) -> Vec<i32> {
    if threads.len() > MAX_THREADS {
        // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4).
        threads.sort_unstable_by_key(|&thread| (thread as u32).wrapping_mul(0x9e37_79b9));
        threads.truncate(MAX_THREADS);
    }
    threads
}

/// The CPU time of the threads in `after` since `before`, which was read `since_ns` ago.
pub(super) fn between(before: &Threads, after: &Threads, since_ns: u64) -> Vec<(i32, ThreadUse)> {
    let thread = |(&thread, &seen): (&i32, &Seen)| {
        let earlier = before.get(&thread);
        // A new thread counts with all its time, whether it was started since or moved in.
        let since = |now: u64, then: Option<u64>| {
            then.map_or(now.min(since_ns), |then| now.saturating_sub(then))
        };
        let used_ns = since(seen.runtime_ns, earlier.map(|earlier| earlier.runtime_ns));
        let waited_ns = since(seen.waited_ns, earlier.map(|earlier| earlier.waited_ns));
        (thread, ThreadUse { seen, used_ns, waited_ns })
    };
    after.iter().map(thread).collect()
}

/// CPU time by the node of each thread; if none ran, each thread counts alike.
pub(super) fn weights(threads: &[(i32, ThreadUse)]) -> ByNode {
    let ran = threads.iter().any(|(_, thread)| thread.used_ns > 0);
    let mut weights = ByNode::new();
    for (_, thread) in threads {
        let of_node: &mut u64 = weights.entry(thread.seen.node).or_default();
        *of_node = of_node.saturating_add(if ran { thread.used_ns } else { 1 });
    }
    weights
}

/// Splits `whole_ns` by weight. Empty without weights.
pub(super) fn split(whole_ns: u64, weights: &ByNode) -> ByNode {
    let all = u128::from(total(weights)).max(1);
    let part = |weight: u64| (u128::from(whole_ns) * u128::from(weight) / all) as u64;
    weights.iter().map(|(&node, &weight)| (node, part(weight))).filter(|(_, ns)| *ns > 0).collect()
}

/// The counts since `before`, by node; none without earlier counts.
pub(super) fn since(before: Option<&ByNode>, now: &ByNode) -> Option<ByNode> {
    let before = before?;
    let on = |node| before.get(node).copied().unwrap_or(0);
    Some(
        now.iter()
            .map(|(node, &ns)| (*node, ns.saturating_sub(on(node))))
            .filter(|(_, ns)| *ns > 0)
            .collect(),
    )
}

/// The nodes that hard affinity keeps threads on, among the `offered` nodes with CPUs; none if
/// threads may run on all of them. `affinity` returns the CPUs that a thread may run on, within its
/// cpuset.
///
/// Only the threads with most of the CPU time count; if none ran, all of them.
pub(super) fn kept_on(
    threads: &[(i32, ThreadUse)],
    offered: &Topology,
    affinity: impl Fn(i32) -> Option<CpuSet>,
) -> Option<NodeSet> {
    let mut by_use: Vec<_> = threads.iter().map(|(thread, used)| (used.used_ns, *thread)).collect();
    by_use.sort_unstable_by(|a, b| b.cmp(a));
    let all_ns = by_use.iter().fold(0_u64, |sum, (ns, _)| sum.saturating_add(*ns));
    let (mut counted_ns, mut cpus) = (0_u64, CpuSet::new());
    for (ns, thread) in by_use {
        let is_most = u128::from(counted_ns) * 100 > u128::from(all_ns) * u128::from(MAX_PERCENT);
        if all_ns > 0 && is_most {
            break;
        }
        counted_ns = counted_ns.saturating_add(ns);
        // A thread that has ended binds nothing.
        cpus = affinity(thread).map_or(cpus.clone(), |own| cpus.union(&own));
    }
    let with_cpus: NodeSet =
        offered.cpus.iter().filter(|cpu| cpu.online).filter_map(|cpu| cpu.node).collect();
    let kept: NodeSet = cpus.iter().filter_map(|cpu| offered.cpu(cpu)?.node).collect();
    let kept = kept.intersection(&with_cpus);
    (!kept.is_empty() && kept != with_cpus).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_threads_is_spread_out_and_stable() {
        assert_eq!(sample(vec![3, 1, 2]), [3, 1, 2]);
        let all: Vec<i32> = (10_000..14_096).collect();
        let before = sample(all.clone());
        let in_quarter = |quarter: i32| {
            before.iter().filter(|&&thread| (thread - 10_000) / 1024 == quarter).count()
        };
        assert_eq!(before.len(), MAX_THREADS);
        assert!((0..4).all(|quarter| (100..160).contains(&in_quarter(quarter))), "{before:?}");
        // One thread ends, another starts.
        let after =
            sample(all.into_iter().filter(|&thread| thread != before[7]).chain([20_000]).collect());
        assert!(before.iter().filter(|thread| after.contains(thread)).count() >= MAX_THREADS - 2);
    }
    use nearside_topology::{Cpu, CpuId, NodeId};

    fn by_node(amounts: &[(u32, u64)]) -> ByNode {
        amounts.iter().map(|&(node, amount)| (NodeId(node), amount)).collect()
    }

    /// Threads by number, node, CPU time and waiting.
    fn threads(seen: &[(i32, u32, u64, u64)]) -> Threads {
        let thread = |&(thread, node, runtime_ns, waited_ns): &(i32, u32, u64, u64)| {
            (thread, Seen { node: NodeId(node), runtime_ns, waited_ns })
        };
        seen.iter().map(thread).collect()
    }

    #[test]
    fn time_and_waiting_count_since_the_last_sample() {
        let before = threads(&[(1, 0, 500, 10), (2, 0, 900, 0), (3, 1, 100, 0)]);
        // 1 stayed, 2 moved, 3 has ended, 4 is new, 5 came from elsewhere after a long time.
        let after = threads(&[
            (1, 0, 700, 60),
            (2, 1, 950, 0),
            (4, 1, 30, 5),
            (5, 2, 1_000_000, 9_000_000),
        ]);
        let used = between(&before, &after, 1000);
        let figures: Vec<_> =
            used.iter().map(|(thread, used)| (*thread, used.used_ns, used.waited_ns)).collect();
        assert_eq!(figures, [(1, 200, 50), (2, 50, 0), (4, 30, 5), (5, 1000, 1000)]);
        assert_eq!(weights(&used), by_node(&[(0, 200), (1, 80), (2, 1000)]));
        let idle = between(&after, &after, 1000);
        assert_eq!(weights(&idle), by_node(&[(0, 1), (1, 2), (2, 1)]));
    }

    #[test]
    fn cpu_time_is_split_by_the_nodes_of_threads() {
        for (whole, weights, expected) in [
            (100, vec![(0, 1), (1, 3)], vec![(0, 25), (1, 75)]),
            (100, vec![(0, 0), (1, 3)], vec![(1, 100)]),
            (100, vec![], vec![]),
            (0, vec![(0, 1)], vec![]),
            (u64::MAX, vec![(2, u64::MAX)], vec![(2, u64::MAX)]),
        ] {
            assert_eq!(split(whole, &by_node(&weights)), by_node(&expected), "{whole} {weights:?}");
        }
    }

    #[test]
    fn a_scheduler_counts_from_the_first_sample() {
        let now = by_node(&[(0, 70), (1, 5)]);
        assert_eq!(since(None, &now), None);
        assert_eq!(since(Some(&by_node(&[(0, 50), (1, 5)])), &now), Some(by_node(&[(0, 20)])));
        assert_eq!(
            since(Some(&by_node(&[(0, 90)])), &now),
            Some(by_node(&[(1, 5)])),
            "attached anew"
        );
    }

    #[test]
    fn a_domain_is_kept_where_its_running_threads_are() {
        // Two CPUs a node; those of node 3 are not for domains.
        let cpu = |cpu| Cpu { online: cpu < 6, ..Cpu::new(CpuId(cpu), NodeId(cpu / 2)) };
        let machine = Topology { cpus: (0..8).map(cpu).collect(), ..Topology::default() };
        let cpus = |cpus: &[u32]| cpus.iter().map(|&cpu| CpuId(cpu)).collect::<CpuSet>();
        let kept = |threads: &[(u64, &[u32])]| {
            let numbered: Vec<_> = (0..).zip(threads).collect();
            let used: Vec<_> = numbered
                .iter()
                .map(|(thread, (used_ns, _))| {
                    let seen = Seen { node: NodeId(0), runtime_ns: 0, waited_ns: 0 };
                    (*thread, ThreadUse { seen, used_ns: *used_ns, waited_ns: 0 })
                })
                .collect();
            kept_on(&used, &machine, |thread| Some(cpus(numbered[thread as usize].1.1)))
                .map(|nodes| nodes.to_string())
        };
        let all: &[u32] = &[0, 1, 2, 3, 4, 5];
        assert_eq!(kept(&[(10, all), (0, &[0])]), None);
        assert_eq!(kept(&[(10, &[2, 3]), (10, &[2])]).as_deref(), Some("1"));
        assert_eq!(kept(&[(10, &[0, 4]), (10, &[1])]).as_deref(), Some("0,2"));
        assert_eq!(
            kept(&[(95, &[2, 3]), (5, all)]).as_deref(),
            Some("1"),
            "a helper that hardly runs"
        );
        assert_eq!(kept(&[(60, &[2, 3]), (40, all)]), None);
        assert_eq!(kept(&[(0, &[2, 3]), (0, all)]), None, "nothing ran: all of them count");
        assert_eq!(kept(&[(1, &[0, 2, 4])]), None, "a CPU of each node is no bond");
        assert_eq!(kept(&[(1, &[6, 7])]), None, "where nothing is offered nothing can be said");
        assert_eq!(kept(&[]), None);
        assert_eq!(kept_on(&[], &machine, |_| None), None);
    }
}
