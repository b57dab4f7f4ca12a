//! The library of page frames on real memory: where the kernel says that it lies.

use nearside_frames::{
    Backing, Cache, Entry, Extent, Guest, MappedError, MappedMachine, Node, Order, Policy, Request,
    Source,
};
use nearside_lab::{MIB, huge_pages, mapping, read};
use std::{collections::BTreeMap, process::Command, sync::atomic::Ordering::Relaxed};

const NODES: [Node; 4] = [Node(0), Node(1), Node(2), Node(3)];

/// The bytes by node of the file that an extent is in, as far as this process has touched them.
fn touched_bytes(mapped: &MappedMachine, extent: Extent) -> BTreeMap<u32, u64> {
    let address = mapped.place(extent).unwrap().words.as_ptr() as u64;
    mapping(std::process::id(), address).bytes
}

fn touch(mapped: &MappedMachine, extent: Extent) {
    mapped.place(extent).unwrap().words.iter().for_each(|word| word.store(!0, Relaxed));
}

#[test]
fn frames_of_a_node_are_memory_of_that_node_whoever_touches_them_first() {
    assert!(MappedMachine::nodes().unwrap().iter().map(|it| it.0).eq(NODES));
    let mapped = MappedMachine::new(&NODES.map(|node| (node, 8 * MIB)), Backing::Pages).unwrap();
    let machine = mapped.machine().unwrap();
    for node in NODES {
        let mut cache = Cache::new(&machine, node).unwrap();
        let [by_us, by_kernel, by_other] = [(); 3].map(|()| cache.allocate(Order::HUGE).unwrap());
        touch(&mapped, by_us);
        mapped.populate(by_kernel).unwrap();
        let place = mapped.place(by_other).unwrap();
        // A process on a CPU of another node, with another policy.
        let seek = format!("seek={}", place.offset_bytes / 4096);
        let cpus = if node == Node(3) { "0" } else { "7" };
        let dd = ["dd", "if=/dev/zero", "of=/proc/self/fd/0", "bs=4096", "count=512"];
        let mut other = Command::new("taskset");
        other.args(["-c", cpus]).args(dd).args([&seek, "conv=notrunc"]);
        let done = other.stdin(place.file.try_clone_to_owned().unwrap()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        [by_kernel, by_other].iter().for_each(|extent| touch(&mapped, *extent));
        let bytes = touched_bytes(&mapped, by_us);
        assert_eq!(bytes, BTreeMap::from([(u32::from(node.0), 6 * MIB)]));
    }
    // Each node has one left. Node 0 is the nearest of node 1, in the system's own table.
    let mut cache = Cache::new(&machine, Node(1)).unwrap();
    let extents = [(); 2].map(|()| cache.allocate(Order::HUGE).unwrap());
    assert_eq!(extents.map(|it| machine.node_of(it).unwrap().0), [1, 0]);
}

#[test]
fn a_guest_moves_with_its_contents() {
    let mapped = MappedMachine::new(&NODES.map(|node| (node, 8 * MIB)), Backing::Pages).unwrap();
    let machine = mapped.machine().unwrap();
    let mut cache = Cache::new(&machine, Node(0)).unwrap();
    let mut table = vec![Entry::EMPTY; 1024];
    let mut guest = Guest::new(&machine, &mut table);
    let request = Request { policy: Policy::Exact(Node(2)), ..Request::default() };
    guest.increase(&mut Source::Cache(&mut cache, request), Order::HUGE, 2).unwrap();
    let words = |guest: &Guest<'_, '_>| {
        let frame = |gfn| Extent::new(guest.frame_of(gfn).unwrap(), Order::BASE).unwrap();
        (0..1024).map(|gfn| &mapped.place(frame(gfn)).unwrap().words[7]).collect::<Vec<_>>()
    };
    (0..).zip(words(&guest)).for_each(|(gfn, word)| word.store(gfn, Relaxed));
    guest.move_to(Node(3), 0..1024, |transfer| mapped.copy(transfer)).unwrap();
    assert!((0..).zip(words(&guest)).all(|(gfn, word)| word.load(Relaxed) == gfn));
    let (_, extent) = guest.extent_of(0).unwrap();
    assert_eq!(touched_bytes(&mapped, extent), BTreeMap::from([(3, 4 * MIB)]));
}

#[test]
fn huge_pages_come_from_the_nodes_own_pool_and_go_back() {
    let pool = "/sys/devices/system/node/node3/hugepages/hugepages-2048kB";
    huge_pages(2, 4);
    huge_pages(3, 4);
    let mapped = MappedMachine::new(&[(Node(3), 8 * MIB)], Backing::Huge2M).unwrap();
    assert_eq!(read(&format!("{pool}/free_hugepages")), "0");
    let refused = MappedMachine::new(&[(Node(3), 2 * MIB)], Backing::Huge2M).unwrap_err();
    assert_eq!(
        refused,
        MappedError::HugePages {
            node: Node(3),
            backing: Backing::Huge2M,
            needed_pages: 1,
            free_pages: 0,
            path: format!("{pool}/nr_hugepages"),
        }
    );
    {
        let machine = mapped.machine().unwrap();
        let mut cache = Cache::new(&machine, Node(3)).unwrap();
        let page = cache.allocate(Order::BASE).unwrap();
        let huge = cache.allocate(Order::HUGE).unwrap();
        [page, huge].iter().for_each(|extent| touch(&mapped, *extent));
        assert_eq!(touched_bytes(&mapped, page), BTreeMap::from([(3, 8 * MIB)]));
        mapped.discard(huge).unwrap();
        let words = mapped.place(huge).unwrap().words;
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        assert_eq!(mapped.place(page).unwrap().words[511].load(Relaxed), !0);
    }
    drop(mapped);
    assert_eq!(read(&format!("{pool}/free_hugepages")), "4");
    [2, 3].into_iter().for_each(|node| huge_pages(node, 0));
}
