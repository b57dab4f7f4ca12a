//! Real threads, on nodes that the tests make up.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use lock_api::Mutex;
use nearside_locks::{FairSpinLock, Linux, NodeCounter, Platform, RawFairSpinLock};
use std::{cell::Cell, sync::Barrier, thread};

thread_local! {
    static NODE: Cell<u32> = const { Cell::new(0) };
}

/// Each thread says its node itself.
struct Told;

impl Platform for Told {
    fn node() -> u32 {
        NODE.get()
    }

    fn stays(turns: u32) -> bool {
        Linux::stays(turns)
    }

    fn give_way() {
        Linux::give_way();
    }
}

/// Threads on `nodes` nodes, each with its number of turns.
fn all_turns_count<const MOST: u32, const PASSES: u32>(threads: u32, nodes: u32, turns: u64) {
    let lock = Mutex::<RawFairSpinLock<Told, MOST, PASSES>, _>::new((0_u64, Vec::new()));
    let start = Barrier::new(threads as usize);
    thread::scope(|scope| {
        for each in 0..threads {
            let (lock, start) = (&lock, &start);
            scope.spawn(move || {
                NODE.set(each % nodes);
                start.wait();
                for turn in 0..turns {
                    let mut guard = match turn % 3 {
                        0 => match lock.try_lock() {
                            Some(guard) => guard,
                            None => lock.lock(),
                        },
                        _ => lock.lock(),
                    };
                    guard.0 += 1;
                    if turn == 0 {
                        guard.1.push(each);
                    }
                }
            });
        }
    });
    assert!(lock.try_lock().is_some(), "nobody is left");
    let (count, mut seen) = lock.into_inner();
    assert_eq!(count, u64::from(threads) * turns);
    seen.sort_unstable();
    assert_eq!(seen, (0..threads).collect::<Vec<_>>());
}

#[test]
fn no_turn_is_lost_between_two_threads() {
    all_turns_count::<64, 0>(2, 2, 200_000);
    all_turns_count::<64, 16>(2, 2, 200_000);
    all_turns_count::<64, 1>(2, 1, 200_000);
}

/// More threads than the CPUs of most test machines.
#[test]
fn no_turn_is_lost_among_many_threads() {
    all_turns_count::<0, 0>(16, 4, 2_000);
    all_turns_count::<1, 1>(16, 4, 2_000);
    all_turns_count::<64, 0>(16, 4, 2_000);
    all_turns_count::<64, 16>(16, 4, 2_000);
}

#[test]
fn a_lock_of_this_machine_protects_its_data() {
    static LIST: FairSpinLock<Linux, Vec<u32>> = FairSpinLock::new(Vec::new());
    thread::scope(|scope| {
        for each in 0..8 {
            scope.spawn(move || LIST.lock().extend([each; 100]));
        }
    });
    let list = LIST.lock();
    assert!(LIST.is_locked() && LIST.try_lock().is_none());
    assert_eq!(list.len(), 800);
    assert!(list.chunks(100).all(|chunk| chunk.iter().all(|it| *it == chunk[0])));
}

/// A platform is a name: it need not be `Send`, `Sync` or `Debug`.
#[test]
fn any_platform_makes_a_lock_that_threads_share() {
    struct Pointer(#[allow(dead_code, reason = "makes it neither Send nor Sync")] *const ());
    impl Platform for Pointer {
        fn node() -> u32 {
            0
        }
    }
    fn shared<T: Send + Sync + std::fmt::Debug>(_: &T) {}
    let lock = FairSpinLock::<Pointer, u32>::new(1);
    shared(&lock);
    assert!(format!("{lock:?}").contains('1'));
}

#[test]
fn a_counter_loses_nothing_and_nodes_beyond_the_last_share_one() {
    let counter = NodeCounter::<3>::new();
    thread::scope(|scope| {
        for node in 0..5 {
            let counter = &counter;
            scope.spawn(move || {
                NODE.set(node);
                (0..1_000).for_each(|_| counter.add::<Told>(2));
            });
        }
    });
    assert_eq!(counter.sum(), 10_000);
}
