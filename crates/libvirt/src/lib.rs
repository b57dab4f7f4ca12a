#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod binding;
mod complete;
mod contradictions;
mod distances;
mod domain;
mod elements;
mod finding;
mod id;
mod intent;
mod iothreads;
mod lint;
mod list;
mod memory;
mod metadata;
mod placement;
mod position;
mod read;
pub mod render;
mod rule;
mod size;
mod strip;

pub use complete::complete;
pub use contradictions::contradictions;
pub use domain::{
    Cell, CellDistance, CpuTopology, Domain, HostDevice, HostDeviceKind, Iothreads, MaxMemory, Pin,
    Pins, Share, VcpuBindings, Vcpus,
};
pub use finding::Finding;
pub use id::{CellId, CellSet, IothreadId, VcpuId, VcpuSet};
pub use intent::{Intent, IntentCell, IntentError, home_distances};
pub use lint::lint;
pub use memory::{
    Allocation, Backing, BackingSource, Choice, HugePage, HugePages, Memnode, MemoryBinding,
    MemoryDevice, MemoryMode, MemoryModel, Numatune, SharedMemory, WrittenMode,
};
pub use metadata::{Metadata, NAMESPACE, Written};
pub use placement::{CellPlacement, Placement};
pub use position::{Located, Position, Span};
pub use read::{MAX_BYTES, ReadError};
pub use rule::{Needs, Rule, Severity};
pub use strip::{Keep, operators, strip};
