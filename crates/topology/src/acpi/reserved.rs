//! Fields and flags that the ACPI specification reserves. A table that sets them is still used, but
//! their meaning is unknown to this reader.

use super::{
    finding::{Effect, Finding, Group},
    header::{Entry, Table},
    signature::Signature,
};
use alloc::{format, vec::Vec};
use core::ops::RangeInclusive;

/// A field with reserved bits.
struct Field {
    /// Bytes from the start of the table or entry.
    offset: usize,
    /// Length in bytes, at most 8.
    length: usize,
    /// The bits that have a meaning; 0 where the whole field is reserved.
    known_bits: u64,
}

/// A field that is reserved as a whole.
const fn reserved(offset: usize, length: usize) -> Field {
    Field { offset, length, known_bits: 0 }
}

/// Flags, of which only `known_bits` have a meaning.
const fn flags(offset: usize, length: usize, known_bits: u64) -> Field {
    Field { offset, length, known_bits }
}

/// The fields of a kind of entry: its table and type, the table's revisions, the fields.
type Row = (Signature, u16, RangeInclusive<u8>, &'static [Field]);

const ANY: RangeInclusive<u8> = 0..=u8::MAX;
const ENABLED: u64 = 1;
const ENABLED_OR_ONLINE_CAPABLE: u64 = 0b11;

/// ACPI 6.6, sections 5.2.12 (MADT), 5.2.16 (SRAT) and 5.2.28 (HMAT); several rows may be about one
/// kind of entry.
const ROWS: &[Row] = &[
    (Signature::SRAT, 0, ANY, &[flags(4, 4, ENABLED)]),
    // Until revision 1, the upper bytes of a proximity domain were reserved.
    (Signature::SRAT, 0, 0..=1, &[reserved(9, 7)]),
    (Signature::SRAT, 1, 0..=1, &[reserved(3, 3)]),
    // Enabled, hot-pluggable, non-volatile, for a specific purpose.
    (Signature::SRAT, 1, ANY, &[reserved(6, 2), reserved(24, 4), flags(28, 4, 0b1111)]),
    (Signature::SRAT, 1, ANY, &[reserved(32, 8)]),
    (Signature::SRAT, 2, ANY, &[reserved(2, 2), flags(12, 4, ENABLED), reserved(20, 4)]),
    (Signature::SRAT, 3, ANY, &[flags(10, 4, ENABLED)]),
    (Signature::SRAT, 4, ANY, &[reserved(6, 2)]),
    // Enabled, architectural transactions. Both kinds of device handle end with reserved bytes.
    (Signature::SRAT, 5, ANY, &[reserved(2, 1), reserved(20, 4), flags(24, 4, 0b11)]),
    (Signature::SRAT, 5, ANY, &[reserved(28, 4)]),
    (Signature::SRAT, 6, ANY, &[reserved(2, 1), reserved(20, 4), flags(24, 4, 0b11)]),
    (Signature::SRAT, 6, ANY, &[reserved(28, 4)]),
    (Signature::SRAT, 7, ANY, &[reserved(2, 2), flags(12, 4, ENABLED)]),
    (Signature::HMAT, 0, ANY, &[reserved(2, 2), reserved(10, 2), reserved(20, 4)]),
    // Initiator valid, memory valid, reservation hint; a range of addresses followed.
    (Signature::HMAT, 0, 1..=1, &[flags(8, 2, 0b111)]),
    (Signature::HMAT, 0, 2..=2, &[flags(8, 2, 0b1), reserved(24, 8), reserved(32, 8)]),
    (Signature::HMAT, 1, ANY, &[reserved(2, 2), reserved(20, 4)]),
    (Signature::HMAT, 1, 1..=1, &[flags(8, 1, 0b1111), reserved(10, 2)]),
    // Hierarchy, and two flags about transfers, whose size byte 10 has.
    (Signature::HMAT, 1, 2..=2, &[flags(8, 1, 0b11_1111), reserved(11, 1)]),
    // Byte 28: the address mode.
    (Signature::HMAT, 2, ANY, &[reserved(2, 2), reserved(12, 4), flags(28, 2, 1)]),
    (Signature::MADT, 0, ANY, &[flags(4, 4, ENABLED_OR_ONLINE_CAPABLE)]),
    (Signature::MADT, 9, ANY, &[reserved(2, 2), flags(8, 4, ENABLED_OR_ONLINE_CAPABLE)]),
    // Enabled, modes of two interrupts, online capable.
    (Signature::MADT, 11, ANY, &[reserved(2, 2), flags(12, 4, 0b1111)]),
    (Signature::MADT, 24, ANY, &[reserved(3, 1), flags(4, 4, ENABLED_OR_ONLINE_CAPABLE)]),
];

/// Notes the reserved fields and flags that are set in the table itself and in those of its
/// `entries` that count.
pub(super) fn check<'a>(
    table: &Table<'_>,
    entries: impl IntoIterator<Item = Entry<'a>>,
    findings: &mut Vec<Finding>,
) {
    let (mut fields, mut bits) = (Group::default(), Group::default());
    let mut note = |offset: usize, bytes: &[u8], field: &Field| {
        let value = number(bytes, field).unwrap_or(0);
        let unknown = value & !field.known_bits;
        let offset = offset + field.offset;
        match (unknown, field.known_bits) {
            (0, _) => {}
            (_, 0) => fields.add(offset, || format!("{value:#x}")),
            _ => bits
                .add(offset, || format!("flags of {value:#x}, of which {unknown:#x} are reserved")),
        }
    };
    of_table(table.signature).iter().for_each(|field| note(0, table.bytes, field));
    for entry in entries {
        of_entry(table, &entry).for_each(|field| note(entry.offset, entry.bytes, field));
    }
    let expected = "0 in a reserved field";
    findings.extend(fields.finding(table.signature, Effect::Noted, expected));
    findings.extend(bits.finding(table.signature, Effect::Noted, "no reserved flag"));
    // Reserved, and 1 for the sake of old readers.
    let version =
        number(table.bytes, &reserved(36, 4)).filter(|_| table.signature == Signature::SRAT);
    if let Some(version) = version.filter(|&version| version != 1) {
        findings.push(table.finding(36, Effect::Noted, format!("{version:#x}"), "0x1"));
    }
}

