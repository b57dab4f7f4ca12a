//! A machine whose frames are memory of this one.

mod backing;
mod error;
mod nodes;
#[allow(unsafe_code, reason = "mappings, and a system call that no safe crate wraps")]
mod sys;

pub use backing::Backing;
pub use error::MappedError;

use crate::{
    error::Error,
    guest::Transfer,
    ids::{Extent, Frame, Node, Zone},
    machine::Machine,
    memory::{MAX_REGIONS, Memory, metadata_words},
};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use nodes::SystemNodes;
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    vec::Vec,
};
use sys::{Mapping, Rule};

/// Each node's frames begin at a multiple of this, which is one of every size of extents. So the
/// offset of an extent in its file is a multiple of its size.
const ALIGNMENT_FRAMES: u64 = 1 << 18;

/// The place of an extent: a file to hand to others, and the same memory in this process.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The file of the extent's node, whose size nobody can change. It has the node's other
    /// extents, too. Its holder can write to them all, and give their pages back to the kernel.
    pub file: BorrowedFd<'a>,
    /// Where the extent begins in the file.
    pub offset_bytes: u64,
    /// The extent's memory.
    pub words: &'a [AtomicU64],
}

impl Place<'_> {
    /// The size of the extent.
    pub fn bytes(&self) -> u64 {
        size_of_val(self.words) as u64
    }
}

/// Frames that are memory of this machine's nodes.
///
/// Each node has a file in memory (a memfd), whose pages the kernel takes from that node and no
/// other (`MPOL_BIND` of mbind(2)). Frames have the size of the system's pages. The metadata of a
/// node lie on the node, too, if it has room.
///
/// An extent has the contents that its last owner left: [`discard`](Self::discard) it when it comes
/// to another. The node should have room for all of its frames. If it has not, the kernel may end
/// any process that is allowed there, to make room for one that touches the rest.
///
/// ```no_run
/// use nearside_frames::{Backing, Cache, MappedMachine, MappedError, Node, Order};
///
/// let mapped = MappedMachine::new(&[(Node(0), 64 << 20), (Node(1), 64 << 20)], Backing::Pages)?;
/// let machine = mapped.machine()?;
/// let mut cache = Cache::new(&machine, Node(1))?;
///
/// let extent = cache.allocate(Order::HUGE)?;
/// if let Some(place) = mapped.place(extent) {
///     println!("{:?}, {} bytes from {:#x}", place.file, place.bytes(), place.offset_bytes);
/// }
/// mapped.discard(extent)?;
/// cache.free(extent)?;
/// # Ok::<(), MappedError>(())
/// ```
#[derive(Debug)]
pub struct MappedMachine {
    backing: Backing,
    distances: Vec<u8>,
    parts: Vec<Part>,
    has_machine: AtomicBool,
}

/// The memory of one node.
#[derive(Debug)]
struct Part {
    memory: Memory,
    file: OwnedFd,
    contents: Mapping,
    metadata: Mapping,
}

impl MappedMachine {
    /// The nodes of this system that have memory, and how many bytes. A cpuset may forbid some of
    /// them to this process.
    ///
    /// # Errors
    /// If the kernel tells of no nodes.
    pub fn nodes() -> Result<Vec<(Node, u64)>, MappedError> {
        SystemNodes::read()?.sizes()
    }

    /// So many bytes of each of these nodes, which are numbered as the kernel does.
    ///
    /// # Errors
    /// If a size is zero or no multiple of the page's, a node is absent or smaller, its pool has
    /// too few huge pages, there are more than [`MAX_REGIONS`] of them, or the kernel refuses: for
    /// one, a node that a cpuset forbids (`EINVAL`).
    pub fn new(sizes: &[(Node, u64)], backing: Backing) -> Result<Self, MappedError> {
        if sizes.len() > MAX_REGIONS {
            let (ranges, max_ranges) = (sizes.len(), MAX_REGIONS);
            return Err(Error::TooManyRanges { ranges, max_ranges }.into());
        }
        let nodes = SystemNodes::read()?;
        nodes.check(sizes, backing)?;
        let mut first = 0_u64;
        let mut parts = Vec::with_capacity(sizes.len());
        for &(node, bytes) in sizes {
            let frames = bytes / rustix::param::page_size() as u64;
            let memory = Memory::new(node, Zone::Normal, first, frames);
            memory.check()?;
            parts.push(Part::new(memory, bytes, backing)?);
            first = (first + frames).next_multiple_of(ALIGNMENT_FRAMES);
        }
        let last = sizes.iter().map(|(node, _)| *node).max().unwrap_or_default();
        let distances = nodes.distances(last)?;
        Ok(Self { backing, distances, parts, has_machine: AtomicBool::new(false) })
    }

