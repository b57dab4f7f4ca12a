#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod domain;
mod id;
mod list;
mod memory;
mod position;
mod read;
mod size;

pub use domain::{
    Cell, CellDistance, CpuTopology, Domain, HostDevice, HostDeviceKind, Iothreads,
    MaxMemory, Pin, Pins, Vcpus,
};
pub use id::{CellId, CellSet, IothreadId, VcpuId, VcpuSet};
pub use memory::{
    Allocation, Backing, BackingSource, Choice, HugePage, HugePages, Memnode, MemoryBinding, MemoryDevice,
    MemoryMode, MemoryModel, Numatune, WrittenMode,
};
pub use position::{Located, Position, Span};
pub use read::{MAX_BYTES, ReadError};
