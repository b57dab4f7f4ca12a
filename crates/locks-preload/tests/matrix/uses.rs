//! Uses of a plain mutex that is waited for.

use crate::mutex::{Condition, Mutex};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    thread,
};

#[test]
fn a_lock_that_is_tried_or_has_a_limit_fails() {
    let mutex = Mutex::plain();
    assert_eq!(mutex.lock(), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(mutex.try_lock(), libc::EBUSY);
            assert_eq!(mutex.timed_lock(), libc::ETIMEDOUT);
        });
    });
    assert_eq!(mutex.unlock(), 0);
    assert_eq!((mutex.timed_lock(), mutex.unlock()), (0, 0));
}

#[test]
fn some_with_a_limit_and_some_that_try_beside_those_that_wait() {
    let mutex = Mutex::plain();
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| mutex.count_up(20_000));
        }
        for is_timed in [true, false] {
            let (mutex, taken) = (&mutex, &taken);
            scope.spawn(move || {
                for _ in 0..5_000 {
                    let result = if is_timed { mutex.timed_lock() } else { mutex.try_lock() };
                    if result == 0 {
                        mutex.add();
                        taken.fetch_add(1, Relaxed);
                        assert_eq!(mutex.unlock(), 0);
                    }
                }
            });
        }
    });
    assert_eq!(mutex.count(), 80_000 + u64::from(taken.load(Relaxed)));
}

#[test]
fn threads_that_wake_each_other_by_a_condition_take_turns() {
    let (mutex, condition) = (Mutex::plain(), Condition::new());
    let threads = 4;
    thread::scope(|scope| {
        for number in 0..threads {
            let (mutex, condition) = (&mutex, &condition);
            scope.spawn(move || {
                for _ in 0..1_000 {
                    assert_eq!(mutex.lock(), 0);
                    while mutex.count() % threads != number {
                        assert_eq!(condition.wait(mutex), 0);
                    }
                    mutex.add();
                    condition.wake_all();
                    assert_eq!(mutex.unlock(), 0);
                }
            });
        }
    });
    assert_eq!(mutex.count(), threads * 1_000);
}

#[test]
fn a_wait_for_a_condition_ends_in_time_and_with_the_mutex() {
    let (mutex, condition) = (Mutex::plain(), Condition::new());
    assert_eq!(mutex.lock(), 0);
    assert_eq!(condition.timed_wait(&mutex), libc::ETIMEDOUT);
    assert_eq!(mutex.try_lock(), libc::EBUSY);
    assert_eq!(mutex.unlock(), 0);
}

#[test]
fn thousands_of_mutexes_two_at_a_time() {
    let mutexes: Vec<_> = (0..4_096).map(|_| Mutex::plain()).collect();
    let (threads, turns) = (8_usize, 40_000_usize);
    thread::scope(|scope| {
        for thread in 0..threads {
            let mutexes = &mutexes;
            scope.spawn(move || {
                let mut chance = thread as u64 + 1;
                for _ in 0..turns {
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let number = (chance >> 33) as usize;
                    // In one order. The first of two is waited for, and some second one has the
                    // same place in the object.
                    let first = &mutexes[number % 4];
                    let second = &mutexes[4 + number / 4 % (mutexes.len() - 4)];
                    assert_eq!((first.lock(), second.lock()), (0, 0));
                    first.add();
                    second.add();
                    assert_eq!((second.unlock(), first.unlock()), (0, 0));
                }
            });
        }
    });
    let sum: u64 = mutexes.iter().map(Mutex::count).sum();
    assert_eq!(sum, 2 * (threads * turns) as u64);
}

#[test]
fn a_place_serves_one_mutex_after_the_other() {
    for _ in 0..200 {
        let mutex = Mutex::plain();
        mutex.count_in(4, 200);
        assert_eq!(mutex.destroy(), 0);
    }
}

#[test]
fn a_real_time_thread_beside_others() {
    let mutex = Mutex::plain();
    thread::scope(|scope| {
        scope.spawn(|| {
            let parameters = libc::sched_param { sched_priority: 1 };
            // SAFETY: it changes the calling thread.
            if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } != 0 {
                println!("without a real-time thread: that takes privileges");
            }
            mutex.count_up(20_000);
        });
        for _ in 0..3 {
            scope.spawn(|| mutex.count_up(20_000));
        }
    });
    assert_eq!(mutex.count(), 80_000);
}

#[test]
fn those_who_wait_get_it_once_it_is_free() {
    let (mutex, is_held) = (Mutex::plain(), AtomicBool::new(false));
    let ready = Barrier::new(5);
    assert_eq!(mutex.lock(), 0);
    is_held.store(true, Relaxed);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                ready.wait();
                assert_eq!(mutex.lock(), 0);
                assert!(!is_held.load(Relaxed));
                assert_eq!(mutex.unlock(), 0);
            });
        }
        ready.wait();
        for _ in 0..1_000 {
            thread::yield_now();
        }
        is_held.store(false, Relaxed);
        assert_eq!(mutex.unlock(), 0);
    });
}
