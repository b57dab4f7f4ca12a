//! Frames that are offline or poisoned: nobody is given them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_frames::{
    CHUNK_FRAMES, Cache, Claim, Entry, Error, Extent, Frame, FrameState, Guest, Heap, Keeper,
    Machine, Memory, Metadata, Node, Order, Request, Source, Zone,
};
use proptest::prelude::*;
use shapes::{Shape, shape};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    thread,
};

mod shapes;

fn table(entries: usize) -> Vec<AtomicU64> {
    (0..entries).map(|_| AtomicU64::new(0)).collect()
}

fn page(frame: u64) -> Extent {
    Extent::new(Frame(frame), Order::BASE).unwrap()
}

#[test]
fn a_frame_has_the_state_that_its_keeper_gave_it() {
    let memory = [Memory::new(Node(0), Zone::Normal, 0, 4 * CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let words = table(2);
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap().with_withheld(&words);
    let heap = Heap::of(&machine);
    let mut keeper = Keeper::new(&machine).unwrap();
    assert_eq!(Keeper::new(&machine).unwrap_err(), Error::SecondKeeper);
    let mut cache = Cache::new(&machine, Node(0)).unwrap();

    // Offline and back.
    let whole: Vec<_> = heap.regions().collect();
    keeper.offline(Frame(700)).unwrap();
    assert_eq!(heap.withheld().collect::<Vec<_>>(), [(Frame(700), FrameState::Offline)]);
    assert_eq!(heap.regions().map(|it| it.free_chunks()).sum::<u64>(), 3);
    assert_eq!(keeper.offline(Frame(700)), Err(Error::NotFree(Frame(700))));
    let double_free = Err(Error::DoubleFree { frame: Frame(700), node: Node(0) });
    assert_eq!(cache.free(page(700)), double_free);
    keeper.online(Frame(700)).unwrap();
    assert_eq!(keeper.online(Frame(700)), Err(Error::NotOffline(Frame(700))));
    assert_eq!(heap.regions().collect::<Vec<_>>(), whole);

    // In use, or in a cache.
    let used = cache.allocate(Order::BASE).unwrap().first();
    let cached = Frame(used.0 + 1);
    for frame in [used, cached] {
        assert_eq!(keeper.offline(frame), Err(Error::NotFree(frame)));
        assert_eq!(keeper.poison(frame), Ok(FrameState::Marked));
        assert_eq!(keeper.poison(frame), Ok(FrameState::Marked));
    }
    assert_eq!(keeper.poison(Frame(900)), Err(Error::TableFull { entries: 2 }));
    assert_eq!(keeper.offline(Frame(900)), Err(Error::TableFull { entries: 2 }));
    assert_eq!(keeper.poison(Frame(2048)), Err(Error::Foreign(page(2048))));
    cache.free(page(used.0)).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| cache.allocate(Order::BASE).ok()).collect();
    assert_eq!(all.len() as u64, 4 * CHUNK_FRAMES - 2);
    assert!(all.iter().all(|it| it.first() != used && it.first() != cached));
    let expected = [(used, FrameState::Poisoned), (cached, FrameState::Poisoned)];
    assert_eq!(heap.withheld().collect::<Vec<_>>(), expected);
}

#[test]
fn a_large_extent_comes_back_without_its_poisoned_frames() {
    let memory = [Memory::new(Node(0), Zone::Normal, 0, 8 * CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    for order in [8, 9, 10, 12] {
        let words = table(4);
        let machine =
            Machine::new(&memory, &[10], &metadata.slices()).unwrap().with_withheld(&words);
        let mut keeper = Keeper::new(&machine).unwrap();
        let mut cache = Cache::new(&machine, Node(0)).unwrap();
        let order = Order::new(order).unwrap();
        let extent = cache.allocate(order).unwrap();
        let frame = Frame(extent.first().0 + order.frames() / 2 + 3);
        assert_eq!(keeper.poison(frame), Ok(FrameState::Marked));
        cache.free(extent).unwrap();
        cache.flush().unwrap();
        let heap = Heap::of(&machine);
        assert_eq!(heap.withheld().collect::<Vec<_>>(), [(frame, FrameState::Poisoned)]);
        let free = 8 * CHUNK_FRAMES - 1;
        assert_eq!((heap.free_frames(Node(0)), heap.unclaimed_frames(Node(0))), (free, free));
    }
}

#[test]
fn a_guest_moves_away_from_a_poisoned_frame() {
    let memory = [Memory::new(Node(0), Zone::Normal, 0, 2 * CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let words = table(4);
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap().with_withheld(&words);
    let mut keeper = Keeper::new(&machine).unwrap();
    let mut entries = vec![Entry::EMPTY; 16];
    let mut guest = Guest::new(&machine, &mut entries);
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    let mut source = Source::Cache(&mut cache, Request::default());
    guest.populate(&mut source, Order::BASE, &[5]).unwrap();
    let bad = guest.frame_of(5).unwrap();
    assert_eq!(keeper.poison(bad), Ok(FrameState::Marked));
    guest.exchange(&mut source, 5..6, Order::BASE, |_| true).unwrap();
    assert_ne!(guest.frame_of(5), Some(bad));
    assert_eq!(Heap::of(&machine).withheld().next(), Some((bad, FrameState::Poisoned)));
    assert_eq!(guest.held_frames(Node(0)), 1);
}

#[derive(Debug, Clone)]
enum Step {
    Allocate { cache: usize, order: u8 },
    Claim { node: u8, order: u8 },
    Free { cache: usize, extent: prop::sample::Index },
    Flush { cache: usize },
    Offline { frame: prop::sample::Index },
    Online { entry: prop::sample::Index },
    Poison { frame: prop::sample::Index },
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    let order = || prop_oneof![2 => Just(0_u8), 3 => 0..11_u8];
    prop_oneof![
        6 => (0..2_usize, order()).prop_map(|(cache, order)| Step::Allocate { cache, order }),
        2 => (0..4_u8, order()).prop_map(|(node, order)| Step::Claim { node, order }),
        5 => (0..2_usize, any()).prop_map(|(cache, extent)| Step::Free { cache, extent }),
        1 => (0..2_usize).prop_map(|cache| Step::Flush { cache }),
        3 => any().prop_map(|frame| Step::Offline { frame }),
        2 => any().prop_map(|entry| Step::Online { entry }),
        2 => any().prop_map(|frame| Step::Poison { frame }),
    ]
}

/// The frame of a machine by its place among all frames.
fn frame_at(shape: &Shape, mut at: u64) -> Frame {
    for range in &shape.memory {
        if at < range.frames {
            return Frame(range.first.0 + at);
        }
        at -= range.frames;
    }
    panic!("beyond the machine")
}

fn run(shape: &Shape, steps: &[Step]) -> Result<(), TestCaseError> {
    let metadata = Metadata::of(&shape.memory).unwrap();
    let words = table(12);
    let machine = Machine::new(&shape.memory, &shape.distances, &metadata.slices()).unwrap();
    let machine = machine.with_withheld(&words);
    let heap = Heap::of(&machine);
    let all: u64 = shape.memory.iter().map(|it| it.frames).sum();
    let mut keeper = Keeper::new(&machine).unwrap();
    let mut caches: Vec<_> =
        (0..2).map(|at| Cache::new(&machine, Node(at % shape.nodes)).unwrap()).collect();
    let mut held: Vec<Extent> = Vec::new();
    // The keeper was told these states. A marked frame may be poisoned meanwhile.
    let mut states: BTreeMap<Frame, FrameState> = BTreeMap::new();
    let is_in = |extent: &Extent, frame: Frame| {
        frame.0.checked_sub(extent.first().0).is_some_and(|at| at < extent.frames())
    };
    for step in steps {
        let given = match *step {
            Step::Allocate { cache, order } => caches[cache].allocate(Order::new(order).unwrap()),
            Step::Claim { node, order } => {
                let (node, order) = (Node(node % shape.nodes), Order::new(order).unwrap());
                let claim = Claim::new(&machine, node, order.frames());
                claim.and_then(|mut it| it.allocate(order))
            }
            Step::Free { cache, extent } => {
                if !held.is_empty() {
                    let extent = held.swap_remove(extent.index(held.len()));
                    prop_assert_eq!(caches[cache].free(extent), Ok(()));
                }
                continue;
            }
            Step::Flush { cache } => {
                prop_assert_eq!(caches[cache].flush(), Ok(()));
                continue;
            }
            Step::Offline { frame } => {
                let frame = frame_at(shape, frame.index(all as usize) as u64);
                match keeper.offline(frame) {
                    Ok(()) => {
                        prop_assert!(!held.iter().any(|it| is_in(it, frame)));
                        prop_assert_eq!(states.insert(frame, FrameState::Offline), None);
                    }
                    Err(Error::NotFree(_)) => prop_assert!(
                        states.contains_key(&frame)
                            || held.iter().any(|it| is_in(it, frame))
                            || caches.iter().any(|it| it.free_frames() > 0)
                    ),
                    Err(Error::TableFull { .. }) => prop_assert_eq!(states.len(), 12),
                    // The node has no free frame.
                    Err(Error::ClaimRefused { unclaimed_frames: 0, .. }) => {}
                    Err(error) => prop_assert!(false, "{error}"),
                }
                continue;
            }
            Step::Online { entry } => {
                if !states.is_empty() {
                    let at = entry.index(states.len());
                    let (frame, state) = states.iter().nth(at).map(|(a, b)| (*a, *b)).unwrap();
                    let done = keeper.online(frame);
                    prop_assert_eq!(done.is_ok(), state == FrameState::Offline);
                    if done.is_ok() {
                        states.remove(&frame);
                    }
                }
                continue;
            }
            Step::Poison { frame } => {
                let frame = frame_at(shape, frame.index(all as usize) as u64);
                let is_held = held.iter().any(|it| is_in(it, frame));
                match keeper.poison(frame) {
                    Ok(state) => {
                        prop_assert!(!is_held || state == FrameState::Marked);
                        states.insert(frame, FrameState::Poisoned);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, Error::TableFull { entries: 12 });
                        prop_assert_eq!(states.len(), 12);
                    }
                }
                continue;
            }
        };
        if let Ok(extent) = given {
            let withheld = states.keys().find(|frame| is_in(&extent, **frame));
            prop_assert_eq!(withheld, None, "{}", extent);
            prop_assert!(!held.iter().any(|it| is_in(it, extent.first())));
            held.push(extent);
        } else {
            let is_lack = !matches!(given, Err(Error::DoubleFree { .. } | Error::Foreign(_)));
            prop_assert!(is_lack, "{given:?}");
        }
        let cached: u64 = caches.iter().map(Cache::free_frames).sum();
        let taken: u64 = held.iter().map(|it| it.frames()).sum();
        let withheld = heap.withheld().filter(|(_, state)| *state != FrameState::Marked).count();
        let mut free = 0;
        for node in (0..shape.nodes).map(Node) {
            prop_assert_eq!(heap.unclaimed_frames(node), heap.free_frames(node));
            free += heap.free_frames(node);
        }
        prop_assert_eq!(free + cached + taken + withheld as u64, all);
    }
    prop_assert_eq!(heap.withheld().count(), states.len());
    for extent in held {
        caches[0].free(extent).unwrap();
    }
    drop(caches);
    for (frame, state) in &states {
        if *state == FrameState::Offline {
            keeper.online(*frame).unwrap();
        }
    }
    // All that is not free is poisoned.
    let poisoned: Vec<_> = heap.withheld().collect();
    prop_assert!(poisoned.iter().all(|(_, state)| *state == FrameState::Poisoned));
    let free: u64 = heap.regions().map(|it| it.free_frames).sum();
    prop_assert_eq!(free + poisoned.len() as u64, all);
    prop_assert_eq!(machine.late_faults(), 0);
    Ok(())
}

proptest! {
    #[test]
    fn a_withheld_frame_is_never_handed_out(
        shape in shape(),
        steps in prop::collection::vec(step(), 1..250),
    ) {
        run(&shape, &steps)?;
    }
}

/// A keeper poisons frames while threads allocate. An allocation that begins after a frame was
/// poisoned is never given it.
#[test]
fn threads_are_not_given_what_was_poisoned_before() {
    const FRAMES: u64 = 3000;
    let memory = [0, 1]
        .map(|node| Memory::new(Node(node), Zone::Normal, u64::from(node) * 4096 + 100, FRAMES));
    let metadata = Metadata::of(&memory).unwrap();
    let words = table(200);
    let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices()).unwrap();
    let machine = machine.with_withheld(&words);
    // For each frame the number of the poisoning, from 1 on.
    let poisoned: Vec<AtomicU64> = table(10_000);
    let poisonings = AtomicU64::new(0);
    let next = |random: &mut u64, end: u64| {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random % end
    };
    thread::scope(|scope| {
        let threads = [0, 1, 2].map(|number: u64| {
            let (machine, poisoned, poisonings) = (&machine, &poisoned, &poisonings);
            scope.spawn(move || {
                let mut random = number + 1;
                let mut cache = Cache::new(machine, Node(number as u8 % 2)).unwrap();
                let mut own: Vec<Extent> = Vec::new();
                for _ in 0..40_000 {
                    if next(&mut random, 100) < 51 {
                        let order = [0, 0, 0, 1, 3, 9, 10][next(&mut random, 7) as usize];
                        let before = poisonings.load(SeqCst);
                        match cache.allocate(Order::new(order).unwrap()) {
                            Ok(extent) => {
                                let first = extent.first().0;
                                for frame in first..first + extent.frames() {
                                    let at = poisoned[frame as usize].load(SeqCst);
                                    assert!(at == 0 || at > before, "{frame:#x}");
                                }
                                own.push(extent);
                            }
                            Err(Error::OutOfMemory(_)) => {
                                own.drain(..own.len() / 2).for_each(|it| cache.free(it).unwrap());
                            }
                            Err(error) => panic!("{error}"),
                        }
                    } else if !own.is_empty() {
                        let at = next(&mut random, own.len() as u64) as usize;
                        cache.free(own.swap_remove(at)).unwrap();
                    }
                }
                own.into_iter().for_each(|it| cache.free(it).unwrap());
            })
        });
        let mut keeper = Keeper::new(&machine).unwrap();
        let mut random = 99;
        let mut offline = Vec::new();
        while threads.iter().any(|it| !it.is_finished()) {
            let node = next(&mut random, 2) * 4096 + 100;
            let frame = Frame(node + next(&mut random, FRAMES));
            if poisonings.load(SeqCst) < 100 && next(&mut random, 20) == 0 {
                keeper.poison(frame).unwrap();
                if poisoned[frame.0 as usize].load(SeqCst) == 0 {
                    let number = poisonings.load(SeqCst) + 1;
                    poisoned[frame.0 as usize].store(number, SeqCst);
                    poisonings.store(number, SeqCst);
                }
            } else if offline.len() < 50 {
                offline.extend(keeper.offline(frame).is_ok().then_some(frame));
            } else {
                for frame in offline.drain(..) {
                    let done = keeper.online(frame);
                    // It has been poisoned meanwhile.
                    assert!(done.is_ok() || poisoned[frame.0 as usize].load(SeqCst) > 0);
                }
            }
        }
        for frame in offline {
            let _ = keeper.online(frame);
        }
    });
    let heap = Heap::of(&machine);
    let count = poisonings.load(SeqCst);
    assert!(count > 20, "{count} frames were poisoned");
    // A mark may be left on a frame that was on its way when the keeper looked.
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    let rest: Vec<_> = std::iter::from_fn(|| cache.allocate(Order::BASE).ok()).collect();
    assert_eq!(rest.len() as u64 + count, 2 * FRAMES);
    assert!(rest.iter().all(|it| poisoned[it.first().0 as usize].load(SeqCst) == 0));
    assert!(heap.withheld().all(|(_, state)| state == FrameState::Poisoned));
    assert_eq!(heap.withheld().count() as u64, count);
    assert_eq!((heap.free_frames(Node(1)), heap.unclaimed_frames(Node(1))), (0, 0));
}
