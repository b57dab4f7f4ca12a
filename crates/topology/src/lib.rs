#![cfg_attr(feature = "machine-files", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "machine-files"), doc = "The model of a NUMA machine and its readers.")]
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acpi;
#[cfg(feature = "std")]
pub mod bounded_file;
mod distance;
pub mod fake;
pub mod grammar;
mod id;
#[cfg(feature = "machine-files")]
pub mod machine_file;
mod model;
#[cfg(feature = "std")]
pub mod sysfs;
mod tiers;
#[cfg(feature = "machine-files")]
pub mod toml_file;
pub mod type_words;

pub use distance::{Distance, Distances, InvalidDistances};
pub use id::{CpuId, CpuSet, Id, IdSet, InvalidList, MAX_ID, MAX_NODES, NodeId, NodeSet, Pxm};
pub use model::{
    Access, Allowed, Cpu, Device, DeviceKind, HugePagePool, MemoryRange, MemoryState, Node,
    Performance, ReservedHugePages, Topology, Withheld, Zone,
};
pub use tiers::{MemoryTier, MemoryTiers};
