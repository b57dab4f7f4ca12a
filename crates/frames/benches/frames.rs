//! Allocation and free beside a buddy system and a bitmap, each behind a mutex.
//!
//! One thread or two: each allocates many extents and frees them, in their order or mixed, or
//! allocates and frees one at a time. Times are of one pair of both operations.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark may panic")]

use buddy_system_allocator::FrameAllocator;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use nearside_frames::{Cache, Extent, Machine, Memory, Metadata, Node, Order, Zone};
use std::{
    hint::black_box,
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

/// 4 GiB of frames of 4 KiB.
const FRAMES: u64 = 1 << 20;

/// A thread's way to an allocator.
trait Allocator {
    type Extent: Copy;
    fn allocate(&mut self, order: u8) -> Self::Extent;
    fn free(&mut self, extent: Self::Extent, order: u8);
}

impl Allocator for Cache<'_> {
    type Extent = Extent;

    fn allocate(&mut self, order: u8) -> Extent {
        Cache::allocate(self, Order::new(order).unwrap()).unwrap()
    }

    fn free(&mut self, extent: Extent, _order: u8) {
        Cache::free(self, extent).unwrap();
    }
}

impl Allocator for &Mutex<FrameAllocator> {
    type Extent = usize;

    fn allocate(&mut self, order: u8) -> usize {
        self.lock().unwrap().alloc(1 << order).unwrap()
    }

    fn free(&mut self, extent: usize, order: u8) {
        self.lock().unwrap().dealloc(extent, 1 << order);
    }
}

/// A bit for each frame, searched from the last hit on.
struct Bitmap {
    words: Vec<u64>,
    from: usize,
}

impl Allocator for &Mutex<Bitmap> {
    type Extent = usize;

    fn allocate(&mut self, order: u8) -> usize {
        let mut bitmap = self.lock().unwrap();
        let words = 1 << order.saturating_sub(6);
        let count = bitmap.words.len();
        let from = bitmap.from / words * words;
        for step in (0..count).step_by(words) {
            let at = (from + step) % count;
            if words == 1 && bitmap.words[at] != 0 {
                let bit = bitmap.words[at].trailing_zeros();
                bitmap.words[at] &= !(1 << bit);
                bitmap.from = at;
                return at * 64 + bit as usize;
            }
            if words > 1 && bitmap.words[at..at + words].iter().all(|word| *word == !0) {
                bitmap.words[at..at + words].fill(0);
                bitmap.from = at;
                return at * 64;
            }
        }
        unreachable!("it is never full");
    }

    fn free(&mut self, extent: usize, order: u8) {
        let mut bitmap = self.lock().unwrap();
        match order {
            0 => bitmap.words[extent / 64] |= 1 << (extent % 64),
            _ => bitmap.words[extent / 64..][..1 << (order - 6)].fill(!0),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Pattern {
    /// Many, freed in the order in which they came.
    Bulk,
    /// Many, freed in another order.
    Mixed,
    /// One at a time.
    Single,
}

/// The time of `rounds` pairs of both operations in each of the threads.
fn time<A: Allocator>(
    threads: usize,
    rounds: u64,
    order: u8,
    pattern: Pattern,
    way: impl Fn() -> A + Sync,
) -> Duration {
    let barrier = Barrier::new(threads);
    let many: usize = if order == 0 { 4096 } else { 64 };
    let run = || {
        let mut allocator = way();
        let mut extents = Vec::with_capacity(many);
        barrier.wait();
        let began = Instant::now();
        let mut left = rounds as usize;
        while left > 0 {
            let batch = left.min(if matches!(pattern, Pattern::Single) { 1 } else { many });
            left -= batch;
            extents.extend((0..batch).map(|_| allocator.allocate(order)));
            let step = if matches!(pattern, Pattern::Mixed) { 1021 } else { 1 };
            for at in 0..batch {
                // The step is prime, so each extent has its turn.
                let at = if batch == many { at * step % many } else { at };
                allocator.free(black_box(extents[at]), order);
            }
            extents.clear();
        }
        began.elapsed()
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    })
}

fn frames(criterion: &mut Criterion) {
    let memory = [Memory::new(Node(0), Zone::Normal, 0, FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
    let mut buddy = FrameAllocator::new();
    buddy.add_frame(0, FRAMES as usize);
    let buddy = Mutex::new(buddy);
    let bitmap = Mutex::new(Bitmap { words: vec![!0; FRAMES as usize / 64], from: 0 });
    for order in [0, 9] {
        for threads in [1, 2] {
            let name = format!("order {order}, threads {threads}");
            let mut group = criterion.benchmark_group(name);
            group.sample_size(10).measurement_time(Duration::from_millis(500));
            group.warm_up_time(Duration::from_millis(200));
            for pattern in [Pattern::Bulk, Pattern::Mixed, Pattern::Single] {
                let id = |name| BenchmarkId::new(name, format!("{pattern:?}"));
                group.bench_function(id("nearside"), |bencher| {
                    bencher.iter_custom(|rounds| {
                        time(threads, rounds, order, pattern, || {
                            Cache::new(&machine, Node(0)).unwrap()
                        })
                    });
                });
                group.bench_function(id("buddy"), |bencher| {
                    bencher.iter_custom(|rounds| time(threads, rounds, order, pattern, || &buddy));
                });
                group.bench_function(id("bitmap"), |bencher| {
                    bencher.iter_custom(|rounds| time(threads, rounds, order, pattern, || &bitmap));
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, frames);
criterion_main!(benches);
