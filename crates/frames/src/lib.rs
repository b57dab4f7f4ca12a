//! A page-frame allocator for machines with several NUMA nodes.
//!
//! Start with [`Machine`]: the memory of one machine, by node and zone. Each CPU (or thread) has a
//! [`Cache`], through which it allocates and frees [`Extent`]s of 2^[`Order`] frames. A cache takes
//! memory of its node first, and then of other nodes by distance. A [`Guest`] has the memory of one
//! owner, by guest frame. With the feature `mapped`, frames can be memory of Linux
//! (`MappedMachine`).
//!
//! ```
//! use nearside_frames::{Cache, Machine, Memory, Metadata, Node, Order, Zone};
//!
//! // Two nodes of 1 GiB in frames of 4 KiB. A hole of 1 TiB lies between them.
//! let memory = [
//!     Memory::new(Node(0), Zone::Normal, 0x10_0000, 0x4_0000),
//!     Memory::new(Node(1), Zone::Normal, 0x1010_0000, 0x4_0000),
//! ];
//! let metadata = Metadata::of(&memory)?;
//! let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices())?;
//!
//! let mut cache = Cache::new(&machine, Node(1))?;
//! let page = cache.allocate(Order::BASE)?;
//! let huge = cache.allocate(Order::HUGE)?;
//! assert_eq!(machine.node_of(huge), Some(Node(1)));
//! cache.free(page)?;
//! cache.free(huge)?;
//! # Ok::<(), nearside_frames::Error>(())
//! ```
//!
//! # How it works
//! Memory is divided into chunks of [`CHUNK_FRAMES`] frames (2 MiB). A chunk that is free as a
//! whole is one bit in its region's map of free chunks. The others have one bit for each free
//! frame. A cache takes a whole chunk away from its region, and allocates from its own copy of the
//! 512 bits, without an atomic operation. It frees into a second chunk in the same way, and hands
//! that back when it comes to another one. The cost of the atomic operations is thus shared by many
//! frames.
//!
//! A frame is free in one place only: as a whole chunk, as a bit of its region, or as a bit of one
//! cache. A double free finds a bit that is already set, at once or when a cache hands the chunk
//! back, and is reported as [`Error::DoubleFree`]. It goes unnoticed if somebody allocates the
//! frame before that; the next free of the frame is then the one that is reported.
//!
//! Each node has an account of the frames that are free in its regions. A frame that leaves them is
//! counted out first, so a [`Claim`] of an owner holds against every cache and every other claim.
//! Allocation from a cache's own chunk does without.
//!
//! A frame that a [`Keeper`] has taken offline, or poisoned, has no bit anywhere. It is in a table
//! of the caller.
//!
//! The lowest chunks are used first, so that chunks of higher addresses stay whole.
//!
//! # Limits
//! - Frames that lie free in a cache are out of reach for other caches until [`Cache::flush`].
//! - While a thread takes a page from another node, or makes a chunk whole, the other free frames
//!   of that chunk are out of reach for some instructions. So an almost full node may seem full.
//! - Only pages and chunks of the cache's own node come without an atomic operation.
#![cfg_attr(not(feature = "std"), no_std)]
#![cfg_attr(not(feature = "mapped"), forbid(unsafe_code))]

mod account;
mod cache;
mod chunk;
mod claim;
mod counted;
mod error;
mod guest;
mod heap;
mod ids;
mod keeper;
mod machine;
#[cfg(all(feature = "mapped", target_os = "linux", target_pointer_width = "64"))]
mod mapped;
mod memory;
mod policy;
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
mod readme {}
mod region;
mod sync;
mod table;
mod withheld;

pub use cache::Cache;
pub use claim::Claim;
pub use error::{Error, OutOfMemory};
pub use guest::{Guest, Source, Transfer};
pub use heap::{Heap, RegionHeap};
pub use ids::{CHUNK_FRAMES, Extent, Frame, Node, Order, Zone};
pub use keeper::Keeper;
pub use machine::Machine;
#[cfg(all(feature = "mapped", target_os = "linux", target_pointer_width = "64"))]
pub use mapped::{Backing, MappedError, MappedMachine, Place};
#[cfg(feature = "std")]
pub use memory::Metadata;
pub use memory::{MAX_NODES, MAX_REGIONS, Memory, metadata_words};
pub use policy::{Nodes, Policy, Request, ZoneRule};
pub use table::Entry;
pub use withheld::FrameState;
