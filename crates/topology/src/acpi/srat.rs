//! The System Resource Affinity Table: the proximity domains of CPUs and memory (ACPI 6.6, section
//! 5.2.16).

use super::{
    bytes::{array, u8_at, u16_at, u32_at, u64_at},
    finding::{Effect, Finding},
    header::{Entry, EntryForm, Table},
    reserved,
};
use crate::{id::Pxm, model::MemoryRange};
use alloc::{format, vec::Vec};
use core::fmt;

/// Header, a reserved word and eight reserved bytes come before the first entry.
const FIRST_ENTRY: usize = 48;

/// A System Resource Affinity Table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Srat {
    /// Up to revision 1 a proximity domain has 8 bits, from 2 on it has 32.
    pub revision: u8,
    /// The entries of known type in the order of the table.
    pub entries: Vec<SratEntry>,
}

/// An entry of the SRAT and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SratEntry {
    /// Bytes from the start of the table.
    pub offset: usize,
    /// The proximity domain of the entry's subject.
    pub pxm: Pxm,
    /// Whether the entry counts; the operating system ignores those that do not.
    pub enabled: bool,
    /// The CPU, memory or device that belongs to the domain.
    pub subject: Subject,
}

/// The subject of an entry of the SRAT: a CPU, memory or a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A CPU: local APIC (type 0), local x2APIC (2), GICC (3) or RINTC (7).
    Processor(ProcessorId),
    /// A range of physical memory (type 1).
    Memory(MemoryRange),
    /// An interrupt translation service of Arm's GIC, by its id (type 4).
    GicIts(u32),
    /// A device that reads and writes memory on its own account, such as a GPU (type 5).
    GenericInitiator(DeviceHandle),
    /// A port to memory whose performance firmware cannot know, such as a CXL host bridge (type 6).
    GenericPort(DeviceHandle),
}

/// Firmware's name of a CPU; the key that joins the SRAT with the MADT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcessorId {
    /// (x2)APIC id, on x86. The SAPIC EID of Itanium is not part of it.
    Apic(u32),
    /// ACPI processor UID, on Arm and RISC-V.
    Uid(u32),
}

impl ProcessorId {
    /// The number without its kind.
    pub fn number(self) -> u32 {
        match self {
            Self::Apic(number) | Self::Uid(number) => number,
        }
    }
}

/// Firmware's name of a device (ACPI 6.6, section 5.2.16.6, "Device Handle").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceHandle {
    /// A device of the ACPI namespace.
    Acpi {
        /// `_HID`, as characters.
        hid: [u8; 8],
        /// `_UID`.
        uid: u32,
    },
    /// A PCI function.
    Pci {
        /// PCI segment, `0000` in `0000:3b:00.1`.
        segment: u16,
        /// Bus, `3b` in `0000:3b:00.1`.
        bus: u8,
        /// Device and function, 5 and 3 bits.
        devfn: u8,
    },
    /// A kind of handle that the specification does not know.
    Unknown(u8),
}

impl fmt::Display for DeviceHandle {
    /// PCI functions as Linux writes them, `0000:3b:00.1`; others as `ACPI0016:1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Acpi { hid, uid } => write!(f, "{}:{uid}", hid.trim_ascii().escape_ascii()),
            Self::Pci { segment, bus, devfn } => {
                write!(f, "{segment:04x}:{bus:02x}:{:02x}.{}", devfn >> 3, devfn & 7)
            }
            Self::Unknown(kind) => write!(f, "device handle of type {kind}"),
        }
    }
}

