//! Pairs of allocation and free, to count instructions with callgrind:
//! `valgrind --tool=callgrind --toggle-collect='*counted*' target/release/examples/pairs bulk 0`.

#![allow(clippy::unwrap_used, reason = "an example may panic")]

use nearside_frames::{Cache, Extent, Machine, Memory, Metadata, Node, Order, Zone};

const PAIRS: usize = 1 << 16;

/// Allocates and frees so many extents at a time, freed `step` extents apart. The number of extents
/// has no divisor in common with the step.
#[inline(never)]
fn counted(cache: &mut Cache<'_>, order: Order, many: usize, step: usize, to: &mut Vec<Extent>) {
    for _ in 0..PAIRS / many {
        for _ in 0..many {
            to.push(cache.allocate(order).unwrap());
        }
        let mut at = 0;
        for _ in 0..many {
            cache.free(to[at]).unwrap();
            at = (at + step) & (many - 1);
        }
        to.clear();
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let order = Order::new(words[1].parse().unwrap()).unwrap();
    let all = if order < Order::HUGE { 4096 } else { 64 };
    let (many, step) = match words[0].as_str() {
        "bulk" => (all, 1),
        "mixed" => (all, 1021),
        _ => (1, 1),
    };
    let memory = [Memory::new(Node(0), Zone::Normal, 0, 1 << 20)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    counted(&mut cache, order, many, step, &mut Vec::with_capacity(all));
}
