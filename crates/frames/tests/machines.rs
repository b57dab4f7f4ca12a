//! Machines worked out by hand, and descriptions that are no machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_frames::{
    CHUNK_FRAMES, Cache, Error, Extent, Frame, Heap, Machine, Memory, Metadata, Node, Nodes, Order,
    Policy, Request, Zone, metadata_words,
};

fn normal(node: u8, first: u64, frames: u64) -> Memory {
    Memory::new(Node(node), Zone::Normal, first, frames)
}

/// Eight nodes on a ring whose links get longer: the nearest node depends on the direction.
fn ring() -> Vec<u8> {
    let link = |at: u8| 2 + at;
    let mut distances = Vec::new();
    for from in 0..8_u8 {
        for to in 0..8_u8 {
            let clockwise: u8 = (0..(to + 8 - from) % 8).map(|step| link((from + step) % 8)).sum();
            let all: u8 = (0..8).map(link).sum();
            let shortest = clockwise.min(all - clockwise);
            distances.push(10 + if from == to { 0 } else { shortest });
        }
    }
    distances
}

#[test]
fn a_full_node_is_followed_by_the_nearest_one() {
    const FRAMES: u64 = 700;
    let memory: Vec<_> = (0..8).map(|node| normal(node, u64::from(node) * 1024, FRAMES)).collect();
    let metadata = Metadata::of(&memory).unwrap();
    let distances = ring();
    let machine = Machine::new(&memory, &distances, &metadata.slices()).unwrap();
    let mut cache = Cache::new(&machine, Node(5)).unwrap();
    let mut nodes = Vec::new();
    while let Ok(extent) = cache.allocate(Order::BASE) {
        nodes.push(machine.node_of(extent).unwrap().0);
    }
    assert_eq!(nodes.len(), 8 * FRAMES as usize);
    let row = &distances[5 * 8..6 * 8];
    let mut nearest: Vec<u8> = (0..8).collect();
    nearest.sort_by_key(|&node| row[usize::from(node)]);
    assert_eq!(nearest[..3], [5, 4, 6]);
    let expected: Vec<u8> = nearest.into_iter().flat_map(|node| [node; FRAMES as usize]).collect();
    assert_eq!(nodes, expected);
}

#[test]
fn a_hole_needs_no_metadata() {
    let near = [normal(0, 0, 1 << 18), normal(0, 1 << 18, 1 << 18)];
    // 1 TiB between them.
    let far = [normal(0, 0, 1 << 18), normal(0, (1 << 18) + (1 << 28), 1 << 18)];
    let words = |memory: &[Memory]| memory.iter().map(metadata_words).sum::<usize>();
    assert_eq!(words(&near), words(&far));
    // A bit for each frame, and two for each chunk.
    assert_eq!(words(&far), (1 << 19) / 64 + 2 * (1 << 10) / 64);
}

#[test]
fn memory_is_interleaved_and_a_full_node_left_out() {
    let memory = [normal(0, 0, 512), normal(1, 512, 512), normal(2, 1024, 512)];
    let metadata = Metadata::of(&memory).unwrap();
    let distances = [10, 20, 30, 20, 10, 20, 30, 20, 10];
    let machine = Machine::new(&memory, &distances, &metadata.slices()).unwrap();
    let mut cache = Cache::new(&machine, Node(1)).unwrap();
    let order = Order::new(7).unwrap();
    let nodes: Nodes = [Node(0), Node(2)].into_iter().collect();
    let request = Request { policy: Policy::Interleave(nodes), ..Request::new(order) };
    let served =
        |cache: &mut Cache<'_>| machine.node_of(cache.allocate_with(&request).unwrap()).unwrap().0;
    let by_turns: Vec<_> = (0..8).map(|_| served(&mut cache)).collect();
    assert_eq!(by_turns, [0, 2, 0, 2, 0, 2, 0, 2]);
    // Both are full.
    assert_eq!(served(&mut cache), 1);
}

#[test]
fn a_lack_of_memory_tells_what_is_free() {
    let memory = [normal(0, 0, 512), normal(1, 512, 100)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices()).unwrap();
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    cache.allocate(Order::BASE).unwrap();
    let error = cache.allocate(Order::HUGE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no extent of order 9 in zone Normal: 611 frames are free on 2 permitted nodes (most of \
         them, 511, on node 0), where 0 are claimed"
    );
}