impl Srat {
    /// Reads the table. An entry shorter than its type rejects it, as in Linux (`bad_srat` in
    /// `arch/x86/mm/srat.c`, `drivers/acpi/numa/srat.c`); unknown types are skipped.
    pub(super) fn parse(table: &Table<'_>, findings: &mut Vec<Finding>) -> Result<Self, Finding> {
        let mut srat = Self { revision: table.revision, entries: Vec::new() };
        let mut enabled = Vec::new();
        for entry in table.entries(FIRST_ENTRY, EntryForm::Short)? {
            let Some(bytes) = length_of(entry.kind) else {
                let read = format!("an entry of type {}", entry.kind);
                findings.push(table.finding(
                    entry.offset,
                    Effect::EntryIgnored,
                    read,
                    "types 0 to 7",
                ));
                continue;
            };
            match srat.entry(&entry).filter(|_| entry.bytes.len() >= bytes) {
                Some(known) => {
                    srat.entries.push(known);
                    enabled.extend(known.enabled.then_some(entry));
                }
                None => {
                    let read =
                        format!("an entry of type {} of {} bytes", entry.kind, entry.bytes.len());
                    return Err(table.finding(
                        entry.offset,
                        Effect::TableIgnored,
                        read,
                        format!("{bytes} bytes"),
                    ));
                }
            }
            if entry.bytes.len() > bytes {
                let read =
                    format!("an entry of type {} of {} bytes", entry.kind, entry.bytes.len());
                findings.push(table.finding(
                    entry.offset,
                    Effect::Noted,
                    read,
                    format!("{bytes} bytes"),
                ));
            }
        }
        reserved::check(table, enabled, findings);
        Ok(srat)
    }

    fn entry(&self, entry: &Entry<'_>) -> Option<SratEntry> {
        let bytes = entry.bytes;
        let (pxm, flags, subject) = match entry.kind {
            0 => {
                let [low, apic] = array(bytes, 2)?;
                let [high @ .., _] = array::<4>(bytes, 9)?;
                let [a, b, c] = if self.revision >= 2 { high } else { [0; 3] };
                let pxm = u32::from_le_bytes([low, a, b, c]);
                (pxm, u32_at(bytes, 4)?, Subject::Processor(ProcessorId::Apic(apic.into())))
            }
            1 => {
                let (pxm, flags) = (u32_at(bytes, 2)?, u32_at(bytes, 28)?);
                // Revision 1 leaves the upper bytes reserved (`acpi_numa_memory_affinity_init`).
                let pxm = if self.revision >= 2 { pxm } else { pxm & 0xff };
                let range = MemoryRange {
                    start: u64_at(bytes, 8)?,
                    length_bytes: u64_at(bytes, 16)?,
                    hot_pluggable: flags & 2 != 0,
                    non_volatile: flags & 4 != 0,
                };
                (pxm, flags, Subject::Memory(range))
            }
            2 => (
                u32_at(bytes, 4)?,
                u32_at(bytes, 12)?,
                Subject::Processor(ProcessorId::Apic(u32_at(bytes, 8)?)),
            ),
            3 => (
                u32_at(bytes, 2)?,
                u32_at(bytes, 10)?,
                Subject::Processor(ProcessorId::Uid(u32_at(bytes, 6)?)),
            ),
            // There is no flag: an ITS that is listed is there.
            4 => (u32_at(bytes, 2)?, 1, Subject::GicIts(u32_at(bytes, 8)?)),
            5 => (
                u32_at(bytes, 4)?,
                u32_at(bytes, 24)?,
                Subject::GenericInitiator(device_handle(bytes)?),
            ),
            6 => {
                (u32_at(bytes, 4)?, u32_at(bytes, 24)?, Subject::GenericPort(device_handle(bytes)?))
            }
            7 => (
                u32_at(bytes, 4)?,
                u32_at(bytes, 12)?,
                Subject::Processor(ProcessorId::Uid(u32_at(bytes, 8)?)),
            ),
            _ => return None,
        };
        Some(SratEntry { offset: entry.offset, pxm: Pxm(pxm), enabled: flags & 1 != 0, subject })
    }
}

/// Bytes of an entry by type (ACPI 6.6, sections 5.2.16.1 to 5.2.16.8).
fn length_of(kind: u16) -> Option<usize> {
    Some(match kind {
        0 => 16,
        1 => 40,
        2 => 24,
        3 => 18,
        4 => 12,
        5 | 6 => 32,
        7 => 20,
        _ => return None,
    })
}

fn device_handle(entry: &[u8]) -> Option<DeviceHandle> {
    // The bus comes first: read as one little-endian number the two bytes would be swapped.
    Some(match u8_at(entry, 3)? {
        0 => DeviceHandle::Acpi { hid: array(entry, 8)?, uid: u32_at(entry, 16)? },
        1 => DeviceHandle::Pci {
            segment: u16_at(entry, 8)?,
            bus: u8_at(entry, 10)?,
            devfn: u8_at(entry, 11)?,
        },
        kind => DeviceHandle::Unknown(kind),
    })
}
