//! Locks on a machine in modelled time: threads on all nodes want one lock all the time. Run it in
//! a guest of `lab/run --model`.
#![allow(unsafe_code, reason = "raw locks, and the mutex of pthreads")]
#![allow(clippy::expect_used, reason = "a measurement may panic")]

#[path = "../../../../crates/locks/benches/test_and_set/mod.rs"]
mod test_and_set;

use clap::Parser;
use lock_api::{GuardNoSend, Mutex, RawMutex};
use nearside_locks::{Linux, Platform, RawFairSpinLock};
use nearside_workloads::clock;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::{
    cell::UnsafeCell,
    hint::black_box,
    sync::{Barrier, OnceLock},
    thread,
};
use test_and_set::TestAndSet;

/// Threads on all CPUs that want one lock, for each kind of lock
#[derive(Debug, Parser)]
struct Args {
    /// Numbers of threads, which CPUs get in turn
    #[arg(long, value_delimiter = ',', default_value = "8,16,32")]
    threads: Vec<usize>,
    /// Modelled milliseconds of each run
    #[arg(long, default_value_t = 100)]
    ms: u64,
    /// Lines that are written under the lock
    #[arg(long, default_value_t = 8)]
    lines: usize,
    /// Rounds of a loop between two turns of a thread
    #[arg(long, default_value_t = 300)]
    between: u32,
    /// One kind of lock alone
    #[arg(long)]
    kind: Option<String>,
}

/// The C library's mutex. It must not move once it is used.
struct Pthread(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: the C library permits it.
unsafe impl Send for Pthread {}
// SAFETY: as above.
unsafe impl Sync for Pthread {}

// SAFETY: the C library gives it to one at a time.
unsafe impl RawMutex for Pthread {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        // SAFETY: it is initialized, and stays where it is as long as threads use it.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.0.get()) }, 0);
    }

    fn try_lock(&self) -> bool {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) == 0 }
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.0.get()) }, 0);
    }
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(u64);

/// The data that the lock protects.
struct Guarded {
    lines: Vec<Line>,
    /// The last holder and its node.
    last: (usize, u32),
    /// Turns that went to another thread, and those of them that stayed on a node.
    handed_on: u64,
    stayed: u64,
}

/// The turns of a thread.
struct Turns {
    count: u64,
    longest_wait_ns: u64,
}

fn on(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).expect("a CPU of this machine");
}

/// Prints the line of a kind of lock.
fn run<R: RawMutex + Send + Sync>(name: &str, threads: usize, args: &Args) {
    if args.kind.as_ref().is_some_and(|kind| kind != name) {
        return;
    }
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let lines = vec![Line(0); args.lines];
    let guarded = Guarded { lines, last: (usize::MAX, 0), handed_on: 0, stayed: 0 };
    let lock = Mutex::<R, Guarded>::new(guarded);
    let start = Barrier::new(threads);
    let end = OnceLock::new();
    let turns_of = |thread: usize| {
        on(thread % cpus);
        let node = Linux::node();
        start.wait();
        let end_ns = *end.get_or_init(|| clock::now_ns() + args.ms * 1_000_000);
        let mut turns = Turns { count: 0, longest_wait_ns: 0 };
        loop {
            let asked_ns = clock::now_ns();
            let mut guarded = lock.lock();
            let now_ns = clock::now_ns();
            turns.longest_wait_ns = turns.longest_wait_ns.max(now_ns.saturating_sub(asked_ns));
            if now_ns > end_ns {
                return turns;
            }
            turns.count += 1;
            let (last, last_node) = std::mem::replace(&mut guarded.last, (thread, node));
            if last != thread {
                guarded.handed_on += 1;
                guarded.stayed += u64::from(last_node == node);
            }
            guarded.lines.iter_mut().for_each(|line| line.0 += 1);
            drop(guarded);
            (0..args.between).for_each(|round| {
                black_box(round);
            });
        }
    };
    let all: Vec<Turns> = thread::scope(|scope| {
        let turns_of = &turns_of;
        let spawned: Vec<_> = (0..threads).map(|it| scope.spawn(move || turns_of(it))).collect();
        spawned.into_iter().map(|it| it.join().expect("no thread panics")).collect()
    });
    let sum = |of: fn(f64) -> f64| all.iter().map(|it| of(it.count as f64)).sum::<f64>();
    let count = sum(|it| it);
    let jain = count * count / (threads as f64 * sum(|it| it * it));
    let guarded = lock.into_inner();
    println!(
        "{name:13} {threads:3} threads  {:7.0} turns/ms  Jain {jain:.3}  stays {:5.1} %  \
         again {:5.1} %  longest wait {:7.0} us",
        count / args.ms as f64,
        100.0 * guarded.stayed as f64 / guarded.handed_on.max(1) as f64,
        100.0 * (1.0 - guarded.handed_on as f64 / count.max(1.0)),
        all.iter().map(|it| it.longest_wait_ns).max().unwrap_or(0) as f64 / 1000.0,
    );
}

fn main() {
    let args = Args::parse();
    for &threads in &args.threads {
        run::<RawFairSpinLock<Linux>>("fair", threads, &args);
        run::<RawFairSpinLock<Linux, 0, 0>>("in-order", threads, &args);
        run::<TestAndSet>("test-and-set", threads, &args);
        run::<Pthread>("pthread", threads, &args);
        run::<parking_lot::RawMutex>("parking_lot", threads, &args);
    }
}
