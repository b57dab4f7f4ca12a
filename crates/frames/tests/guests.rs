//! The memory of guests: each operation is done as a whole or not at all, and the contents survive.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_frames::{
    CHUNK_FRAMES, Cache, Claim, Entry, Error, Extent, Frame, Guest, Heap, Machine, Memory,
    Metadata, Node, Order, Policy, Request, Source, Transfer, Zone,
};
use proptest::prelude::*;
use shapes::{Shape, shape};
use std::collections::BTreeMap;

mod shapes;

const GUEST_FRAMES: u64 = 2048;

fn normal(node: u8, first: u64, frames: u64) -> Memory {
    Memory::new(Node(node), Zone::Normal, first, frames)
}

#[test]
fn pages_become_a_huge_page_and_a_huge_page_pages() {
    let memory = [normal(0, 0, 3 * CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
    let mut table = vec![Entry::EMPTY; 1024];
    let mut guest = Guest::new(&machine, &mut table);
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    let mut source = Source::Cache(&mut cache, Request::default());
    assert_eq!(guest.increase(&mut source, Order::BASE, 512), Ok(0));
    let mut copied = Vec::new();
    let mut copy = |it: Transfer| {
        copied.push(it);
        true
    };
    guest.exchange(&mut source, 0..512, Order::HUGE, &mut copy).unwrap();
    let (first, huge) = guest.extent_of(511).unwrap();
    assert_eq!((first, huge.order()), (0, Order::HUGE));
    assert_eq!(copied.len(), 512);
    let seventh =
        Transfer { guest_frame: 7, from: Frame(7), to: Frame(huge.first().0 + 7), frames: 1 };
    assert_eq!(copied[7], seventh);
    guest.exchange(&mut source, 0..512, Order::new(3).unwrap(), |it| it.frames == 8).unwrap();
    assert_eq!(guest.extent_of(13).unwrap().0, 8);
    assert_eq!(guest.held_frames(Node(0)), 512);
    drop(guest);
    drop(cache);
    assert_eq!(machine.late_faults(), 0);
    assert_eq!(Heap::of(&machine).unclaimed_frames(Node(0)), 3 * CHUNK_FRAMES);
}

#[test]
fn refused_operations_leave_the_guest_and_the_machine_as_they_were() {
    let memory = [normal(0, 0, 1024), normal(1, 1024, 600)];
    let other_memory = [normal(0, 0, 1024)];
    let (metadata, other) = (Metadata::of(&memory).unwrap(), Metadata::of(&other_memory).unwrap());
    let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices()).unwrap();
    let other = Machine::new(&other_memory, &[10], &other.slices()).unwrap();
    let mut table = vec![Entry::EMPTY; 2048];
    let mut guest = Guest::new(&machine, &mut table);
    let huge = Order::HUGE;
    let mut claim = Claim::new(&machine, Node(0), 1024).unwrap();
    let mut other_claim = Claim::new(&other, Node(0), 512).unwrap();
    let base = Order::BASE;
    {
        let mut source = Source::Claim(&mut claim);
        guest.populate(&mut source, huge, &[512]).unwrap();
        assert_eq!(
            guest.populate(&mut source, huge, &[0, 1]),
            Err(Error::NoPlace { guest_frame: 1, order: huge })
        );
        assert_eq!(guest.populate(&mut source, base, &[0, 700]), Err(Error::Mapped(700)));
        assert_eq!(guest.populate(&mut source, base, &[3, 3]), Err(Error::Mapped(3)));
        assert_eq!(
            guest.populate(&mut source, base, &[0, 2048]),
            Err(Error::NoPlace { guest_frame: 2048, order: base })
        );
        assert_eq!(
            guest.increase(&mut source, huge, 3),
            Err(Error::NoGuestFrames { order: huge, extents: 3 })
        );
        // The first of two fits.
        let exceeded = Error::ClaimExceeded { node: Node(0), frames: 512, left_frames: 0 };
        assert_eq!(guest.increase(&mut source, huge, 2), Err(exceeded));
        assert_eq!(guest.exchange(&mut source, 0..1024, base, |_| true), Err(Error::Unmapped(0)));
        assert_eq!(guest.exchange(&mut source, 512..768, base, |_| true), Err(Error::Cut(768)));
        assert_eq!(
            guest.exchange(&mut source, 512..1024, base, |it| it.guest_frame < 600),
            Err(Error::NotCopied(600))
        );
        assert_eq!(
            guest.exchange(&mut source, 512..1024, Order::new(10).unwrap(), |_| true),
            Err(Error::NoPlace { guest_frame: 512, order: Order::new(10).unwrap() })
        );
        let mut foreign = Source::Claim(&mut other_claim);
        assert_eq!(guest.populate(&mut foreign, base, &[0]), Err(Error::OtherMachine));
    }
    assert_eq!((guest.decrease(&[512, 512])), Err(Error::Unmapped(512)));
    assert_eq!((guest.decrease(&[512, 513])), Err(Error::Unmapped(513)));
    assert_eq!(guest.move_to(Node(1), 512..800, |_| true), Err(Error::Cut(800)));
    assert_eq!(guest.move_to(Node(2), 0..2048, |_| true), Err(Error::UnknownNode(Node(2))));
    assert_eq!(guest.move_to(Node(1), 0..2048, |_| false), Err(Error::NotCopied(512)));
    let heap = Heap::of(&machine);
    assert_eq!((claim.frames(), guest.held_frames(Node(0))), (512, 512));
    assert_eq!((heap.claimed_frames(Node(0)), heap.unclaimed_frames(Node(0))), (512, 0));
    assert_eq!((heap.claimed_frames(Node(1)), heap.unclaimed_frames(Node(1))), (0, 600));
    // Too few for a claim, and then enough but in pieces.
    let first = Claim::new(&machine, Node(1), 89).unwrap();
    let refused = guest.move_to(Node(1), 0..2048, |_| true).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no claim of 512 frames on node 1: 511 are free there, and 89 more that are claimed"
    );
    drop(first);
    // The node has a whole chunk and 88 frames. All of the chunk is free then except for a page.
    let mut breaking = Claim::new(&machine, Node(1), 89).unwrap();
    let mut pages: Vec<_> = (0..89).map(|_| breaking.allocate(base).unwrap()).collect();
    let page = pages.pop().unwrap();
    pages.into_iter().for_each(|it| breaking.free(it).unwrap());
    drop(breaking);
    let fragmented = Error::Fragmented { node: Node(1), order: huge, free_frames: 599 };
    assert_eq!(guest.move_to(Node(1), 0..2048, |_| true), Err(fragmented));
    assert_eq!((heap.claimed_frames(Node(1)), heap.unclaimed_frames(Node(1))), (0, 599));
    let mut cache = Cache::new(&machine, Node(1)).unwrap();
    cache.free(page).unwrap();
    cache.flush().unwrap();
    assert_eq!(guest.move_to(Node(1), 0..2048, |_| true), Ok(()));
    assert_eq!((guest.held_frames(Node(0)), guest.held_frames(Node(1))), (0, 512));
}

