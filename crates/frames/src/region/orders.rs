//! A region in many orders of its accesses, under loom (`make loom`).
//!
//! A chunk has 128 frames here, in two words.

use super::*;
use crate::{account::Account, sync::spin_loop};
use loom::{model::Builder, sync::Arc, thread};
use std::{vec, vec::Vec};

/// A region whose frames have contents: how often each had an owner who wrote to it. The cases use
/// one frame of a word.
struct Scene {
    region: Region<'static>,
    account: Account,
    /// Read and written in two steps, as memory is.
    contents: Vec<AtomicU64>,
    /// Counted in one step.
    writes: Vec<AtomicU64>,
}

impl Scene {
    /// A region of so many frames, all of them in use.
    fn new(frames: u64) -> Self {
        let memory = Memory::new(Node(0), Zone::Normal, 0, frames);
        let zeros = |words: usize| (0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        // A run has a handful of words, which its region needs to its end.
        let region = Region::new(&memory, zeros(metadata_words(&memory)).leak());
        while let Some((chunk, free)) = region.claim_for(Order::BASE) {
            assert!(!free.is_empty(), "{chunk}");
        }
        let words = (frames / 64) as usize;
        Self { region, account: Account::new(), contents: zeros(words), writes: zeros(words) }
    }

    /// Writes to a frame, as its owner does.
    fn write(&self, frame: u64) {
        let word = (frame / 64) as usize;
        let now = self.contents[word].load(Relaxed);
        self.contents[word].store(now + 1, Relaxed);
        self.writes[word].fetch_add(1, Relaxed);
    }

    fn free(&self, frame: u64) {
        self.write(frame);
        self.region.give_extent(Extent::at(frame, Order::BASE)).unwrap();
        self.account.add(1);
    }

    /// Allocates a frame, unless others have all of them in their hands.
    fn allocate(&self) -> Option<u64> {
        if !self.account.take(1) {
            return None;
        }
        let found = self.draw();
        if found.is_none() {
            self.account.add(1);
        }
        found
    }

    /// Allocates a frame, and keeps it.
    fn take(&self) {
        let _ = self.allocate();
    }

    /// Allocates a frame that was counted out.
    fn draw(&self) -> Option<u64> {
        let (chunk, mut free) = self.region.claim_for(Order::BASE)?;
        let first = free.take_first(Order::BASE).unwrap();
        let frame = self.region.frame_of(chunk) + u64::from(first);
        self.write(frame);
        if !free.is_empty() {
            self.region.give(chunk, &free).unwrap();
        }
        Some(frame)
    }

    /// All free frames. Whoever asks is the only one left.
    fn found(&self) -> Vec<u64> {
        for (contents, writes) in self.contents.iter().zip(&self.writes) {
            assert_eq!(contents.load(Relaxed), writes.load(Relaxed), "two owners at a time");
        }
        let counted = self.account.unclaimed() + self.account.claimed();
        assert_eq!(self.region.free_frames(), counted);
        let found: Vec<_> = core::iter::from_fn(|| self.draw()).collect();
        assert_eq!(found.len() as u64, counted, "a free frame is not found");
        found
    }
}

/// Runs threads side by side, in all orders with at most so many preemptions (all orders without a
/// bound), and looks at what is left.
fn in_many_orders(
    preemptions: Option<usize>,
    scene: fn() -> Scene,
    threads: &'static [fn(&Scene)],
    after: fn(&Scene),
) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(move || {
        let scene = Arc::new(scene());
        let threads: Vec<_> = threads
            .iter()
            .map(|body| {
                let scene = Arc::clone(&scene);
                thread::spawn(move || body(&scene))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        after(&scene);
    });
}

/// A region of a chunk, of which these frames are free.
fn with_free(frames: &[u64]) -> Scene {
    let scene = Scene::new(CHUNK_FRAMES);
    frames.iter().for_each(|&frame| scene.free(frame));
    scene
}

#[test]
fn a_frame_has_one_owner_and_its_contents_come_along() {
    // A thread that finds the frame hands it back.
    fn turn(scene: &Scene) {
        if let Some(frame) = scene.allocate() {
            scene.free(frame);
        }
    }
    let after = |scene: &Scene| assert_eq!(scene.found(), [3]);
    in_many_orders(None, || with_free(&[3]), &[turn, turn], after);
    in_many_orders(Some(2), || with_free(&[3]), &[turn, turn, turn], after);
}

#[test]
fn a_frame_that_is_freed_while_the_chunk_is_taken_is_found() {
    in_many_orders(
        None,
        || with_free(&[3]),
        &[|scene| scene.free(70), Scene::take],
        |scene| assert_eq!(scene.found(), [70]),
    );
    // The one that is freed may be the one that is allocated.
    in_many_orders(
        None,
        || with_free(&[70]),
        &[|scene| scene.free(3), Scene::take],
        |scene| assert!(!scene.found().is_empty()),
    );
}

#[test]
fn a_claimed_frame_is_found_while_others_allocate_beside_it() {
    in_many_orders(
        Some(3),
        || with_free(&[3, 70]),
        &[
            |scene| {
                assert!(scene.account.claim(1));
                // The other one may have both frames in its hands for some instructions.
                while scene.draw().is_none() {
                    spin_loop();
                }
                scene.account.take_claimed(1);
            },
            |scene| {
                if let Some(frame) = scene.allocate() {
                    scene.free(frame);
                }
            },
        ],
        |scene| assert_eq!(scene.found().len(), 1),
    );
}

#[test]
fn promises_never_exceed_the_free_frames() {
    in_many_orders(
        None,
        || with_free(&[3]),
        &[
            |scene| {
                let is_granted = scene.account.claim(1);
                assert!(!is_granted || scene.draw().is_some());
                scene.account.take_claimed(u64::from(is_granted));
            },
            |scene| {
                let is_granted = scene.account.take(1);
                assert!(!is_granted || scene.draw().is_some());
            },
        ],
        |scene| assert!(scene.found().is_empty()),
    );
}

/// All frames of a word of a chunk.
fn half(word: usize) -> Chunk {
    const { assert!(WORDS == 2) };
    let mut half = Chunk::EMPTY;
    half.0[word] = !0;
    half
}

#[test]
fn the_last_frames_of_a_chunk_make_a_whole() {
    let give: [fn(&Scene); 2] = [
        |scene| scene.region.give(0, &half(0)).unwrap(),
        |scene| scene.region.give(0, &half(1)).unwrap(),
    ];
    in_many_orders(
        None,
        || Scene::new(CHUNK_FRAMES),
        give.to_vec().leak(),
        |scene| {
            assert_eq!(scene.region.take_run(Order::HUGE), Some(0));
        },
    );
}

/// The second half of a chunk is freed. The first half is free.
const SECOND_HALF: fn(&Scene) = |scene| scene.region.give(0, &half(1)).unwrap();

fn with_first_half() -> Scene {
    let scene = Scene::new(CHUNK_FRAMES);
    scene.region.give(0, &half(0)).unwrap();
    scene.account.add(CHUNK_FRAMES);
    scene
}

#[test]
fn a_frame_is_taken_from_a_chunk_that_becomes_whole() {
    in_many_orders(Some(3), with_first_half, &[SECOND_HALF, Scene::take], |scene| {
        let left = scene.account.unclaimed();
        assert_eq!(scene.region.free_frames(), left);
        let whole = scene.region.take_run(Order::HUGE);
        assert_eq!(whole.is_some(), left == CHUNK_FRAMES, "{left} are free");
    });
}

#[test]
fn a_chunk_becomes_whole_after_a_frame_was_taken_and_freed() {
    fn turn(scene: &Scene) {
        if let Some(frame) = scene.allocate() {
            scene.free(frame);
        }
    }
    let after = |scene: &Scene| assert_eq!(scene.region.take_run(Order::HUGE), Some(0));
    in_many_orders(Some(3), with_first_half, &[SECOND_HALF, turn], after);
    // Two threads may want to make it whole while a third one takes a frame.
    let first_half: fn(&Scene) = |scene| {
        scene.region.give(0, &half(0)).unwrap();
        scene.account.add(CHUNK_FRAMES);
    };
    let threads = vec![first_half, SECOND_HALF, turn];
    in_many_orders(Some(2), || Scene::new(CHUNK_FRAMES), threads.leak(), after);
}

#[test]
fn a_whole_chunk_goes_as_a_whole_or_without_a_frame() {
    in_many_orders(
        None,
        || {
            let scene = Scene::new(CHUNK_FRAMES);
            scene.region.give(0, &Chunk::FULL).unwrap();
            scene
        },
        &[
            |scene| {
                let taken = scene.region.take_run(Order::HUGE).map_or(0, |_| CHUNK_FRAMES);
                scene.account.add(taken);
            },
            |scene| scene.account.add(u64::from(scene.region.take_frame(Frame(70)))),
        ],
        |scene| {
            let taken = scene.account.unclaimed();
            assert!(taken == 1 || taken == CHUNK_FRAMES, "{taken}");
            assert_eq!(scene.region.free_frames(), CHUNK_FRAMES - taken);
        },
    );
}

#[test]
fn of_two_frees_of_a_frame_one_is_reported() {
    fn free(scene: &Scene) {
        let given = scene.region.give_extent(Extent::at(3, Order::BASE));
        let frames = given.map_or_else(|twice| twice.frames, |()| 0);
        scene.account.add(1 - frames);
    }
    in_many_orders(
        None,
        || Scene::new(CHUNK_FRAMES),
        &[free, free],
        |scene| {
            assert_eq!(scene.account.unclaimed(), 1, "one of them counts");
            assert_eq!(scene.found(), [3]);
        },
    );
}
