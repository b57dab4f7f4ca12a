//! What a NUMA machine is: the model, the parsers that read it, and the grammars that name parts of it.
//!
//! [`Topology`] explains the crate: a list of [`Node`]s, a list of [`Cpu`]s, the [`Distances`] between the nodes,
//! measured [`Performance`] where firmware gives any, and the [`Device`]s that sit near a node. Every reader takes its
//! source as an argument (a root directory or bytes) and there is no global state, so any machine can be read on any
//! other.
//!
//! The model is `no_std` (with `alloc`); the feature `std` adds the readers that touch files, `machine-files` the one of TOML,
//! and with it what others need to read theirs ([`toml_file`]).

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
#[cfg(feature = "machine-files")]
pub mod toml_file;

pub use distance::{Distance, Distances, InvalidDistances};
pub use id::{CpuId, CpuSet, Id, IdSet, InvalidList, MAX_ID, MAX_NODES, NodeId, NodeSet, Pxm};
pub use model::{
    Access, Allowed, Cpu, Device, DeviceKind, HugePagePool, MemoryRange, MemoryState, Node,
    Performance, ReservedHugePages, Topology, Withheld, Zone,
};
