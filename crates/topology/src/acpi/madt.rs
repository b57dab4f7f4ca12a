//! The Multiple APIC Description Table, as far as it lists CPUs (ACPI 6.6, section 5.2.12).

use super::{
    bytes::{u8_at, u32_at},
    finding::{Effect, Finding, Group},
    header::{Entry, EntryForm, Table},
    reserved,
    srat::ProcessorId,
};
use alloc::{collections::BTreeSet, format, vec::Vec};

/// Header, address of the local interrupt controller and flags come before the first entry.
const FIRST_ENTRY: usize = 44;

/// The last type that this reader knows; it knows that those of no CPU are of none.
const LAST_KNOWN: u16 = 27;
/// A CPU of Itanium, whose id in the SRAT has parts in two fields. No kernel since 6.7 runs there.
const LOCAL_SAPIC: u16 = 7;
/// From here on types are the manufacturer's own (ACPI 6.6, table 5.21).
const FIRST_OEM: u16 = 0x80;

/// The CPUs of a Multiple APIC Description Table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Madt {
    /// The enabled CPUs, each once, in the order of the table.
    pub processors: Vec<ProcessorId>,
}

impl Madt {
    /// Reads the local APICs (type 0), local x2APICs (9), GIC CPU interfaces (11), LoongArch core
    /// interrupt controllers (17) and RISC-V interrupt controllers (24). Types that may describe
    /// CPUs in a way that this reader does not know are noted.
    pub(super) fn parse(table: &Table<'_>, findings: &mut Vec<Finding>) -> Result<Self, Finding> {
        let mut madt = Self::default();
        let mut enabled_entries = Vec::new();
        let (mut seen, mut listed) = (BTreeSet::new(), BTreeSet::new());
        let (mut unknown, mut repeated) = (Group::default(), Group::default());
        for entry in table.entries(FIRST_ENTRY, EntryForm::Short)? {
            if !matches!(entry.kind, 0 | 9 | 11 | 17 | 24) {
                if entry.kind == LOCAL_SAPIC || (LAST_KNOWN + 1..FIRST_OEM).contains(&entry.kind) {
                    unknown.add(entry.offset, || format!("an entry of type {}", entry.kind));
                }
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
                if seen.insert((entry.kind, id)) {
                    if listed.insert(id) {
                        madt.processors.push(id);
                    }
                } else {
                    repeated.add(entry.offset, || format!("processor {} again", id.number()));
                }
            }
        }
        reserved::check(table, enabled_entries, findings);
        findings.extend(unknown.finding(
            table.signature,
            Effect::EntryIgnored,
            "a type of which it is known whether it describes CPUs",
        ));
        findings.extend(repeated.finding(
            table.signature,
            Effect::EntryIgnored,
            "each processor once",
        ));
        Ok(madt)
    }
}

fn processor(entry: &Entry<'_>) -> Option<(ProcessorId, bool)> {
    let bytes = entry.bytes;
    let (id, flags) = match entry.kind {
        0 => (ProcessorId::Apic(u8_at(bytes, 3)?.into()), u32_at(bytes, 4)?),
        9 => (ProcessorId::Apic(u32_at(bytes, 4)?), u32_at(bytes, 8)?),
        11 => (ProcessorId::Uid(u32_at(bytes, 8)?), u32_at(bytes, 12)?),
        // The SRAT names the core's physical id, as an APIC id (`arch/loongarch/kernel/acpi.c`).
        17 => (ProcessorId::Apic(u32_at(bytes, 7)?), u32_at(bytes, 11)?),
        24 => (ProcessorId::Uid(u32_at(bytes, 16)?), u32_at(bytes, 4)?),
        _ => return None,
    };
    Some((id, flags & 1 != 0))
}
