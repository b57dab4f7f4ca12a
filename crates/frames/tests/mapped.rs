//! Frames that are memory of this machine. The lab has the tests with several nodes
//! (`lab/tests/tests/four_nodes/frames.rs`).

#![cfg(all(feature = "mapped", target_os = "linux", target_pointer_width = "64"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_frames::{
    Backing, CHUNK_FRAMES, Cache, Entry, Error, Extent, Frame, Guest, MappedError, MappedMachine,
    Node, Order, Request, Source,
};
use rustix::io::Errno;
use std::{
    collections::HashSet,
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    sync::atomic::Ordering::Relaxed,
};

const MIB: u64 = 1 << 20;

/// A chunk in bytes: 2 MiB where pages have 4 KiB.
fn chunk_bytes() -> u64 {
    Backing::Pages.page_bytes() * CHUNK_FRAMES
}

/// A node that this process may have memory of.
fn node() -> Option<Node> {
    let page_bytes = Backing::Pages.page_bytes();
    let is_allowed = |node: &Node| {
        let refused = match MappedMachine::new(&[(*node, page_bytes)], Backing::Pages) {
            Ok(_) => return true,
            Err(refused) => refused,
        };
        // A cpuset without the node, or a container that may not call mbind.
        let MappedError::Kernel { step: "binding the file", errno, .. } = refused else {
            panic!("{refused}");
        };
        assert!(matches!(errno, Errno::INVAL | Errno::PERM | Errno::NOSYS), "{errno}");
        false
    };
    let nodes = MappedMachine::nodes().unwrap_or_default();
    let node = nodes.into_iter().map(|(node, _)| node).find(is_allowed);
    if node.is_none() {
        eprintln!("skipped: no node here to take memory from");
    }
    node
}

fn file_of(mapped: &MappedMachine, extent: Extent) -> File {
    mapped.place(extent).unwrap().file.try_clone_to_owned().unwrap().into()
}

#[test]
fn extents_have_places_of_their_own_and_both_ways_to_them_show_the_same() {
    let Some(node) = node() else { return };
    // Two files of one node.
    let mapped =
        MappedMachine::new(&[(node, 3 * chunk_bytes()), (node, 2 * chunk_bytes())], Backing::Pages)
            .unwrap();
    let machine = mapped.machine().unwrap();
    let mut cache = Cache::new(&machine, node).unwrap();
    let mut extents = Vec::new();
    for order in [9, 0, 3, 9, 9, 0, 9] {
        extents.push(cache.allocate(Order::new(order).unwrap()).unwrap());
    }
    let mut bytes = HashSet::new();
    for (number, extent) in (1..).zip(&extents) {
        let place = mapped.place(*extent).unwrap();
        let file = file_of(&mapped, *extent);
        assert_eq!(place.bytes(), extent.frames() * rustix::param::page_size() as u64);
        assert_eq!(place.offset_bytes % place.bytes(), 0, "{extent}");
        assert_eq!(machine.node_of(*extent), Some(node));
        for page in 0..extent.frames() {
            let at = place.offset_bytes + page * rustix::param::page_size() as u64;
            let (inode, size) = (file.metadata().unwrap().ino(), file.metadata().unwrap().size());
            assert!(at < size && bytes.insert((inode, at)), "{extent}");
        }
        place.words.iter().for_each(|word| word.store(number, Relaxed));
    }
    for (number, extent) in (1_u64..).zip(&extents) {
        let place = mapped.place(*extent).unwrap();
        let file = file_of(&mapped, *extent);
        let mut content = vec![0; place.bytes() as usize];
        file.read_exact_at(&mut content, place.offset_bytes).unwrap();
        assert!(content.chunks(8).all(|word| word == number.to_ne_bytes()), "{extent}");
        file.write_all_at(&(number + 100).to_ne_bytes(), place.offset_bytes).unwrap();
        assert_eq!(place.words[0].load(Relaxed), number + 100);
    }
}

#[test]
fn pages_come_when_asked_for_and_go_back_with_their_contents() {
    let Some(node) = node() else { return };
    let mapped = MappedMachine::new(&[(node, 4 * chunk_bytes())], Backing::Pages).unwrap();
    let machine = mapped.machine().unwrap();
    let mut cache = Cache::new(&machine, node).unwrap();
    let extent = cache.allocate(Order::HUGE).unwrap();
    let other = cache.allocate(Order::HUGE).unwrap();
    let blocks = || file_of(&mapped, extent).metadata().unwrap().blocks() * 512;
    assert_eq!(blocks(), 0);
    mapped.populate(extent).unwrap();
    let bytes = mapped.place(extent).unwrap().bytes();
    assert_eq!(blocks(), bytes);
    mapped.place(extent).unwrap().words.iter().for_each(|word| word.store(7, Relaxed));
    mapped.place(other).unwrap().words[3].store(8, Relaxed);
    let before = blocks();
    mapped.discard(extent).unwrap();
    assert_eq!(blocks(), before - bytes);
    assert!(mapped.place(extent).unwrap().words.iter().all(|word| word.load(Relaxed) == 0));
    assert_eq!(mapped.place(other).unwrap().words[3].load(Relaxed), 8);
}

