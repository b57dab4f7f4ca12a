//! The fair lock beside others: a lock that is free, and one that two threads want all the time.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark may panic")]

mod test_and_set;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lock_api::{Mutex, RawMutex};
use nearside_locks::{Linux, RawFairMutex, RawFairSpinLock};
use std::{
    hint::{black_box, spin_loop},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};
use test_and_set::TestAndSet;

type Fair = RawFairSpinLock<Linux>;
type FairMutex = RawFairMutex<Linux>;
type InOrder = RawFairSpinLock<Linux, 0, 0>;

/// Time that a thread spends without the lock.
fn elsewhere() {
    (0..5).for_each(|_| spin_loop());
}

fn free<R: RawMutex>(criterion: &mut Criterion, name: &str) {
    let lock = Mutex::<R, u64>::new(0);
    criterion.bench_function(&format!("free/{name}"), |bencher| {
        bencher.iter(|| *black_box(&lock).lock() += 1);
    });
}

/// Two threads share the iterations.
fn wanted<R: RawMutex + Sync>(criterion: &mut Criterion, name: &str) {
    let id = BenchmarkId::new("wanted", name);
    criterion.bench_with_input(id, &(), |bencher, ()| {
        bencher.iter_custom(|turns| {
            let lock = Mutex::<R, u64>::new(0);
            let start = Barrier::new(3);
            let turns_of_each = turns.div_ceil(2);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        start.wait();
                        for _ in 0..turns_of_each {
                            *lock.lock() += 1;
                            elsewhere();
                        }
                    });
                }
                start.wait();
                Instant::now()
            })
            .elapsed()
        });
    });
}

fn locks(criterion: &mut Criterion) {
    free::<Fair>(criterion, "fair");
    free::<FairMutex>(criterion, "fair mutex");
    free::<InOrder>(criterion, "in order");
    free::<TestAndSet>(criterion, "test and set");
    free::<parking_lot::RawMutex>(criterion, "parking_lot");
    wanted::<Fair>(criterion, "fair");
    wanted::<FairMutex>(criterion, "fair mutex");
    wanted::<InOrder>(criterion, "in order");
    wanted::<TestAndSet>(criterion, "test and set");
    wanted::<parking_lot::RawMutex>(criterion, "parking_lot");
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = locks
}
criterion_main!(benches);
