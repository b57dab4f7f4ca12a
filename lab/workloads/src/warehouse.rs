//! Threads that serve warehouses of their own: private memory, more than caches hold, that each
//! thread fills itself.

use crate::chance::{next, one_of};
use clap::Args;
use nearside_workloads::clock;
use std::{hint::black_box, mem, ops::Range, sync::Barrier, thread, time::Duration};

/// A round is so many lines to follow, one after the other's address is known ..
const FOLLOWED: usize = 3000;
/// .. each so many of which are updated ..
const UPDATED_EACH: usize = 4;
/// .. so many lines in a row (64 KiB) ..
const STREAMED: usize = 1024;
/// .. and so much work without memory: with memory that is all local, at 90 ns a line, a sixth of
/// the round.
const COMPUTED_NS: u64 = 60_000;
/// After so many rounds there is something to wait for.
const ROUNDS_TO_PAUSE: usize = 8;
const PAUSE: Duration = Duration::from_micros(300);

/// Serve warehouses.
#[derive(Debug, Args)]
pub(crate) struct Warehouse {
    #[arg(long)]
    threads: usize,
    /// So many more come when the first ones have done a quarter of their rounds
    #[arg(long, default_value_t = 0)]
    later: usize,
    /// Of each thread
    #[arg(long)]
    mib: usize,
    /// Of each thread
    #[arg(long)]
    rounds: usize,
    /// A pause after each round, beside those that all have
    #[arg(long, default_value_t = 0)]
    nap_us: u64,
    /// Of the order in which lines are followed
    #[arg(long)]
    seed: u64,
}

/// A cache line.
#[derive(Clone)]
#[repr(align(64))]
struct Line {
    next: u32,
    stock: u32,
}

/// The lines of one thread, in one cycle.
struct Goods(Vec<Line>);

impl Goods {
    /// The caller touches the memory first.
    fn new(mib: usize, seed: u64) -> Self {
        let count = (mib << 20) / size_of::<Line>();
        let mut lines: Vec<_> =
            (0..count as u32).map(|number| Line { next: number, stock: 0 }).collect();
        // Sattolo: exchanging with an earlier one, never with itself, leaves a single cycle.
        let mut chance = seed.wrapping_mul(2).wrapping_add(1);
        for last in (1..count).rev() {
            chance = next(chance);
            let other = one_of(last as u64, chance) as usize;
            let next = lines[last].next;
            lines[last].next = lines[other].next;
            lines[other].next = next;
        }
        Self(lines)
    }

    fn serve(&mut self, rounds: Range<usize>, nap: Duration) {
        let lines = &mut self.0;
        let (mut at, mut row, mut sum) = (0, 0, 0u32);
        for round in rounds {
            for step in 0..FOLLOWED {
                let line = &mut lines[at];
                if step % UPDATED_EACH == 0 {
                    line.stock = line.stock.wrapping_add(1);
                }
                at = line.next as usize;
            }
            sum = lines[row..]
                .iter()
                .take(STREAMED)
                .fold(sum, |sum, line| sum.wrapping_add(line.stock));
            row = (row + STREAMED) % lines.len();
            for _ in 0..COMPUTED_NS / clock::STEP_NS {
                clock::work();
            }
            if round % ROUNDS_TO_PAUSE == 0 {
                thread::sleep(PAUSE);
            }
            if !nap.is_zero() {
                thread::sleep(nap);
            }
        }
        black_box(sum);
    }
}

impl Warehouse {
    fn goods(&self, number: usize) -> Goods {
        Goods::new(self.mib, self.seed << 8 | number as u64)
    }

    /// Calls `begin` once all memory is filled, and works when that comes back.
    pub(crate) fn run<T>(&self, begin: impl FnOnce() -> T) -> T {
        let (filled, go) = (Barrier::new(self.threads + 1), Barrier::new(self.threads + 1));
        let nap = Duration::from_micros(self.nap_us);
        thread::scope(|scope| {
            for number in 0..self.threads {
                let (filled, go) = (&filled, &go);
                scope.spawn(move || {
                    let mut goods = self.goods(number);
                    filled.wait();
                    go.wait();
                    goods.serve(0..self.rounds / 4, nap);
                    if number == 0 {
                        for more in self.threads..self.threads + self.later {
                            scope.spawn(move || self.hold(self.goods(more), 0, nap));
                        }
                    }
                    self.hold(goods, self.rounds / 4, nap);
                });
            }
            filled.wait();
            let begun = begin();
            go.wait();
            begun
        })
    }

    /// The rest of the rounds. The memory is held until the process ends, so that its nodes can be
    /// read.
    fn hold(&self, mut goods: Goods, done: usize, nap: Duration) {
        goods.serve(done..self.rounds, nap);
        mem::forget(goods);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_in_one_cycle() {
        let goods = Goods::new(1, 7);
        let mut at = 0;
        for step in 1..=goods.0.len() {
            at = goods.0[at].next as usize;
            assert_eq!(
                at == 0,
                step == goods.0.len(),
                "back after {step} of {} steps",
                goods.0.len()
            );
        }
    }
}