#[test]
fn a_frame_that_others_freed_is_told() {
    let memory = [normal(0, 0, 1024)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
    let mut table = vec![Entry::EMPTY; 16];
    let mut guest = Guest::new(&machine, &mut table);
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    let mut source = Source::Cache(&mut cache, Request::default());
    guest.populate(&mut source, Order::BASE, &[1, 2, 3]).unwrap();
    let stolen = Extent::new(guest.frame_of(2).unwrap(), Order::BASE).unwrap();
    cache.free(stolen).unwrap();
    cache.flush().unwrap();
    let told = Error::DoubleFree { frame: stolen.first(), node: Node(0) };
    assert_eq!(guest.decrease(&[1, 2, 3]), Err(told));
    assert_eq!((guest.extent_of(2), guest.held_frames(Node(0))), (None, 0));
    let heap = Heap::of(&machine);
    assert_eq!((heap.free_frames(Node(0)), heap.unclaimed_frames(Node(0))), (1024, 1024));
}

#[derive(Debug, Clone)]
struct Step {
    guest: usize,
    what: What,
    order: u8,
    node: u8,
    /// Whether the memory comes from a new claim.
    is_claimed: bool,
    gfns: Vec<u64>,
    frames: u64,
    /// A piece that is not copied.
    fails_at: u64,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Increase,
    Populate,
    Decrease,
    Exchange,
    Move,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        2 => Just(What::Increase),
        3 => Just(What::Populate),
        3 => Just(What::Decrease),
        3 => Just(What::Exchange),
        3 => Just(What::Move),
        1 => Just(What::Flush),
    ];
    let order = prop_oneof![3 => 0..3_u8, 1 => 0..11_u8];
    let gfns = prop::collection::vec(prop_oneof![0..64_u64, 0..GUEST_FRAMES], 1..12);
    let fails_at = prop_oneof![1 => 0..GUEST_FRAMES, 3 => Just(u64::MAX)];
    (0..2_usize, what, order, 0..4_u8, any::<bool>(), gfns, 0..600_u64, fails_at).prop_map(
        |(guest, what, order, node, is_claimed, mut gfns, frames, fails_at)| {
            // Most numbers are multiples of the size, and most ranges too.
            let size = Order::new(order).unwrap().frames();
            if frames % 4 > 0 {
                gfns.iter_mut().for_each(|gfn| *gfn = *gfn / size * size);
            }
            let frames = if frames % 3 > 0 { frames.next_multiple_of(size) } else { frames };
            Step { guest, what, order, node, is_claimed, gfns, frames, fails_at }
        },
    )
}

