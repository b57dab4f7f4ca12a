//! Threads that add arrays, and threads that share a lock.

use clap::Args;
use lock_api::Mutex;
use nearside_workloads::{clock, pthread::Pthread};
use std::{hint::black_box, mem, sync::Barrier, thread};

/// Add arrays, as STREAM's triad does.
#[derive(Debug, Args)]
pub(crate) struct Stream {
    #[arg(long)]
    threads: usize,
    /// Of each of the three arrays of each thread
    #[arg(long)]
    mib: usize,
    #[arg(long)]
    rounds: usize,
}

impl Stream {
    /// Calls `begin` once all memory is filled, and works when that comes back.
    pub(crate) fn run<T>(&self, begin: impl FnOnce() -> T) -> T {
        let count = (self.mib << 20) / size_of::<f64>();
        let fill = || [0.0, 1.0, 2.0].map(|value| vec![value; count]);
        let work = |mut arrays: [Vec<f64>; 3]| {
            for _ in 0..self.rounds {
                let [sum, one, other] = &mut arrays;
                for ((sum, one), other) in sum.iter_mut().zip(&*one).zip(&*other) {
                    *sum = one + 3.0 * other;
                }
                black_box(sum);
            }
            // Held until the process ends, so that its nodes can be read.
            mem::forget(arrays);
        };
        together(self.threads, fill, begin, work)
    }
}

/// Share a mutex of the C library.
#[derive(Debug, Args)]
pub(crate) struct Lock {
    #[arg(long)]
    threads: usize,
    /// Of each thread
    #[arg(long)]
    rounds: usize,
}

#[repr(align(64))]
struct Line(u64);

/// So many lines are written under the lock ..
const GUARDED: usize = 8;
/// .. and so much is done without it before it is taken again.
const BETWEEN_NS: u64 = 20_000;

impl Lock {
    /// See [`Stream::run`].
    pub(crate) fn run<T>(&self, begin: impl FnOnce() -> T) -> T {
        let guarded: Mutex<Pthread, _> = Mutex::new([const { Line(0) }; GUARDED]);
        let work = |()| {
            for _ in 0..self.rounds {
                let mut lines = guarded.lock();
                lines.iter_mut().for_each(|line| line.0 += 1);
                clock::work();
                drop(lines);
                for _ in 0..BETWEEN_NS / clock::STEP_NS {
                    clock::work();
                }
            }
        };
        together(self.threads, || (), begin, work)
    }
}

/// Threads that get ready each for itself, and work together once all are and `begin` has come
/// back.
fn together<T, M>(
    threads: usize,
    get_ready: impl Fn() -> M + Sync,
    begin: impl FnOnce() -> T,
    work: impl Fn(M) + Sync,
) -> T {
    let (ready, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mine = get_ready();
                ready.wait();
                go.wait();
                work(mine);
            });
        }
        ready.wait();
        let begun = begin();
        go.wait();
        begun
    })
}