    /// The allocator of these frames. There is one only: a second would give the same frames away.
    ///
    /// # Errors
    /// [`MappedError::HasMachine`] after the first time, and those of [`Machine::new`].
    pub fn machine(&self) -> Result<Machine<'_>, MappedError> {
        if self.has_machine.swap(true, Relaxed) {
            return Err(MappedError::HasMachine);
        }
        let memory: Vec<_> = self.parts.iter().map(|part| part.memory).collect();
        let metadata: Vec<_> = self.parts.iter().map(|part| part.metadata.words()).collect();
        Ok(Machine::new(&memory, &self.distances, &metadata)?)
    }

    /// The place of an extent, if it lies in this machine.
    pub fn place(&self, extent: Extent) -> Option<Place<'_>> {
        self.parts.iter().find_map(|part| part.place(extent.first(), extent.frames()))
    }

    /// Has the kernel supply all pages of an extent now.
    ///
    /// # Errors
    /// If the extent is not of this machine, or the kernel refuses. On a full node it may end a
    /// process first.
    pub fn populate(&self, extent: Extent) -> Result<(), MappedError> {
        let place = self.place(extent).ok_or(Error::Foreign(extent))?;
        // Huge pages are there from the beginning.
        match self.backing {
            Backing::Pages => allocate(place, FallocateFlags::empty()),
            Backing::Huge2M | Backing::Huge1G => Ok(()),
        }
    }

    /// Fills an extent with zeros, and gives its pages back to the kernel. Huge pages stay.
    ///
    /// # Errors
    /// If the extent is not of this machine, or the kernel refuses.
    pub fn discard(&self, extent: Extent) -> Result<(), MappedError> {
        let place = self.place(extent).ok_or(Error::Foreign(extent))?;
        match self.backing {
            Backing::Pages => {
                allocate(place, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
            }
            Backing::Huge2M | Backing::Huge1G => {
                place.words.iter().for_each(|word| word.store(0, Relaxed));
                Ok(())
            }
        }
    }

    /// Copies contents, as [`Guest::move_to`](crate::Guest::move_to) and
    /// [`Guest::exchange`](crate::Guest::exchange) ask for. False if frames are not of this
    /// machine. The kernel supplies pages for all of both.
    pub fn copy(&self, transfer: Transfer) -> bool {
        let at = |first| self.parts.iter().find_map(|part| part.place(first, transfer.frames));
        let (Some(from), Some(to)) = (at(transfer.from), at(transfer.to)) else { return false };
        for (from, to) in from.words.iter().zip(to.words) {
            to.store(from.load(Relaxed), Relaxed);
        }
        true
    }
}

impl Part {
    fn new(memory: Memory, bytes: u64, backing: Backing) -> Result<Self, MappedError> {
        let node = memory.node;
        let file = (|| {
            let create = |flags| rustix::fs::memfd_create("nearside-frames", flags);
            let file = match create(backing.flags() | MemfdFlags::NOEXEC_SEAL) {
                // Linux before 6.3 does not know that flag, and later ones may require it.
                Err(Errno::INVAL) => create(backing.flags()),
                file => file,
            }?;
            rustix::fs::ftruncate(&file, bytes)?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&file, seals)?;
            Ok(file)
        })();
        let refused = |step| move |errno: Errno| MappedError::Kernel { step, node, errno };
        let file = file.map_err(refused("creating the file"))?;
        let contents = Mapping::of(&file, bytes).map_err(refused("mapping the file"))?;
        contents.take_from(node, Rule::Only).map_err(refused("binding the file"))?;
        if backing != Backing::Pages {
            // Not when they are touched: a process that finds none then is killed. And through
            // this mapping: its policy does not hold for the file, so fallocate(2) would take pages
            // of any node (the kernel's hugetlb_vm_ops have no set_policy, unlike those of shmem).
            contents.populate().map_err(refused("taking huge pages"))?;
        }
        let words = metadata_words(&memory) as u64;
        let metadata = Mapping::private(words * 8).map_err(refused("mapping metadata"))?;
        metadata.take_from(node, Rule::First).map_err(refused("binding metadata"))?;
        Ok(Self { memory, file, contents, metadata })
    }

    /// The place of frames, if all of them are in this part.
    fn place(&self, first: Frame, frames: u64) -> Option<Place<'_>> {
        let from = first.0.checked_sub(self.memory.first.0)?;
        let page_bytes = rustix::param::page_size() as u64;
        let words = |frames: u64| usize::try_from(frames.checked_mul(page_bytes / 8)?).ok();
        let words = words(from)?..words(from.checked_add(frames)?)?;
        let words = self.contents.words().get(words)?;
        Some(Place { file: self.file.as_fd(), offset_bytes: from * page_bytes, words })
    }
}

fn allocate(place: Place<'_>, flags: FallocateFlags) -> Result<(), MappedError> {
    loop {
        match rustix::fs::fallocate(place.file, flags, place.offset_bytes, place.bytes()) {
            Err(Errno::INTR) => {}
            done => {
                return done.map_err(|errno| MappedError::Pages { bytes: place.bytes(), errno });
            }
        }
    }
}
