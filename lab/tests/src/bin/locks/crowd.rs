//! Threads on all CPUs that have turns with a lock until the time is over.

use crate::args::Args;
use nearside_locks::{Linux, Platform};
use nearside_workloads::clock;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::{
    hint::black_box,
    sync::{Barrier, OnceLock},
    thread,
};

/// A line of the data below a lock.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Line(pub(crate) u64);

/// A thread and its turns.
pub(crate) struct Member {
    pub(crate) thread: usize,
    pub(crate) node: u32,
    pub(crate) turns: u64,
    asked_ns: u64,
    now_ns: u64,
    longest_wait_ns: u64,
}

impl Member {
    /// It has the lock. Returns how long it has waited.
    pub(crate) fn has_it(&mut self) -> u64 {
        self.now_ns = clock::now_ns();
        let wait_ns = self.now_ns.saturating_sub(self.asked_ns);
        self.longest_wait_ns = self.longest_wait_ns.max(wait_ns);
        wait_ns
    }
}

fn on(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).expect("a CPU of this machine");
}

/// Each of so many threads has turns. A turn calls [`Member::has_it`] once it has the lock.
pub(crate) fn run(threads: usize, args: &Args, turn: impl Fn(&mut Member) + Sync) -> Vec<Member> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let (start, end) = (Barrier::new(threads), OnceLock::new());
    let turns_of = |thread: usize| {
        on(thread % cpus);
        let (node, turns) = (Linux::node(), 0);
        let mut it = Member { thread, node, turns, asked_ns: 0, now_ns: 0, longest_wait_ns: 0 };
        start.wait();
        let end_ns = *end.get_or_init(|| clock::now_ns() + args.ms * 1_000_000);
        loop {
            it.asked_ns = clock::now_ns();
            turn(&mut it);
            if it.now_ns > end_ns {
                return it;
            }
            it.turns += 1;
            (0..args.between).for_each(|round| {
                black_box(round);
            });
        }
    };
    thread::scope(|scope| {
        let turns_of = &turns_of;
        let spawned: Vec<_> = (0..threads).map(|it| scope.spawn(move || turns_of(it))).collect();
        spawned.into_iter().map(|it| it.join().expect("no thread panics")).collect()
    })
}

/// The beginning of a line: turns and Jain's index of fairness (R. Jain, D.-M. Chiu and W. Hawe,
/// DEC-TR-301, 1984).
pub(crate) fn figures(name: &str, members: &[Member], args: &Args) -> String {
    let sum = |of: fn(f64) -> f64| members.iter().map(|it| of(it.turns as f64)).sum::<f64>();
    let (count, threads) = (sum(|it| it), members.len());
    let jain = count * count / (threads as f64 * sum(|it| it * it));
    let per_ms = count / args.ms as f64;
    format!("{name:13} {threads:3} threads  {per_ms:7.0} turns/ms  Jain {jain:.3}")
}

pub(crate) fn longest_wait_us(members: &[Member]) -> f64 {
    members.iter().map(|it| it.longest_wait_ns).max().unwrap_or(0) as f64 / 1000.0
}
