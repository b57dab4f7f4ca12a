//! Real threads, on nodes that the tests make up.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use lock_api::{Mutex, RawMutex};
use nearside_locks::{
    FairMutex, FairSpinLock, Futex, Linux, NodeCounter, NodeRwLock, Platform, RawFairMutex,
    RawFairSpinLock, lock_api::RwLockWriteGuard,
};
use std::{
    cell::Cell,
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

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

impl Futex for Told {
    fn sleep(word: &AtomicU32, value: u32) {
        Linux::sleep(word, value);
    }

    fn wake(word: *const AtomicU32) {
        Linux::wake(word);
    }
}

/// Threads on `nodes` nodes, each with its number of turns, for locks that spin and that sleep.
fn all_turns_count<const MOST: u32, const PASSES: u32>(threads: u32, nodes: u32, turns: u64) {
    all_turns_of::<RawFairSpinLock<Told, MOST, PASSES>>(threads, nodes, turns);
    all_turns_of::<RawFairMutex<Told, MOST, PASSES>>(threads, nodes, turns);
}

fn all_turns_of<R: RawMutex + Sync>(threads: u32, nodes: u32, turns: u64) {
    // Miri takes a thousand times as long.
    let turns = if cfg!(miri) { turns / 1_000 } else { turns };
    let lock = Mutex::<R, _>::new((0_u64, Vec::new()));
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

fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(300), "waited in vain: {what}");
        thread::yield_now();
    }
}

/// Whether a thread of this process is in this system call.
fn is_in(tid: rustix::thread::Pid, call: libc::c_long) -> bool {
    let path = format!("/proc/self/task/{}/syscall", tid.as_raw_nonzero());
    let shown = std::fs::read_to_string(path).unwrap();
    shown.split(' ').next() == Some(&call.to_string())
}

/// In the queue, and the first one at the door.
#[test]
fn waiters_for_a_mutex_sleep_while_it_is_held() {
    static MUTEX: FairMutex<Linux, u32> = FairMutex::new(0);
    let (send, tids) = mpsc::channel();
    let held = MUTEX.lock();
    thread::scope(|scope| {
        for _ in 0..3 {
            let send = send.clone();
            scope.spawn(move || {
                send.send(rustix::thread::gettid()).unwrap();
                *MUTEX.lock() += 1;
            });
        }
        let tids: Vec<_> = tids.iter().take(3).collect();
        await_that("they sleep", || tids.iter().all(|tid| is_in(*tid, libc::SYS_futex)));
        drop(held);
    });
    assert_eq!(*MUTEX.lock(), 3);
}

/// The kernel is slow to wake: a thread that sleeps does so until the test says that it may go on.
struct Slow;

/// Threads that have fallen asleep, and how many of them may go on, in that order.
static ASLEEP: AtomicU32 = AtomicU32::new(0);
static AWAKE: AtomicU32 = AtomicU32::new(0);
static WOKEN: AtomicU32 = AtomicU32::new(0);

impl Platform for Slow {
    fn node() -> u32 {
        NODE.get()
    }

    fn stays(_: u32) -> bool {
        false
    }
}

impl Futex for Slow {
    fn sleep(word: &AtomicU32, value: u32) {
        if word.load(Relaxed) == value {
            let place = ASLEEP.fetch_add(1, Relaxed);
            await_that("the test wakes it", || AWAKE.load(Relaxed) > place);
        }
    }

    fn wake(_: *const AtomicU32) {
        WOKEN.fetch_add(1, Relaxed);
    }
}

#[test]
fn so_many_threads_of_any_node_pass_a_waiter_that_sleeps() {
    let lock = Mutex::<RawFairMutex<Slow, 8, 2>, _>::new(0);
    let others_pass = |before: u32| {
        await_that("the next one is woken", || WOKEN.load(Relaxed) == before + 1);
        await_that("the former holder has left", || !lock.is_locked());
        for pass in 0..16 {
            NODE.set(pass % 4);
            match pass % 3 {
                0 => *lock.try_lock().unwrap() += 1,
                _ => *lock.lock() += 1,
            }
        }
        assert!(lock.try_lock().is_none() && !lock.is_locked(), "8 times 2 have passed");
    };
    thread::scope(|scope| {
        let held = lock.lock();
        scope.spawn(|| *lock.lock() += 1);
        await_that("the first waiter sleeps, at the door", || ASLEEP.load(Relaxed) == 1);
        scope.spawn(|| *lock.lock() += 1);
        await_that("the second one sleeps, in the queue", || ASLEEP.load(Relaxed) == 2);
        drop(held);
        others_pass(0);
        AWAKE.store(1, Relaxed);
        others_pass(1);
        AWAKE.store(2, Relaxed);
    });
    assert_eq!((*lock.lock(), WOKEN.load(Relaxed)), (34, 2));
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

/// Readers move to another node while they read. A torn pair would show a writer beside a reader.
fn readers_see_whole_pairs<const NODES: usize>(threads: u32, turns: u64) {
    let pair = NodeRwLock::<Told, _, NODES>::new((0_u64, 0_u64));
    let start = Barrier::new(threads as usize);
    thread::scope(|scope| {
        for each in 0..threads {
            let (pair, start) = (&pair, &start);
            scope.spawn(move || {
                NODE.set(each);
                start.wait();
                let mut last = 0;
                for turn in 0..turns {
                    if (turn + u64::from(each)) % 8 == 0 {
                        let mut pair = match pair.try_write() {
                            Some(pair) => pair,
                            None => pair.write(),
                        };
                        pair.0 += 1;
                        pair.1 += 1;
                        last = RwLockWriteGuard::downgrade(pair).0;
                    } else {
                        let seen = match turn % 3 {
                            0 => pair.try_read().unwrap_or_else(|| pair.read()),
                            _ => pair.read(),
                        };
                        NODE.set(NODE.get() + 1);
                        assert_eq!(seen.0, seen.1);
                        assert!(seen.0 >= last, "a writer's turn is lost");
                        last = seen.0;
                    }
                }
            });
        }
    });
    assert!(!pair.is_locked());
    assert_eq!(
        pair.try_write().map(|pair| *pair),
        Some((u64::from(threads) * turns / 8, u64::from(threads) * turns / 8))
    );
}

#[test]
fn readers_and_writers_exclude_each_other() {
    readers_see_whole_pairs::<2>(2, 80_000);
    readers_see_whole_pairs::<4>(16, 4_000);
    readers_see_whole_pairs::<1>(8, 4_000);
}

#[test]
fn readers_share_a_lock_and_keep_a_writer_out() {
    static NAMES: NodeRwLock<Linux, Vec<&str>, 8> = NodeRwLock::new(Vec::new());
    NAMES.write().push("db");
    let (one, two) = (NAMES.read(), NAMES.try_read().unwrap());
    assert_eq!((*one).as_slice(), ["db"]);
    assert!(NAMES.try_write().is_none() && NAMES.is_locked());
    assert!(!NAMES.is_locked_exclusive());
    assert!(format!("{:?}", NAMES).contains("db"));
    drop((one, two));
    let writer = NAMES.try_write().unwrap();
    assert!(NAMES.try_read().is_none() && NAMES.is_locked_exclusive());
    drop(writer);
    assert!(!NAMES.is_locked());
}
