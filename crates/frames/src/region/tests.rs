use super::*;
use crate::memory::Metadata;
use std::{hint, ops::Range, sync::atomic::AtomicU64, thread, vec::Vec};

/// Lets two threads go on at the same instant, which a lock would not.
#[derive(Default)]
struct Start(AtomicU64);

impl Start {
    fn wait(&self) {
        let before = self.0.fetch_add(1, SeqCst);
        let mut tries = 0_u32;
        while self.0.load(SeqCst) / 2 == before / 2 {
            tries += 1;
            if tries.is_multiple_of(1_000) { thread::yield_now() } else { hint::spin_loop() }
        }
    }
}

/// Two threads hand the last two pieces of a chunk back at the same time, after the words of
/// `rest`. The one that comes last makes the chunk whole. The other one finds it whole then,
/// although its frames were not free before.
fn race(rest: Range<usize>, give: impl Fn(&Region<'_>, usize) -> Result<(), Twice> + Sync) {
    const ROUNDS: u32 = 30_000;
    let memory = [Memory::new(Node(0), Zone::Normal, 0, CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let region = &Region::new(&memory[0], metadata.slices()[0]);
    let mut first = Chunk::EMPTY;
    first.0[rest].fill(!0);
    let (start, give, first) = (&Start::default(), &give, &first);
    // Every round is done, so that no thread waits for one that has failed.
    let faults: Vec<_> = thread::scope(|scope| {
        let givers = [0, 1].map(|piece| {
            scope.spawn(move || {
                let mut faults = Vec::new();
                for round in 0..ROUNDS {
                    if piece == 0 {
                        if region.take_run(Order::HUGE) != Some(0) {
                            faults.push((round, None));
                        }
                        faults.extend(region.give(0, first).err().map(|it| (round, Some(it))));
                    }
                    start.wait();
                    faults.extend(give(region, piece).err().map(|it| (round, Some(it))));
                    start.wait();
                }
                faults
            })
        });
        givers.into_iter().flat_map(|giver| giver.join().unwrap()).collect()
    });
    assert_eq!(faults, []);
}

#[test]
fn halves_that_are_freed_at_once_make_a_whole() {
    let half = |piece: usize| {
        let mut half = Chunk::EMPTY;
        half.0[piece * WORDS / 2..(piece + 1) * WORDS / 2].fill(!0);
        half
    };
    race(0..0, |region, piece| region.give(0, &half(piece)));
}

#[test]
fn extents_that_are_freed_at_once_make_a_whole() {
    let order = Order::new(6).unwrap();
    race(2..WORDS, |region, piece| region.give_extent(Extent::at(piece as u64 * 64, order)));
}
