//! The whole lock in many orders of its atomic operations, under loom (`make loom`).

use super::*;
use crate::sync::Relaxed;
use loom::{
    cell::UnsafeCell,
    model::Builder,
    sync::{Arc, Condvar, Mutex},
    thread,
};
use std::{cell::Cell, ptr};

loom::thread_local! {
    static NODE: Cell<u32> = Cell::new(0);
}

/// Each thread says its node itself. Waiters stay for so many turns.
struct Told<const TURNS: u32>;

impl<const TURNS: u32> Platform for Told<TURNS> {
    fn node() -> u32 {
        NODE.with(Cell::get)
    }

    fn stays(turns: u32) -> bool {
        turns < TURNS
    }

    fn give_way() {
        thread::yield_now();
    }
}

loom::lazy_static! {
    /// The kernel's lock of its futexes, and the addresses of those that are slept on.
    static ref SLEEPERS: (Mutex<Vec<usize>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());
}

/// A thread whose wake-up is lost stays asleep, which loom reports. One thread sleeps on a word.
impl<const TURNS: u32> Futex for Told<TURNS> {
    fn sleep(word: &AtomicU32, value: u32) {
        let address = ptr::from_ref(word).addr();
        let mut sleepers = SLEEPERS.0.lock().unwrap();
        if word.load(Relaxed) == value {
            sleepers.push(address);
            while sleepers.contains(&address) {
                sleepers = SLEEPERS.1.wait(sleepers).unwrap();
            }
        }
    }

    fn wake(word: *const AtomicU32) {
        SLEEPERS.0.lock().unwrap().retain(|address| *address != word.addr());
        SLEEPERS.1.notify_all();
    }
}

type Stays = GivesWay<Told<{ u32::MAX }>>;
type StepsAside = GivesWay<Told<0>>;
type Asleep = Sleeps<Told<0>>;
type SoonAsleep = Sleeps<Told<1>>;

struct Counted<A, const PASSES: u32> {
    lock: RawFair<A, 1, PASSES>,
    count: UnsafeCell<u32>,
}

// SAFETY: the count is touched by the holder of the lock alone, which loom checks.
unsafe impl<A, const PASSES: u32> Sync for Counted<A, PASSES> {}

fn have_turns<A: Absence, const PASSES: u32>(counted: &Counted<A, PASSES>, node: u32, turns: u32) {
    NODE.with(|it| it.set(node));
    for _ in 0..turns {
        counted.lock.take();
        // SAFETY: this thread holds the lock.
        counted.count.with_mut(|count| unsafe { *count += 1 });
        // SAFETY: it holds the lock.
        unsafe { counted.lock.leave() };
    }
}

/// Threads on these nodes, the first of which is the main one, have so many turns each. The door
/// stays closed for the first so many hand-offs.
fn all_have_their_turns<A: Absence + 'static, const PASSES: u32>(
    nodes: &'static [u32],
    turns: u32,
    preemptions: usize,
    closed: u32,
) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(move || {
        let lock = RawFair::new();
        lock.queue.notes.close(closed);
        let counted = Arc::new(Counted::<A, PASSES> { lock, count: UnsafeCell::new(0) });
        let others = nodes[1..].iter().map(|node| {
            let counted = counted.clone();
            thread::spawn(move || have_turns(&counted, *node, turns))
        });
        let others: Vec<_> = others.collect();
        have_turns(&counted, nodes[0], turns);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(counted.lock.take_free(), "nobody is left");
        // SAFETY: no other thread is left.
        let count = counted.count.with(|count| unsafe { *count });
        assert_eq!(count, nodes.len() as u32 * turns);
    });
}

#[test]
fn two_threads_that_come_back_exclude_each_other_and_both_end() {
    all_have_their_turns::<Stays, 1>(&[0, 0], 2, 3, 0);
    all_have_their_turns::<Stays, 1>(&[0, 1], 2, 3, 0);
    all_have_their_turns::<Stays, 2>(&[0, 0], 3, 2, 0);
}

#[test]
fn a_waiter_that_steps_aside_has_its_turns() {
    all_have_their_turns::<StepsAside, 1>(&[0, 1], 2, 2, 0);
}

#[test]
fn three_threads_have_their_turns() {
    all_have_their_turns::<Stays, 1>(&[0, 0, 1], 1, 2, 0);
    all_have_their_turns::<Stays, 1>(&[0, 0, 1], 2, 1, 0);
}

#[test]
fn a_closed_door_is_left_to_the_next_one() {
    all_have_their_turns::<Stays, 1>(&[0, 1], 3, 2, 2);
    all_have_their_turns::<Stays, 1>(&[0, 1, 0], 1, 2, 2);
    all_have_their_turns::<StepsAside, 1>(&[0, 1], 2, 2, 2);
}

#[test]
fn a_waiter_that_sleeps_is_woken() {
    all_have_their_turns::<Asleep, 1>(&[0, 0], 3, 3, 0);
    all_have_their_turns::<Asleep, 1>(&[0, 1], 2, 2, 0);
    all_have_their_turns::<Asleep, 1>(&[0, 1], 2, 2, 2);
    all_have_their_turns::<Asleep, 1>(&[0, 0, 1], 1, 1, 0);
    all_have_their_turns::<SoonAsleep, 1>(&[0, 1], 2, 2, 0);
}

#[test]
fn a_waiter_that_sleeps_is_woken_in_order_of_arrival() {
    all_have_their_turns::<Asleep, 0>(&[0, 1], 2, 2, 0);
    all_have_their_turns::<Asleep, 0>(&[0, 1, 0], 1, 2, 0);
}
