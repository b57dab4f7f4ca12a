//! The Heterogeneous Memory Attribute Table: latency and bandwidth between proximity domains (ACPI
//! 6.6, section 5.2.28).

use super::{
    bytes::{u8_at, u16_at, u32_at, u64_at},
    finding::{Effect, Finding},
    header::{Entry, EntryForm, Table},
    reserved,
};
use crate::id::Pxm;
use alloc::{format, vec::Vec};

/// Header and a reserved word come before the first structure.
const FIRST_ENTRY: usize = 40;

/// A Heterogeneous Memory Attribute Table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hmat {
    /// 1 (ACPI 6.2) or 2 (ACPI 6.3 and later); they differ in the unit of latencies and bandwidths.
    pub revision: u8,
    /// The initiators that memory is attached to (type 0).
    pub attachments: Vec<Attachment>,
    /// Latencies and bandwidths (type 1).
    pub localities: Vec<Locality>,
    /// Caches in front of memory (type 2).
    pub caches: Vec<MemorySideCache>,
}

/// A memory proximity domain attributes structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// Bytes from the start of the table.
    pub offset: usize,
    /// The memory; revision 1 may leave it out.
    pub memory: Option<Pxm>,
    /// The initiator that the memory is attached to, where there is one.
    pub initiator: Option<Pxm>,
}

/// The quantity that a [`Locality`] measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType {
    /// Latency or bandwidth.
    pub quantity: Quantity,
    /// Whether it holds for reading.
    pub read: bool,
    /// Whether it holds for writing.
    pub write: bool,
}

/// Latency or bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// In nanoseconds.
    LatencyNs,
    /// In MB/s.
    BandwidthMbS,
}

/// A system locality latency and bandwidth information structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locality {
    /// Bytes from the start of the table.
    pub offset: usize,
    /// 0 for memory, 1 to 3 for the memory-side cache of that level.
    pub hierarchy: u8,
    /// The quantity of the entries.
    pub data_type: DataType,
    /// The value of an entry of 1: picoseconds or MB/s, in revision 1 a tenth of a nanosecond or of
    /// a MB/s.
    pub base_unit: u64,
    /// The initiators, one a row.
    pub initiators: Vec<Pxm>,
    /// The targets, one a column.
    pub targets: Vec<Pxm>,
    /// Row by row, in base units: `initiators.len() * targets.len()` values.
    pub entries: Vec<u16>,
}

/// A memory-side cache information structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySideCache {
    /// Bytes from the start of the table.
    pub offset: usize,
    /// The memory behind the cache.
    pub memory: Pxm,
    /// Size of the cache in bytes.
    pub size_bytes: u64,
    /// Level of this cache, 1 being the nearest to the memory's user.
    pub level: u8,
    /// Size of a line in bytes.
    pub line_bytes: u16,
}

/// The meaning of an entry of a [`Locality`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// None: firmware does not know it (an entry of 0).
    NotProvided,
    /// The initiator cannot reach the target (0xFFFF).
    Unreachable,
    /// More than 32 bits hold; Linux takes it for not provided.
    TooLarge,
    /// Nanoseconds or MB/s.
    Known(u64),
}

impl Locality {
    /// The value of `entry` in nanoseconds or MB/s, in a table of this `revision`: rounded up as
    /// Linux does (`hmat_normalize` in `drivers/acpi/numa/hmat.c`).
    pub fn value(&self, entry: u16, revision: u8) -> Value {
        match entry {
            0 => return Value::NotProvided,
            u16::MAX => return Value::Unreachable,
            _ => {}
        }
        let product =
            self.base_unit.checked_mul(entry.into()).filter(|&product| product <= u32::MAX.into());
        let Some(product) = product else { return Value::TooLarge };
        match (revision, self.data_type.quantity) {
            (_, _) if product == 0 => Value::NotProvided,
            (1, _) if product < 10 => Value::NotProvided,
            (1, _) => Value::Known(product.div_ceil(10)),
            (_, Quantity::LatencyNs) => Value::Known(product.div_ceil(1000)),
            (_, Quantity::BandwidthMbS) => Value::Known(product),
        }
    }
}

