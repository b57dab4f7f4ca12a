//! Threads that allocate, hand extents to each other, and free what others allocated.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_frames::{Cache, Error, Extent, Heap, Machine, Memory, Metadata, Node, Order, Zone};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

const FRAMES: u64 = 6_000;

/// Numbers that look random and are the same in each run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
fn no_frame_has_two_owners_and_none_is_lost() {
    let memory = [0, 1]
        .map(|node| Memory::new(Node(node), Zone::Normal, u64::from(node) * 10_000 + 100, FRAMES));
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices()).unwrap();
    let all_free: Vec<_> = Heap::of(&machine).regions().collect();
    let owned: Vec<AtomicBool> = (0..20_000).map(|_| AtomicBool::new(false)).collect();
    let mark = |extent: Extent, is_owned: bool| {
        for frame in extent.first().0..extent.first().0 + extent.frames() {
            assert_eq!(owned[frame as usize].swap(is_owned, Relaxed), !is_owned, "{frame:#x}");
        }
    };
    // Extents on their way from one thread to another.
    let handed_on: Mutex<Vec<Extent>> = Mutex::default();
    thread::scope(|scope| {
        for number in 0..4 {
            let (machine, mark, handed_on) = (&machine, &mark, &handed_on);
            scope.spawn(move || {
                let mut random = Random(number + 1);
                let mut cache = Cache::new(machine, Node(number as u8 % 2)).unwrap();
                let mut own = Vec::new();
                for _ in 0..60_000 {
                    match random.below(8) {
                        0..4 => {
                            let order = [0, 0, 0, 1, 3, 7, 9, 10][random.below(8) as usize];
                            match cache.allocate(Order::new(order).unwrap()) {
                                Ok(extent) => {
                                    mark(extent, true);
                                    own.push(extent);
                                }
                                Err(Error::OutOfMemory(_)) => {
                                    for extent in own.drain(own.len() / 2..) {
                                        mark(extent, false);
                                        cache.free(extent).unwrap();
                                    }
                                }
                                Err(error) => panic!("{error}"),
                            }
                        }
                        4 if !own.is_empty() => {
                            let at = random.below(own.len() as u64) as usize;
                            handed_on.lock().unwrap().push(own.swap_remove(at));
                        }
                        5 => own.extend(handed_on.lock().unwrap().pop()),
                        _ if !own.is_empty() => {
                            let at = random.below(own.len() as u64) as usize;
                            let extent = own.swap_remove(at);
                            mark(extent, false);
                            cache.free(extent).unwrap();
                        }
                        _ => {}
                    }
                }
                for extent in own {
                    mark(extent, false);
                    cache.free(extent).unwrap();
                }
            });
        }
    });
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    for extent in handed_on.into_inner().unwrap() {
        mark(extent, false);
        cache.free(extent).unwrap();
    }
    drop(cache);
    assert_eq!(machine.late_faults(), 0);
    assert_eq!(Heap::of(&machine).regions().collect::<Vec<_>>(), all_free);
}