#[test]
fn the_heap_tells_of_blocks_and_fragments() {
    let memory = [normal(0, 0, 4 * CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
    let [before] = Heap::of(&machine).regions().collect::<Vec<_>>()[..] else {
        panic!("one range")
    };
    assert_eq!((before.blocks[11], before.free_chunks(), before.fragmentation()), (1, 4, 0.0));
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    let page = cache.allocate(Order::BASE).unwrap();
    cache.flush().unwrap();
    let [after] = Heap::of(&machine).regions().collect::<Vec<_>>()[..] else { panic!("one range") };
    assert_eq!(page.first(), Frame(0));
    // 1 + 2 + 4 + ... + 256 frames beside the page, and three chunks.
    assert_eq!(after.blocks[..12], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(after.largest, Extent::new(Frame(2 * CHUNK_FRAMES), Order::new(10).unwrap()));
    assert_eq!((after.free_frames, after.free_chunks()), (4 * CHUNK_FRAMES - 1, 3));
    assert!((after.fragmentation() - 511.0 / 2047.0).abs() < 1e-9);
}

#[test]
fn descriptions_that_are_no_machine_are_refused() {
    let one = [normal(0, 0, 512)];
    let metadata = Metadata::of(&one).unwrap();
    let error = |memory: &[Memory], distances: &[u8]| {
        Machine::new(memory, distances, &metadata.slices()).unwrap_err().to_string()
    };
    for (memory, distances, told) in [
        (&one[..], &[][..], "0 distances: expected a square table of at most 64 rows"),
        (&one, &[10, 20], "2 distances: expected a square table of at most 64 rows"),
        (&[normal(1, 0, 512)], &[10], "node 1 has no distances"),
        (&[normal(0, 8, 0)], &[10], "the memory from frame 0x8 on node 0 is empty"),
        (
            &[normal(0, 16, u64::MAX)],
            &[10],
            "18446744073709551615 frames from 0x10 on node 0 end beyond the address space",
        ),
        (
            &[normal(0, 0, 512), normal(0, 511, 512)],
            &[10],
            "range 1 needs metadata of 18 words of 64 bits, and has 0",
        ),
        (&[normal(0, 0, 513)], &[10], "range 0 needs metadata of 18 words of 64 bits, and has 10"),
        (&[normal(0, 0, 1); 65], &[10], "65 ranges of memory: at most 64"),
    ] {
        assert_eq!(error(memory, distances), told);
    }
    let overlapping = [normal(0, 100, 512), normal(0, 0, 101)];
    let metadata = Metadata::of(&overlapping).unwrap();
    let error = Machine::new(&overlapping, &[10], &metadata.slices()).unwrap_err();
    assert_eq!(error, Error::Overlap(Frame(100)));
    assert_eq!(error.to_string(), "frame 0x64 is in two ranges of memory");
}

#[test]
fn extents_of_others_are_refused() {
    let memory = [normal(0, 512, 1000), normal(0, 2048, 512)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    assert_eq!(Cache::new(&machine, Node(1)).unwrap_err(), Error::UnknownNode(Node(1)));
    for (first, order) in [(511, 0), (1512, 0), (1024, 9), (0, 15), (u64::MAX, 0), (2560, 9)] {
        let order = Order::new(order).unwrap();
        let extent = Extent::new(Frame(first), order).unwrap();
        assert_eq!(cache.free(extent), Err(Error::Foreign(extent)));
    }
    assert_eq!(Extent::new(Frame(1), Order::HUGE), None);
    assert_eq!(Order::new(16), None);
}

#[test]
fn free_memory_that_is_freed_is_a_double_free() {
    let memory = [normal(0, 0, 64 * CHUNK_FRAMES)];
    let metadata = Metadata::of(&memory).unwrap();
    let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    for order in [0, 5, 9, 12, 15] {
        let extent = Extent::new(Frame(32768 - (1 << order)), Order::new(order).unwrap());
        let extent = extent.unwrap_or(Extent::new(Frame(0), Order::MAX).unwrap());
        let double_free = Err(Error::DoubleFree { frame: extent.first(), node: Node(0) });
        let at_once = cache.free(extent);
        assert_eq!(at_once.and_then(|()| cache.flush()), double_free, "{extent}");
        assert_eq!(Heap::of(&machine).free_frames(Node(0)), 64 * CHUNK_FRAMES, "{extent}");
    }
}
