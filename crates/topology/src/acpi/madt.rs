//! The Multiple APIC Description Table, as far as it lists CPUs (ACPI 6.6, section 5.2.12).

use super::{
    bytes::{u8_at, u32_at},
    finding::{Effect, Finding},
    header::{Entry, EntryForm, Table},
    reserved,
    srat::ProcessorId,
};
use alloc::{collections::BTreeSet, format, vec::Vec};

/// Header, address of the local interrupt controller and flags come before the first entry.
const FIRST_ENTRY: usize = 44;

/// The CPUs of a Multiple APIC Description Table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Madt {
    /// The enabled CPUs, each once, in the order of the table.
    pub processors: Vec<ProcessorId>,
}

impl Madt {
    /// Reads the local APICs (type 0), local x2APICs (9), GIC CPU interfaces (11) and RISC-V
    /// interrupt controllers (24); other entries describe no CPUs.
    pub(super) fn parse(table: &Table<'_>, findings: &mut Vec<Finding>) -> Result<Self, Finding> {
        let mut madt = Self::default();
        let mut enabled_entries = Vec::new();
        let mut seen = BTreeSet::new();
        for entry in table.entries(FIRST_ENTRY, EntryForm::Short)? {
            if !matches!(entry.kind, 0 | 9 | 11 | 24) {
                continue;
            }
            let Some((id, enabled)) = processor(&entry) else {
                let read =
                    format!("an entry of type {} of {} bytes", entry.kind, entry.bytes.len());
                return Err(table.finding(
                    entry.offset,
                    Effect::TableIgnored,
                    read,
                    "one with an id and flags",
                ));
            };
            // These two ids mean "all CPUs", so they name none (`acpi_parse_lapic` in
            // `arch/x86/kernel/acpi/boot.c`).
            let broadcast = matches!(
                (entry.kind, id),
                (0, ProcessorId::Apic(0xff)) | (9, ProcessorId::Apic(u32::MAX))
            );
            if enabled && !broadcast {
                enabled_entries.push(entry);
                if seen.insert(id) {
                    madt.processors.push(id);
                }
            }
        }
        reserved::check(table, enabled_entries, findings);
        Ok(madt)
    }
}

fn processor(entry: &Entry<'_>) -> Option<(ProcessorId, bool)> {
    let bytes = entry.bytes;
    let (id, flags) = match entry.kind {
        0 => (ProcessorId::Apic(u8_at(bytes, 3)?.into()), u32_at(bytes, 4)?),
        9 => (ProcessorId::Apic(u32_at(bytes, 4)?), u32_at(bytes, 8)?),
        11 => (ProcessorId::Uid(u32_at(bytes, 8)?), u32_at(bytes, 12)?),
        24 => (ProcessorId::Uid(u32_at(bytes, 16)?), u32_at(bytes, 4)?),
        _ => return None,
    };
    Some((id, flags & 1 != 0))
}