/// The frame behind each guest frame that has one.
fn frames_of(guest: &Guest<'_, '_>) -> BTreeMap<u64, u64> {
    (0..GUEST_FRAMES).filter_map(|gfn| Some((gfn, guest.frame_of(gfn)?.0))).collect()
}

fn run(shape: &Shape, steps: &[Step]) -> Result<(), TestCaseError> {
    let metadata = Metadata::of(&shape.memory).unwrap();
    let machine = Machine::new(&shape.memory, &shape.distances, &metadata.slices()).unwrap();
    let heap = Heap::of(&machine);
    let all_free: Vec<_> = heap.regions().collect();
    let all: u64 = shape.memory.iter().map(|it| it.frames).sum();
    let mut tables = [0, 1].map(|_| vec![Entry::EMPTY; GUEST_FRAMES as usize]);
    let mut guests: Vec<_> = tables.iter_mut().map(|it| Guest::new(&machine, it)).collect();
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    // Each frame's contents, and those that each guest frame should have.
    let mut contents = BTreeMap::new();
    let mut expected = [BTreeMap::new(), BTreeMap::new()];
    let mut written = 0_u64;
    for step in steps {
        let (node, order) = (Node(step.node % shape.nodes), Order::new(step.order).unwrap());
        let guest = &mut guests[step.guest];
        let before = frames_of(guest);
        let held_before: Vec<_> = (0..4).map(|it| guest.held_frames(Node(it))).collect();
        let range = step.gfns[0]..step.gfns[0] + step.frames;
        let copy = |it: Transfer| {
            for at in 0..it.frames {
                assert_eq!(before.get(&(it.guest_frame + at)), Some(&(it.from.0 + at)));
                let moved = contents.get(&(it.from.0 + at)).copied();
                contents.insert(it.to.0 + at, moved.unwrap());
            }
            !(it.guest_frame..it.guest_frame + it.frames).contains(&step.fails_at)
        };
        let mut claim = Claim::new(&machine, node, 0).unwrap();
        if step.is_claimed {
            let room = heap.unclaimed_frames(node).min(700);
            claim = Claim::new(&machine, node, room).unwrap();
        }
        let claimed = claim.frames();
        let policy = Policy::Preferred(node);
        let mut source = if step.is_claimed {
            Source::Claim(&mut claim)
        } else {
            Source::Cache(&mut cache, Request { policy, ..Request::default() })
        };
        let done = match step.what {
            What::Increase => {
                guest.increase(&mut source, order, step.gfns.len() as u64).map(|first| {
                    let end = first + step.gfns.len() as u64 * order.frames();
                    assert!((first..end).all(|gfn| !before.contains_key(&gfn)));
                    assert!((first..end).all(|gfn| guest.frame_of(gfn).is_some()));
                })
            }
            What::Populate => guest.populate(&mut source, order, &step.gfns).map(|()| {
                for gfn in &step.gfns {
                    assert!(!before.contains_key(gfn));
                    let (first, extent) = guest.extent_of(*gfn).unwrap();
                    assert_eq!((first, extent.order()), (*gfn, order));
                }
            }),
            What::Decrease => {
                // The first guest frames of what is mapped, mostly.
                let mut gfns: Vec<_> = step.gfns.clone();
                if step.frames % 4 > 0 {
                    gfns = gfns.iter().filter_map(|it| Some(guest.extent_of(*it)?.0)).collect();
                    gfns.sort_unstable();
                    gfns.dedup();
                }
                guest.decrease(&gfns).map(|()| {
                    assert!(gfns.iter().all(|gfn| guest.extent_of(*gfn).is_none()));
                })
            }
            What::Exchange => guest.exchange(&mut source, range.clone(), order, copy).map(|()| {
                for gfn in range {
                    assert_eq!(guest.extent_of(gfn).unwrap().1.order(), order);
                    assert_ne!(guest.frame_of(gfn).unwrap().0, before[&gfn]);
                }
            }),
            What::Move => guest.move_to(node, range.clone(), copy).map(|()| {
                let extents = range.filter_map(|gfn| Some(guest.extent_of(gfn)?.1));
                extents.for_each(|it| assert_eq!(machine.node_of(it), Some(node)));
            }),
            What::Flush => {
                cache.flush().unwrap();
                Ok(())
            }
        };
        let after = frames_of(guest);
        if let Err(error) = done {
            prop_assert!(!matches!(error, Error::DoubleFree { .. } | Error::Foreign(_)), "{error}");
            prop_assert_eq!(&before, &after, "{}", error);
            let held: Vec<_> = (0..4).map(|it| guest.held_frames(Node(it))).collect();
            prop_assert_eq!(held_before, held);
            prop_assert_eq!(claim.frames(), claimed);
        }
        // New guest frames are written; the others have what they had.
        let expected = &mut expected[step.guest];
        expected.retain(|gfn, _| after.contains_key(gfn));
        for (gfn, frame) in &after {
            let now = *expected.entry(*gfn).or_insert_with(|| {
                written += 1;
                contents.insert(*frame, written);
                written
            });
            prop_assert_eq!(contents.get(frame), Some(&now), "guest frame {}", gfn);
        }
        let claims = claim.frames();
        prop_assert_eq!(heap.claimed_frames(node), claims);
        // The books, by node and as a whole. No frame has two owners.
        let mut owners = BTreeMap::new();
        let mut held = 0;
        for guest in &guests {
            let mut by_node = [0; 4];
            for frame in frames_of(guest).into_values() {
                prop_assert_eq!(owners.insert(frame, ()), None);
                let page = Extent::new(Frame(frame), Order::BASE).unwrap();
                by_node[usize::from(machine.node_of(page).unwrap().0)] += 1;
            }
            for (node, frames) in by_node.into_iter().enumerate() {
                prop_assert_eq!(guest.held_frames(Node(node as u8)), frames);
                held += frames;
            }
        }
        let mut free = 0;
        for node in (0..shape.nodes).map(Node) {
            let counted = heap.unclaimed_frames(node) + heap.claimed_frames(node);
            prop_assert_eq!(heap.free_frames(node), counted);
            free += counted;
        }
        prop_assert_eq!(free + cache.free_frames() + held, all);
    }
    drop((guests, cache));
    prop_assert_eq!(machine.late_faults(), 0);
    prop_assert_eq!(heap.regions().collect::<Vec<_>>(), all_free);
    Ok(())
}

proptest! {
    #[test]
    fn operations_are_whole_and_contents_survive(
        shape in shape(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(&shape, &steps)?;
    }
}