fn number(bytes: &[u8], field: &Field) -> Option<u64> {
    let bytes = bytes.get(field.offset..field.offset + field.length)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// The fields of the table before its first entry.
fn of_table(signature: Signature) -> &'static [Field] {
    const SRAT: &[Field] = &[reserved(40, 8)];
    const HMAT: &[Field] = &[reserved(36, 4)];
    const MADT: &[Field] = &[flags(40, 4, 1)];
    match signature {
        Signature::SRAT => SRAT,
        Signature::HMAT => HMAT,
        Signature::MADT => MADT,
        _ => &[],
    }
}

/// The fields of an entry.
fn of_entry(table: &Table<'_>, entry: &Entry<'_>) -> impl Iterator<Item = &'static Field> {
    // The handle of a PCI function is shorter than that of an ACPI device.
    const PCI_HANDLE: &[Field] = &[reserved(12, 8)];
    let (signature, kind, revision) = (table.signature, entry.kind, table.revision);
    let has_pci_handle =
        signature == Signature::SRAT && matches!(kind, 5 | 6) && entry.bytes.get(3) == Some(&1);
    let is_about = move |(of_signature, of_kind, revisions, _): &&Row| {
        *of_signature == signature && *of_kind == kind && revisions.contains(&revision)
    };
    let of_handle = if has_pci_handle { PCI_HANDLE } else { &[] };
    ROWS.iter().filter(is_about).flat_map(|(.., fields)| *fields).chain(of_handle)
}