impl Hmat {
    /// Reads the table. Structures of unknown type are skipped. A structure that is shorter than
    /// its own counts require rejects the table, and so does an unknown revision, as in Linux
    /// (`hmat_init` in `drivers/acpi/numa/hmat.c`).
    pub(super) fn parse(table: &Table<'_>, findings: &mut Vec<Finding>) -> Result<Self, Finding> {
        if !matches!(table.revision, 1 | 2) {
            let read = format!("revision {}", table.revision);
            return Err(table.finding(8, Effect::TableIgnored, read, "1 or 2"));
        }
        let mut hmat = Self { revision: table.revision, ..Self::default() };
        let entries = table.entries(FIRST_ENTRY, EntryForm::Long)?;
        for entry in &entries {
            let short = || {
                let read =
                    format!("a structure of type {} of {} bytes", entry.kind, entry.bytes.len());
                table.finding(
                    entry.offset,
                    Effect::TableIgnored,
                    read,
                    "room for all that it counts",
                )
            };
            match entry.kind {
                0 => hmat.attachments.push(attachment(entry, hmat.revision).ok_or_else(short)?),
                1 => match data_type(u8_at(entry.bytes, 9).ok_or_else(short)?) {
                    Ok(data_type) => {
                        let locality = locality(entry, data_type).ok_or_else(short)?;
                        match unusable(table, &locality) {
                            Some(finding) => findings.push(finding),
                            None => hmat.localities.push(locality),
                        }
                    }
                    Err(unknown) => {
                        let read = format!("data type {unknown}");
                        findings.push(table.finding(
                            entry.offset + 9,
                            Effect::EntryIgnored,
                            read,
                            "0 to 5",
                        ));
                    }
                },
                2 => hmat.caches.push(cache(entry).ok_or_else(short)?),
                kind => {
                    let read = format!("a structure of type {kind}");
                    findings.push(table.finding(
                        entry.offset,
                        Effect::EntryIgnored,
                        read,
                        "types 0 to 2",
                    ));
                }
            }
        }
        reserved::check(table, entries, findings);
        Ok(hmat)
    }
}

/// The reason why a structure of type 1 that is long enough has no usable figures.
fn unusable(table: &Table<'_>, locality: &Locality) -> Option<Finding> {
    // Revision 1 counted the last level of cache as well.
    let last_level = if table.revision == 1 { 4 } else { 3 };
    let finding = |at, read, expected| {
        Some(table.finding(locality.offset + at, Effect::EntryIgnored, read, expected))
    };
    match locality.hierarchy {
        _ if locality.base_unit == 0 => finding(
            24,
            "a base unit of 0".into(),
            "at least 1, since all entries are multiples of it".into(),
        ),
        level if level > last_level => {
            finding(8, format!("memory hierarchy {level}"), format!("0 to {last_level}"))
        }
        _ => None,
    }
}

fn attachment(entry: &Entry<'_>, revision: u8) -> Option<Attachment> {
    // Unlike the other two, this structure has a fixed size, and Linux requires it.
    let bytes = Some(entry.bytes).filter(|bytes| bytes.len() == 40)?;
    let flags = u16_at(bytes, 8)?;
    let (initiator, memory) = (Pxm(u32_at(bytes, 12)?), Pxm(u32_at(bytes, 16)?));
    Some(Attachment {
        offset: entry.offset,
        memory: (revision >= 2 || flags & 2 != 0).then_some(memory),
        initiator: (flags & 1 != 0).then_some(initiator),
    })
}

fn data_type(number: u8) -> Result<DataType, u8> {
    let quantity = match number {
        0..=2 => Quantity::LatencyNs,
        3..=5 => Quantity::BandwidthMbS,
        _ => return Err(number),
    };
    Ok(DataType { quantity, read: number % 3 != 2, write: number % 3 != 1 })
}

fn locality(entry: &Entry<'_>, data_type: DataType) -> Option<Locality> {
    const LISTS: usize = 32;
    let bytes = entry.bytes;
    let initiators = u32_at(bytes, 12)? as usize;
    let targets = u32_at(bytes, 16)? as usize;
    let base_unit = u64_at(bytes, 24)?;
    let initiators_bytes = initiators.checked_mul(4)?;
    let targets_bytes = targets.checked_mul(4)?;
    let entries_bytes = initiators.checked_mul(targets)?.checked_mul(2)?;
    let (initiators, rest) = bytes.get(LISTS..)?.split_at_checked(initiators_bytes)?;
    let (targets, rest) = rest.split_at_checked(targets_bytes)?;
    let entries = rest.get(..entries_bytes)?;
    Some(Locality {
        offset: entry.offset,
        hierarchy: u8_at(bytes, 8)? & 0x0f,
        data_type,
        base_unit,
        initiators: pxms(initiators),
        targets: pxms(targets),
        entries: entries.as_chunks().0.iter().map(|&two| u16::from_le_bytes(two)).collect(),
    })
}

fn pxms(bytes: &[u8]) -> Vec<Pxm> {
    bytes.as_chunks().0.iter().map(|&four| Pxm(u32::from_le_bytes(four))).collect()
}

fn cache(entry: &Entry<'_>) -> Option<MemorySideCache> {
    let bytes = entry.bytes;
    let attributes = u32_at(bytes, 24)?;
    let handles = usize::from(u16_at(bytes, 30)?);
    // The handles refer to SMBIOS, which is not read; they must exist all the same.
    bytes.get(32..32 + 2 * handles)?;
    Some(MemorySideCache {
        offset: entry.offset,
        memory: Pxm(u32_at(bytes, 8)?),
        size_bytes: u64_at(bytes, 16)?,
        level: (attributes >> 4 & 0x0f) as u8,
        line_bytes: (attributes >> 16) as u16,
    })
}