/// The holder of a descriptor cannot cut the memory of others off.
#[test]
fn nobody_can_change_the_size_of_a_file() {
    let Some(node) = node() else { return };
    let mapped = MappedMachine::new(&[(node, chunk_bytes())], Backing::Pages).unwrap();
    let machine = mapped.machine().unwrap();
    let extent = Cache::new(&machine, node).unwrap().allocate(Order::BASE).unwrap();
    let file = file_of(&mapped, extent);
    for bytes in [0, chunk_bytes() / 2, 2 * chunk_bytes()] {
        assert_eq!(file.set_len(bytes).unwrap_err().raw_os_error(), Some(libc::EPERM), "{bytes}");
    }
    assert_eq!(file.metadata().unwrap().size(), chunk_bytes());
}

#[test]
fn a_guests_contents_survive_an_exchange_of_its_pages_for_a_huge_one() {
    let Some(node) = node() else { return };
    let mapped = MappedMachine::new(&[(node, 4 * chunk_bytes())], Backing::Pages).unwrap();
    let machine = mapped.machine().unwrap();
    let mut cache = Cache::new(&machine, node).unwrap();
    let mut table = vec![Entry::EMPTY; 512];
    let mut guest = Guest::new(&machine, &mut table);
    let mut source = Source::Cache(&mut cache, Request::default());
    // The last guest frame first, so that the pages lie in another order than they are mapped.
    let backwards: Vec<u64> = (0..512).rev().collect();
    guest.populate(&mut source, Order::BASE, &backwards).unwrap();
    let word = |guest: &Guest<'_, '_>, gfn| {
        let extent = Extent::new(guest.frame_of(gfn).unwrap(), Order::BASE).unwrap();
        &mapped.place(extent).unwrap().words[1]
    };
    (0..512).for_each(|gfn| word(&guest, gfn).store(gfn + 1000, Relaxed));
    let before = guest.frame_of(5);
    guest.exchange(&mut source, 0..512, Order::HUGE, |transfer| mapped.copy(transfer)).unwrap();
    assert_ne!(guest.frame_of(5), before);
    assert_eq!(guest.extent_of(0).unwrap().1.order(), Order::HUGE);
    assert!((0..512).all(|gfn| word(&guest, gfn).load(Relaxed) == gfn + 1000));
}

#[test]
fn memory_that_is_not_there_is_refused_with_what_there_is() {
    let Some(node) = node() else { return };
    let page_bytes = Backing::Pages.page_bytes();
    let refusal = |sizes: &[(Node, u64)], backing| MappedMachine::new(sizes, backing).unwrap_err();
    for bytes in [0, 1, page_bytes + 1] {
        let expected = MappedError::Size { node, bytes, page_bytes };
        assert_eq!(refusal(&[(node, bytes)], Backing::Pages), expected);
    }
    let expected = MappedError::Size { node, bytes: page_bytes, page_bytes: 2 * MIB };
    assert_eq!(refusal(&[(node, page_bytes)], Backing::Huge2M), expected);
    for absent in [Node(63), Node(64), Node(255)] {
        assert_eq!(refusal(&[(absent, MIB)], Backing::Pages), MappedError::NoNode(absent));
    }
    let half = |bytes| (node, bytes / 2 / page_bytes * page_bytes);
    let MappedError::MoreThanNode { node_bytes, bytes, .. } =
        refusal(&[(node, 1 << 60)], Backing::Pages)
    else {
        panic!("a node of 1 EiB");
    };
    assert_eq!(bytes, 1 << 60);
    // Each of them fits.
    let parts = [half(node_bytes), half(node_bytes), (node, page_bytes * 2)];
    let refused = refusal(&parts, Backing::Pages);
    assert!(matches!(refused, MappedError::MoreThanNode { .. }), "{refused}");
    let many = vec![(node, page_bytes); 65];
    let too_many = Error::TooManyRanges { ranges: 65, max_ranges: 64 };
    assert_eq!(refusal(&many, Backing::Pages), MappedError::Frames(too_many));
    // One page more than the pool has.
    let pool = format!("/sys/devices/system/node/node{}/hugepages/hugepages-2048kB", node.0);
    let Ok(free) = std::fs::read_to_string(format!("{pool}/free_hugepages")) else { return };
    let pages = free.trim().parse::<u64>().unwrap() + 1;
    let refused = refusal(&[(node, pages * 2 * MIB)], Backing::Huge2M);
    let path = format!("{pool}/nr_hugepages");
    let (backing, needed_pages, free_pages) = (Backing::Huge2M, pages, pages - 1);
    let expected = MappedError::HugePages { node, backing, needed_pages, free_pages, path };
    assert!(refused == expected || pages * 2 * MIB > node_bytes, "{refused}");
}

#[test]
fn a_second_allocator_and_foreign_extents_are_refused() {
    let Some(node) = node() else { return };
    let mapped = MappedMachine::new(&[(node, chunk_bytes())], Backing::Pages).unwrap();
    let _machine = mapped.machine().unwrap();
    assert_eq!(mapped.machine().unwrap_err(), MappedError::HasMachine);
    // The first frame behind the memory, and one far beyond.
    for first in [CHUNK_FRAMES, 1 << 51] {
        let extent = Extent::new(Frame(first), Order::BASE).unwrap();
        assert!(mapped.place(extent).is_none());
        let foreign = MappedError::Frames(Error::Foreign(extent));
        assert_eq!(mapped.populate(extent).unwrap_err(), foreign);
        assert_eq!(mapped.discard(extent).unwrap_err(), foreign);
    }
}

#[test]
fn no_nodes_are_a_machine_without_memory() {
    if node().is_none() {
        return;
    }
    let mapped = MappedMachine::new(&[], Backing::Pages).unwrap();
    let machine = mapped.machine().unwrap();
    let refused = Cache::new(&machine, Node(0)).unwrap().allocate(Order::BASE).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
}
