//! Firmware's tables: ACPI's description of a machine, from before any operating system runs on it.
//!
//! [`read()`] takes a path, [`Tables::from_bytes`] takes bytes; [`topology()`] turns either into a
//! [`Topology`] with a list of [`Finding`]s. The rules are those of the ACPI specification (6.6,
//! section 5.2) where Linux follows it, and Linux's own where it is stricter or more lenient: a
//! table that Linux would not use is not used here either.
//!
//! # Numbers
//! Tables name proximity domains ([`Pxm`](crate::Pxm)), Linux numbers nodes. Linux gives each
//! domain the lowest free number at its first use: first all processors and generic initiators in
//! the order of the SRAT, then all memory (`acpi_numa_init` and `acpi_map_pxm_to_node` in
//! `drivers/acpi/numa/srat.c`). Interrupt translation services and generic ports make no node.
//!
//! CPUs are numbered in the order of the MADT, enabled ones only. Linux does the same if the first
//! listed CPU is the one it boots on. Without a MADT, the order is that of the SRAT.
//!
//! # Memory
//! [`Node::memory_bytes`](crate::Node::memory_bytes) counts the enabled ranges except hot-pluggable
//! and non-volatile ones. Tables do not show whether memory is plugged in, and claims on absent
//! memory are worse than a modest figure. [`Node::ranges`](crate::Node::ranges) has all ranges.

mod bytes;
mod domains;
mod dump;
mod finding;
mod header;
mod hmat;
mod machine;
mod madt;
#[cfg(feature = "std")]
mod read;
mod reserved;
mod signature;
mod slit;
mod srat;
mod tables;

pub use finding::{Effect, Finding};
pub use hmat::{Attachment, DataType, Hmat, Locality, MemorySideCache, Quantity, Value};
pub use machine::topology;
pub use madt::Madt;
#[cfg(feature = "std")]
pub use read::{MAX_FILE_BYTES, ReadError, read};
pub use signature::Signature;
pub use slit::Slit;
pub use srat::{DeviceHandle, ProcessorId, Srat, SratEntry, Subject};
pub use tables::Tables;

#[cfg(doc)]
use crate::Topology;
