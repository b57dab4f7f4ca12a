//! The lock of readers and writers in many orders of its atomic operations, under loom
//! (`make loom`).

use super::*;
use loom::{cell::UnsafeCell, model::Builder, sync::Arc, thread};
use std::cell::Cell;

loom::thread_local! {
    static NODE: Cell<u32> = Cell::new(0);
}

/// Each thread says its node itself.
struct Told;

impl Platform for Told {
    fn node() -> u32 {
        NODE.with(Cell::get)
    }
}

struct Counted {
    lock: RawNodeRwLock<Told, 2>,
    count: UnsafeCell<u32>,
}

// SAFETY: the count is written by the writer alone and read by readers, which loom checks.
unsafe impl Sync for Counted {}

impl Counted {
    fn read(&self) -> u32 {
        // SAFETY: this thread reads under the lock.
        self.count.with(|count| unsafe { *count })
    }

    fn add(&self) {
        // SAFETY: this thread is the writer.
        self.count.with_mut(|count| unsafe { *count += 1 });
        // SAFETY: this thread is the writer.
        unsafe { self.lock.end_write() };
    }
}

fn on(node: u32) {
    NODE.with(|it| it.set(node));
}

fn in_many_orders(preemptions: usize, threads: &'static [fn(&Counted)], count: u32) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(move || {
        let counted = Arc::new(Counted { lock: RawNodeRwLock::new(), count: UnsafeCell::new(0) });
        let others = threads[1..].iter().map(|thread| {
            let counted = counted.clone();
            thread::spawn(move || thread(&counted))
        });
        let others: Vec<_> = others.collect();
        threads[0](&counted);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(counted.lock.try_write(), "nobody is left");
        assert_eq!(counted.read(), count);
    });
}

/// Comes on one node and leaves on the other.
fn read_and_move(counted: &Counted) {
    on(1);
    counted.lock.enter();
    let before = counted.read();
    on(0);
    assert_eq!(counted.read(), before);
    counted.lock.exit();
}

fn read_twice(counted: &Counted) {
    on(0);
    for _ in 0..2 {
        counted.lock.enter();
        counted.read();
        counted.lock.exit();
    }
}

fn write(counted: &Counted) {
    counted.lock.write();
    counted.add();
}

fn write_twice(counted: &Counted) {
    write(counted);
    write(counted);
}

/// Adds one, without waiting if it can.
fn try_to_write(counted: &Counted) {
    if !counted.lock.try_write() {
        counted.lock.write();
    }
    counted.add();
}

fn try_to_read(counted: &Counted) {
    on(1);
    if counted.lock.try_enter() {
        counted.read();
        counted.lock.exit();
    }
}

#[test]
fn a_writer_and_readers_exclude_each_other() {
    in_many_orders(3, &[write, read_and_move], 1);
    in_many_orders(2, &[write_twice, read_and_move], 2);
    in_many_orders(2, &[write, read_twice], 1);
    in_many_orders(1, &[write, read_and_move, read_and_move], 1);
}

/// The second writer may mark the words before the reader sees that the first one has gone.
#[test]
fn a_reader_waits_for_one_of_two_writers() {
    in_many_orders(1, &[write, write, read_and_move], 2);
}

#[test]
fn attempts_that_fail_leave_nothing_behind() {
    in_many_orders(2, &[try_to_write, read_and_move], 1);
    in_many_orders(1, &[try_to_write, try_to_write, read_and_move], 2);
    in_many_orders(2, &[write, try_to_read], 1);
}
