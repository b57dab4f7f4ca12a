//! Claims beside caches: nobody is promised a frame that somebody else may take.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_frames::{
    Cache, Claim, Error, Extent, Frame, Heap, Machine, Memory, Metadata, Node, Order, Policy,
    Request, Zone,
};
use proptest::prelude::*;
use shapes::{Shape, shape};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

mod shapes;

fn normal(node: u8, first: u64, frames: u64) -> Memory {
    Memory::new(Node(node), Zone::Normal, first, frames)
}

#[test]
fn what_is_claimed_is_refused_to_others_and_given_to_its_owner() {
    let memory = [normal(0, 0, 2048), normal(1, 2048, 1024)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices()).unwrap();
    let mut claim = Claim::new(&machine, Node(0), 2000).unwrap();
    for node in [Node(0), Node(1)] {
        let mut cache = Cache::new(&machine, node).unwrap();
        let exact = Request { policy: Policy::Exact(Node(0)), ..Request::new(Order::BASE) };
        let mut extents = Vec::new();
        let error = loop {
            match cache.allocate_with(&exact) {
                Ok(extent) => extents.push(extent),
                Err(error) => break error,
            }
        };
        assert_eq!(extents.len(), 48, "{node}");
        assert_eq!(
            error.to_string(),
            "no extent of order 0 in zone Normal: 2000 frames are free on 1 permitted nodes (most \
             of them, 2000, on node 0), where 2000 are claimed"
        );
        assert!(cache.allocate_with(&Request { order: Order::HUGE, ..exact }).is_err());
        // Another node serves in its place.
        let elsewhere = cache.allocate(Order::HUGE).unwrap();
        assert_eq!(machine.node_of(elsewhere), Some(Node(1)));
        cache.free(elsewhere).unwrap();
        extents.into_iter().for_each(|it| cache.free(it).unwrap());
    }
    let extents: Vec<_> = (0..2000).map(|_| claim.allocate(Order::BASE).unwrap()).collect();
    assert_eq!(
        claim.allocate(Order::BASE).unwrap_err().to_string(),
        "1 frames exceed a claim on node 0, of which 0 are left"
    );
    extents.into_iter().for_each(|it| claim.free(it).unwrap());
    drop(claim);
    assert_eq!(Heap::of(&machine).unclaimed_frames(Node(0)), 2048);
    assert_eq!(Heap::of(&machine).claimed_frames(Node(0)), 0);
}

#[test]
fn claims_are_refused_in_words_that_tell_what_is_free() {
    let memory = [normal(0, 256, 744), normal(1, 1000, 24)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices()).unwrap();
    let mut claim = Claim::new(&machine, Node(0), 600).unwrap();
    assert_eq!(
        Claim::new(&machine, Node(0), 145).unwrap_err().to_string(),
        "no claim of 145 frames on node 0: 144 are free there, and 600 more that are claimed"
    );
    assert_eq!(Claim::new(&machine, Node(2), 1).unwrap_err(), Error::UnknownNode(Node(2)));
    assert!(Claim::new(&machine, Node(0), u64::MAX).is_err());
    let elsewhere = Extent::new(Frame(1000), Order::BASE).unwrap();
    assert_eq!(claim.free(elsewhere), Err(Error::Foreign(elsewhere)));
    // Parts of two chunks, and no whole one.
    let low = claim.allocate(Order::BASE).unwrap();
    assert_eq!(
        claim.allocate(Order::HUGE).unwrap_err().to_string(),
        "no extent of order 9 on node 0, where 743 frames are free"
    );
    assert_eq!(claim.frames(), 599);
    claim.free(low).unwrap();
    let twice = claim.free(low);
    assert_eq!(twice, Err(Error::DoubleFree { frame: low.first(), node: Node(0) }));
    assert_eq!(claim.frames(), 600);
    assert!(claim.allocate(Order::new(8).unwrap()).is_ok());
}

