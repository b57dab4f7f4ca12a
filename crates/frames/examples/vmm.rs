//! The memory of a small VMM: two guests, each on a node of its own, of which one moves to the
//! other's node (`cargo run --example vmm`). Guests are seen through `vm-memory`, as in
//! cloud-hypervisor and Firecracker.

use nearside_frames::{
    Backing, Cache, Entry, Guest, MappedMachine, Order, Policy, Request, Source,
};
use std::{collections::BTreeSet, error::Error, fs};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MemoryRegionAddress, mmap::MmapRegionBuilder,
};

const HUGE_PAGES: u64 = 2;
const GUEST_FRAMES: usize = HUGE_PAGES as usize * 512;

/// The guest's memory as a vCPU would have it: an extent after the other.
fn view(mapped: &MappedMachine, guest: &Guest<'_, '_>) -> Result<GuestMemoryMmap, Box<dyn Error>> {
    let mut regions = Vec::new();
    let mut guest_frame = 0;
    while let Some((first, extent)) = guest.extent_of(guest_frame) {
        let place = mapped.place(extent).ok_or("an extent of another machine")?;
        let bytes = place.bytes();
        let file = FileOffset::new(place.file.try_clone_to_owned()?.into(), place.offset_bytes);
        let mapping = MmapRegionBuilder::new(bytes.try_into()?)
            .with_file_offset(file)
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .build()?;
        let address = GuestAddress(first * (bytes / extent.frames()));
        regions.push(GuestRegionMmap::new(mapping, address).ok_or("an address beyond the last")?);
        guest_frame = first + extent.frames();
    }
    Ok(GuestMemoryMmap::from_regions(regions)?)
}

/// The nodes that a guest's pages lie on, as `/proc/self/numa_maps` has them.
fn nodes_of(memory: &GuestMemoryMmap) -> Result<BTreeSet<String>, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/numa_maps")?;
    let starts: BTreeSet<_> = memory
        .iter()
        .map(|region| region.get_host_address(MemoryRegionAddress(0)).map(|it| it as usize))
        .collect::<Result<_, _>>()?;
    let mine = text.lines().filter(|line| {
        let start = line.split(' ').next().and_then(|it| usize::from_str_radix(it, 16).ok());
        start.is_some_and(|start| starts.contains(&start))
    });
    let nodes = mine.flat_map(|line| line.split(' ')).filter_map(|word| word.strip_prefix('N'));
    Ok(nodes.filter_map(|it| Some(format!("node {}", it.split_once('=')?.0))).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let nodes: Vec<_> = MappedMachine::nodes()?.into_iter().map(|(node, _)| node).collect();
    let (near, far) = nodes.first().copied().zip(nodes.last().copied()).ok_or("no memory")?;

    // Room for both guests on each node.
    let bytes = 2 * GUEST_FRAMES as u64 * Backing::Pages.page_bytes();
    let sizes: Vec<_> = nodes.iter().map(|node| (*node, bytes)).collect();
    let mapped = MappedMachine::new(&sizes, Backing::Pages)?;
    let machine = mapped.machine()?;
    let mut cache = Cache::new(&machine, near)?;
    let mut tables = [vec![Entry::EMPTY; GUEST_FRAMES], vec![Entry::EMPTY; GUEST_FRAMES]];
    let [first_table, second_table] = &mut tables;
    let mut first = Guest::new(&machine, first_table);
    let mut second = Guest::new(&machine, second_table);
    for (guest, node) in [(&mut first, near), (&mut second, far)] {
        let request = Request { policy: Policy::Exact(node), ..Request::default() };
        guest.increase(&mut Source::Cache(&mut cache, request), Order::HUGE, HUGE_PAGES)?;
        // Another guest may have left something there.
        for page in 0..HUGE_PAGES {
            let (_, extent) = guest.extent_of(page * 512).ok_or("no extent")?;
            mapped.discard(extent)?;
        }
    }

    for (name, guest) in [("first", &first), ("second", &second)] {
        let memory = view(&mapped, guest)?;
        for page in 0..GUEST_FRAMES as u64 {
            let address = page * Backing::Pages.page_bytes();
            memory.write_obj(page + name.len() as u64, GuestAddress(address))?;
        }
        println!("{name}: {:?}", nodes_of(&memory)?);
    }

    first.move_to(far, 0..GUEST_FRAMES as u64, |transfer| mapped.copy(transfer))?;
    let memory = view(&mapped, &first)?;
    for page in 0..GUEST_FRAMES as u64 {
        let address = page * Backing::Pages.page_bytes();
        let word: u64 = memory.read_obj(GuestAddress(address))?;
        assert_eq!(word, page + "first".len() as u64);
    }
    println!("first, moved to {far}: {:?}", nodes_of(&memory)?);
    assert_eq!(nodes_of(&memory)?, BTreeSet::from([far.to_string()]));
    Ok(())
}
