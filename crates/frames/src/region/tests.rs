use super::*;
use crate::memory::Metadata;
use std::{hint, sync::atomic::AtomicU64, thread, vec::Vec};

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

/// Two threads hand the two halves of a chunk back at the same time. The one that comes last makes
/// the chunk whole. The other one finds it whole then, although its frames were not free before.
#[test]
fn halves_that_are_freed_at_once_make_a_whole() {
    const ROUNDS: u32 = 100_000;
    let memory = [Memory::new(Node(0), Zone::Normal, 0, CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let region = &Region::new(&memory[0], metadata.slices()[0]);
    let mut halves = [Chunk::FULL; 2];
    for at in 0..WORDS {
        halves[usize::from(at < WORDS / 2)].0[at] = 0;
    }
    let start = &Start::default();
    // Every round is done, so that no thread waits for one that has failed.
    let faults: Vec<_> = thread::scope(|scope| {
        let givers = halves.map(|half| {
            scope.spawn(move || {
                let mut faults = Vec::new();
                for round in 0..ROUNDS {
                    if half.has(0) && region.take_run(Order::HUGE) != Some(0) {
                        faults.push((round, None));
                    }
                    start.wait();
                    if let Err(twice) = region.give(0, &half) {
                        faults.push((round, Some(twice)));
                    }
                    start.wait();
                }
                faults
            })
        });
        givers.into_iter().flat_map(|giver| giver.join().unwrap()).collect()
    });
    assert_eq!(faults, []);
}
