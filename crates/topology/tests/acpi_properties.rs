//! Properties of any ACPI table, sound or not.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "common/acpi_builder.rs"]
mod acpi_builder;
#[path = "../../../fuzz/src/lib.rs"]
#[allow(dead_code, unreachable_pub, reason = "a crate of its own for the fuzzer, a module here")]
mod targets;

use acpi_builder::*;
use nearside_topology::{
    MemoryRange,
    acpi::{self, Effect, ProcessorId, SratEntry, Subject, Tables},
};
use proptest::prelude::*;

/// An entry, as the builder writes it and as the reader should give it back.
fn entry() -> impl Strategy<Value = (u8, u32, u32, u32, [u64; 2], [u8; 3])> {
    (0..8u8, any::<u32>(), any::<u32>(), 0..8u32, any::<[u64; 2]>(), any::<[u8; 3]>())
}

/// A whole machine's tables, one that is mostly in order.
fn tables() -> [Vec<u8>; 4] {
    let srat = two_sockets()
        .x2apic(1, 9, ENABLED)
        .initiator(2, [0, 1, 2], ENABLED)
        .its(0, 1)
        .rintc(0, 3, ENABLED);
    let hmat = Builder::hmat(2)
        .attachment(1, 0, 0)
        .locality([0, 0], 1000, &[0, 1], &[0, 1], &[80, 130, 130, 80])
        .cache(0, GIB, 1, 64);
    let madt = Builder::madt()
        .madt_apic(0, true)
        .madt_x2apic(9, true)
        .madt_gicc(3, true)
        .madt_rintc(3, true);
    [srat.build(), Builder::slit(2, &[10, 21, 21, 10]).build(), hmat.build(), madt.build()]
}

#[test]
fn a_table_cut_anywhere_is_never_used_in_silence() {
    for table in tables() {
        assert_eq!(Tables::from_bytes(&table).findings, []);
        for length in 0..table.len() {
            let cut = Tables::from_bytes(&table[..length]);
            assert!(
                cut.srat.is_none()
                    && cut.slit.is_none()
                    && cut.hmat.is_none()
                    && cut.madt.is_none(),
                "{length}"
            );
            assert!(
                cut.findings.iter().any(|finding| finding.effect == Effect::TableIgnored),
                "{length}"
            );
            targets::acpi(&table[..length]);

            // The same cut with a length and a checksum to match: now only the entries can tell.
            let mut lying = table[..length].to_vec();
            if length >= 36 {
                lying[4..8].copy_from_slice(&(length as u32).to_le_bytes());
                set_checksum(&mut lying);
            }
            targets::acpi(&lying);
        }
    }
}

#[test]
fn a_dump_cut_anywhere_is_never_used_in_silence() {
    let text = acpidump(&tables()[..1]);
    let last = text.trim_end().rfind("  ").unwrap();
    for length in 0..last - 48 {
        let cut = Tables::from_bytes(&text.as_bytes()[..length]);
        assert!(cut.srat.is_none() && !cut.findings.is_empty(), "{length}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes: Vec<u8>) {
        targets::acpi(&bytes);
        targets::acpidump(&bytes);
    }

    #[test]
    fn sound_tables_with_bytes_changed_are_answered(
        changes: Vec<(prop::sample::Index, u8)>,
        sum_up: bool,
    ) {
        let mut all = tables();
        for (at, value) in changes {
            let index = at.index(all.iter().map(Vec::len).sum());
            let byte = all.iter_mut().flatten().nth(index);
            *byte.unwrap() = value;
        }
        if sum_up {
            all.iter_mut().for_each(|table| set_checksum(table));
        }
        targets::acpi(&all.concat());
        targets::acpidump(acpidump(&all).as_bytes());
    }

    #[test]
    fn an_srat_is_read_back_as_it_was_written(entries in prop::collection::vec(entry(), 0..40)) {
        let mut table = Builder::srat(3);
        let mut expected = Vec::new();
        let mut offset = 48;
        for (kind, pxm, id, flags, [start, length_bytes], [segment, bus, devfn]) in entries {
            let before = table.build().len();
            let (written, subject) = match kind {
                0 => {
                    let subject = Subject::Processor(ProcessorId::Apic(id & 0xff));
                    (table.apic(pxm, id as u8, flags), subject)
                }
                1 => {
                    let (hot_pluggable, non_volatile) = (flags & 2 != 0, flags & 4 != 0);
                    let range = MemoryRange { start, length_bytes, hot_pluggable, non_volatile };
                    (table.memory(pxm, start, length_bytes, flags), Subject::Memory(range))
                }
                2 => (table.x2apic(pxm, id, flags), Subject::Processor(ProcessorId::Apic(id))),
                3 => (table.gicc(pxm, id, flags), Subject::Processor(ProcessorId::Uid(id))),
                4 => (table.its(pxm, id), Subject::GicIts(id)),
                5 => {
                    let handle = acpi::DeviceHandle::Pci { segment: segment.into(), bus, devfn };
                    let written = table.initiator(pxm, [segment, bus, devfn], flags);
                    (written, Subject::GenericInitiator(handle))
                }
                6 => {
                    let handle = acpi::DeviceHandle::Acpi { hid: *b"ACPI0016", uid: id };
                    (table.port(pxm, b"ACPI0016", id, flags), Subject::GenericPort(handle))
                }
                _ => (table.rintc(pxm, id, flags), Subject::Processor(ProcessorId::Uid(id))),
            };
            let enabled = kind == 4 || flags & 1 != 0;
            expected.push(SratEntry { offset, pxm: nearside_topology::Pxm(pxm), enabled, subject });
            offset += written.build().len() - before;
            table = written;
        }
        let raw = Tables::from_bytes(&table.build());
        // Flags may be any; those with a reserved bit are noted.
        prop_assert!(raw.findings.iter().all(|finding| finding.effect == acpi::Effect::Noted));
        prop_assert_eq!(&Tables::from_bytes(acpidump(&[table.build()]).as_bytes()), &raw);
        prop_assert_eq!(raw.srat.unwrap().entries, expected);
    }

    #[test]
    fn a_slit_is_read_back_as_it_was_written(
        n in 0..20usize,
        values in prop::collection::vec(11..=255u8, 400),
    ) {
        let distance = |at| if at % (n + 1) == 0 { 10 } else { values[at] };
        let rows: Vec<u8> = (0..n * n).map(distance).collect();
        let slit = Tables::from_bytes(&Builder::slit(n as u64, &rows).build()).slit.unwrap();
        let pxm = |at: usize| nearside_topology::Pxm(at as u32);
        for (at, &distance) in rows.iter().enumerate() {
            prop_assert_eq!(slit.get(pxm(at / n), pxm(at % n)), Some(distance));
        }
        prop_assert_eq!(slit.get(pxm(n), pxm(0)), None);
    }
}