#[derive(Debug, Clone)]
enum Step {
    Claim { node: u8, frames: u64 },
    Draw { claim: prop::sample::Index, order: u8 },
    GiveBack { claim: prop::sample::Index, extent: prop::sample::Index },
    End { claim: prop::sample::Index },
    Allocate { cache: usize, order: u8 },
    Free { cache: usize, extent: prop::sample::Index, twice: bool },
    Flush { cache: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    let order = || prop_oneof![4 => Just(0_u8), 2 => 0..11_u8];
    prop_oneof![
        3 => (0..4_u8, prop_oneof![0..20_u64, 0..3000_u64])
            .prop_map(|(node, frames)| Step::Claim { node, frames }),
        6 => (any(), order()).prop_map(|(claim, order)| Step::Draw { claim, order }),
        2 => (any(), any()).prop_map(|(claim, extent)| Step::GiveBack { claim, extent }),
        1 => any().prop_map(|claim| Step::End { claim }),
        6 => (0..2_usize, order()).prop_map(|(cache, order)| Step::Allocate { cache, order }),
        4 => (0..2_usize, any(), prop::bool::weighted(0.1))
            .prop_map(|(cache, extent, twice)| Step::Free { cache, extent, twice }),
        1 => (0..2_usize).prop_map(|cache| Step::Flush { cache }),
    ]
}

fn run(shape: &Shape, steps: &[Step]) -> Result<(), TestCaseError> {
    let metadata = Metadata::of(&shape.memory).unwrap();
    let machine = Machine::new(&shape.memory, &shape.distances, &metadata.slices()).unwrap();
    let heap = Heap::of(&machine);
    let all_free: Vec<_> = heap.regions().collect();
    let mut caches: Vec<_> =
        (0..2).map(|at| Cache::new(&machine, Node(at % shape.nodes)).unwrap()).collect();
    let (mut claims, mut held): (Vec<Claim<'_>>, Vec<Extent>) = (Vec::new(), Vec::new());
    let frames: u64 = shape.memory.iter().map(|it| it.frames).sum();
    for step in steps {
        match *step {
            Step::Claim { node, frames } => {
                let node = Node(node % shape.nodes);
                let unclaimed = heap.unclaimed_frames(node);
                match Claim::new(&machine, node, frames) {
                    Ok(claim) => {
                        prop_assert!(frames <= unclaimed);
                        claims.push(claim);
                    }
                    Err(Error::ClaimRefused { unclaimed_frames, .. }) => {
                        prop_assert!(frames > unclaimed && unclaimed_frames == unclaimed);
                    }
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            Step::Draw { claim, order } if !claims.is_empty() => {
                let at = claim.index(claims.len());
                let claim = &mut claims[at];
                let (left, order) = (claim.frames(), Order::new(order).unwrap());
                match claim.allocate(order) {
                    Ok(extent) => {
                        prop_assert_eq!(machine.node_of(extent), Some(claim.node()));
                        prop_assert_eq!(claim.frames() + order.frames(), left);
                        held.push(extent);
                    }
                    Err(Error::ClaimExceeded { .. }) => prop_assert!(order.frames() > left),
                    Err(Error::Fragmented { .. }) => {
                        let from = usize::from(order.exponent());
                        let mut there = heap.regions().filter(|it| it.node == claim.node());
                        prop_assert!(there.all(|it| it.blocks[from..].iter().all(|it| *it == 0)));
                        prop_assert!(order > Order::BASE && claim.frames() == left);
                    }
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            Step::GiveBack { claim, extent } if !claims.is_empty() && !held.is_empty() => {
                let at = claim.index(claims.len());
                let claim = &mut claims[at];
                let extent = held.swap_remove(extent.index(held.len()));
                if let Err(error) = claim.free(extent) {
                    prop_assert_eq!(error, Error::Foreign(extent));
                    held.push(extent);
                }
            }
            Step::End { claim } if !claims.is_empty() => {
                drop(claims.swap_remove(claim.index(claims.len())));
            }
            Step::Allocate { cache, order } => {
                match caches[cache].allocate(Order::new(order).unwrap()) {
                    Ok(extent) => held.push(extent),
                    Err(error) => prop_assert!(matches!(error, Error::OutOfMemory(_)), "{error}"),
                }
            }
            Step::Free { cache, extent, twice } if !held.is_empty() => {
                let extent = held.swap_remove(extent.index(held.len()));
                caches[cache].free(extent).unwrap();
                if twice {
                    // Counted once, however it is found.
                    let at_once = caches[cache].free(extent);
                    let at_last = caches[cache].flush();
                    let error = at_once.and(at_last).unwrap_err();
                    prop_assert!(matches!(error, Error::DoubleFree { .. }), "{error}");
                }
            }
            Step::Flush { cache } => caches[cache].flush().unwrap(),
            _ => {}
        }
        let cached: u64 = caches.iter().map(Cache::free_frames).sum();
        let taken: u64 = held.iter().map(|it| it.frames()).sum();
        let mut free = 0;
        for node in (0..shape.nodes).map(Node) {
            let claimed: u64 =
                claims.iter().filter(|it| it.node() == node).map(Claim::frames).sum();
            prop_assert_eq!(heap.claimed_frames(node), claimed);
            prop_assert_eq!(heap.unclaimed_frames(node) + claimed, heap.free_frames(node));
            free += heap.free_frames(node);
        }
        prop_assert_eq!(free + cached + taken, frames);
    }
    // Each claim is kept to the last frame.
    for claim in &mut claims {
        while claim.frames() > 0 {
            held.push(claim.allocate(Order::BASE).unwrap());
        }
    }
    held.into_iter().for_each(|it| caches[0].free(it).unwrap());
    drop((claims, caches));
    prop_assert_eq!(machine.late_faults(), 0);
    prop_assert_eq!(heap.regions().collect::<Vec<_>>(), all_free);
    Ok(())
}

proptest! {
    #[test]
    fn the_books_are_right_after_each_step(
        shape in shape(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(&shape, &steps)?;
    }
}

/// Threads claim and allocate what two small nodes have, so that most requests meet a limit.
#[test]
fn threads_are_not_promised_the_same_frame() {
    const FRAMES: u64 = 1300;
    let memory = [0, 1].map(|node| normal(node, u64::from(node) * 2000 + 100, FRAMES));
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices()).unwrap();
    let all_free: Vec<_> = Heap::of(&machine).regions().collect();
    let owned: Vec<AtomicBool> = (0..4000).map(|_| AtomicBool::new(false)).collect();
    let mark = |extent: Extent, is_owned: bool| {
        for frame in extent.first().0..extent.first().0 + extent.frames() {
            assert_eq!(owned[frame as usize].swap(is_owned, Relaxed), !is_owned, "{frame:#x}");
        }
    };
    let (kept, refused) = thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|number: u64| {
            let (machine, mark) = (&machine, &mark);
            scope.spawn(move || {
                let (mut kept, mut refused) = (0, 0);
                let mut cache = Cache::new(machine, Node(number as u8 % 2)).unwrap();
                let mut random = number + 1;
                let mut below = |end: u64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random % end
                };
                for _ in 0..2000 {
                    let mut own = Vec::new();
                    for _ in 0..below(300) {
                        let order = Order::new([0, 0, 0, 2, 8][below(5) as usize]).unwrap();
                        let Ok(extent) = cache.allocate(order) else { break };
                        mark(extent, true);
                        own.push(extent);
                    }
                    let node = Node(below(2) as u8);
                    match Claim::new(machine, node, below(FRAMES)) {
                        Err(Error::ClaimRefused { .. }) => refused += 1,
                        Err(error) => panic!("{error}"),
                        Ok(mut claim) => {
                            let some = claim.frames() - claim.frames() / 4;
                            for _ in 0..some {
                                let extent = claim.allocate(Order::BASE).expect("it is promised");
                                assert_eq!(machine.node_of(extent), Some(node));
                                mark(extent, true);
                                own.push(extent);
                            }
                            for extent in own.drain(own.len() / 2..) {
                                mark(extent, false);
                                if claim.free(extent).is_err() {
                                    cache.free(extent).unwrap();
                                }
                            }
                            kept += 1;
                        }
                    }
                    for extent in own {
                        mark(extent, false);
                        cache.free(extent).unwrap();
                    }
                }
                (kept, refused)
            })
        });
        let counts = threads.map(|it| it.join().unwrap());
        counts.into_iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    });
    assert!(kept > 100 && refused > 50, "{kept} claims kept, {refused} refused");
    assert_eq!(machine.late_faults(), 0);
    let heap = Heap::of(&machine);
    for node in [Node(0), Node(1)] {
        assert_eq!((heap.unclaimed_frames(node), heap.claimed_frames(node)), (FRAMES, 0));
    }
    assert_eq!(heap.regions().collect::<Vec<_>>(), all_free);
}
