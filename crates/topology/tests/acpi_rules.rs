//! The rules by which ACPI tables are judged: one broken table a rule, with the finding that it
//! must cause.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "common/acpi_builder.rs"]
mod acpi_builder;

use acpi_builder::*;
use nearside_topology::{
    NodeId, Topology,
    acpi::{
        self,
        Effect::{self, EntryIgnored, Noted, TableIgnored},
        Finding, Signature, Tables,
    },
};

fn machine(tables: &[Vec<u8>]) -> (Topology, Vec<Finding>) {
    acpi::topology(&Tables::from_bytes(acpidump(tables).as_bytes()))
}

/// Checks that `tables` lead to one finding, and to that one.
#[track_caller]
fn expect(
    tables: &[Vec<u8>],
    signature: Signature,
    offset: usize,
    effect: Effect,
    text: &str,
) -> Topology {
    let (machine, findings) = machine(tables);
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!(
        (finding.table, finding.offset, finding.effect),
        (signature, offset, effect),
        "{finding}"
    );
    assert!(finding.to_string().contains(text), "{finding}");
    let nodes = if effect == TableIgnored && signature == Signature::SRAT { 1 } else { 2 };
    assert_eq!(machine.nodes.len(), nodes, "{finding}");
    machine
}

/// A table with `bytes` written over it at `offset` and its checksum made right again.
fn patched(mut table: Vec<u8>, offset: usize, bytes: &[u8]) -> Vec<u8> {
    table[offset..offset + bytes.len()].copy_from_slice(bytes);
    set_checksum(&mut table);
    table
}

#[test]
fn a_header_must_fit() {
    let srat = two_sockets().build();
    let length = srat.len() as u32;
    let check = |length: u32, text| {
        let table = patched(srat.clone(), 4, &length.to_le_bytes());
        expect(&[table], Signature::SRAT, 4, TableIgnored, text);
    };
    check(
        0,
        "read a length of 0 bytes, expected at least the 36 bytes of the header; \
         the table is not used",
    );
    check(35, "a length of 35 bytes");
    check(length + 1, "expected at most the 192 bytes there are");
    check(u32::MAX, "a length of 4294967295 bytes");
    let short = Builder::other(b"SRAT").raw(&[0; 11]).build();
    expect(
        &[short],
        Signature::SRAT,
        4,
        TableIgnored,
        "read a length of 47 bytes, expected at least 48",
    );
    let (_, findings) = machine(&[srat[..20].to_vec()]);
    assert_eq!(
        findings[0].to_string(),
        "SRAT at 0x0: read 20 bytes in all, expected a header of 36 bytes; the table is not used"
    );
}

#[test]
fn a_wrong_checksum_and_bytes_behind_the_end_are_noted() {
    let mut srat = two_sockets().build();
    srat[9] = srat[9].wrapping_add(1);
    expect(&[srat.clone()], Signature::SRAT, 9, Noted, "the table is still used");
    set_checksum(&mut srat);
    let end = srat.len();
    srat.extend([0; 3]);
    expect(&[srat], Signature::SRAT, end, Noted, "read 3 bytes after the end, expected none");
}

#[test]
fn an_entry_must_fit() {
    let srat = two_sockets().build();
    let last_length = 48 + 4 * 16 + 40 + 1;
    let check = |length, text| {
        let table = patched(srat.clone(), last_length, &[length]);
        expect(&[table], Signature::SRAT, last_length - 1, TableIgnored, text);
    };
    check(0, "an entry of type 1 with a length of 0 bytes, expected at least 2 bytes");
    check(1, "expected at least 2 bytes");
    let torn = two_sockets().raw(&[1]).build();
    expect(
        &[torn],
        Signature::SRAT,
        192,
        TableIgnored,
        "read 1 bytes before the end, expected an entry of at least 2",
    );
    check(41, "expected at most the 40 bytes left in the table");
    check(255, "a length of 255 bytes");
}

#[test]
fn an_entry_shorter_than_its_type_rejects_the_table_and_a_longer_one_does_not() {
    for (kind, length) in [(0, 16), (1, 40), (2, 24), (3, 18), (4, 12), (5, 32), (6, 32), (7, 20)] {
        let entry = |bytes: u8| {
            let mut entry = vec![0; bytes.into()];
            entry[..2].copy_from_slice(&[kind, bytes]);
            two_sockets().raw(&entry).build()
        };
        let text = format!(
            "read an entry of type {kind} of {} bytes, expected {length} bytes",
            length - 1
        );
        expect(&[entry(length - 1)], Signature::SRAT, 192, TableIgnored, &text);
        expect(&[entry(length + 2)], Signature::SRAT, 192, Noted, "the table is still used");
        // A flag field beyond the entry's end must not be read from the next entry.
        expect(&[entry(4)], Signature::SRAT, 192, TableIgnored, "of 4 bytes");
    }
}

#[test]
fn entries_of_unknown_types_are_skipped_by_their_length() {
    let srat = two_sockets().raw(&[8, 5, 1, 2, 3]).raw(&[255, 2]).build();
    let (machine, findings) = machine(&[srat]);
    assert_eq!(machine.nodes.len(), 2);
    let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "SRAT at 0xc0: read an entry of type 8, expected types 0 to 7; this part is \
             ignored, the table is still used",
            "SRAT at 0xc5: read an entry of type 255, expected types 0 to 7; this part is \
             ignored, the table is still used",
        ]
    );
}

#[test]
fn memory_on_two_nodes_at_once_rejects_the_table() {
    let srat = two_sockets().memory(1, GIB, 4096, ENABLED).build();
    let text =
        "read 0x40000000 to 0x40001000 is on node 1 although 0x0 to 0x100000000 is on node 0";
    expect(&[srat], Signature::SRAT, 192, TableIgnored, text);
    // As under Linux every CPU is then on the one node that is left.
    let madt = Builder::madt().madt_apic(0, true).madt_apic(3, true).build();
    let (one_node, _) = machine(&[two_sockets().memory(1, GIB, 4096, ENABLED).build(), madt]);
    assert_eq!(one_node.cpus_of(NodeId(0)).to_string(), "0-1");
    // The overlapping range need not be the neighbour in the order of addresses.
    let srat = Builder::srat(3)
        .memory(0, 0, 10 * GIB, ENABLED)
        .memory(0, GIB, GIB, ENABLED)
        .memory(1, 5 * GIB, GIB, ENABLED)
        .build();
    let (machine, findings) = machine(&[srat]);
    assert_eq!(machine.nodes.len(), 1);
    assert_eq!(findings.last().map(|finding| finding.effect), Some(TableIgnored));
}

#[test]
fn memory_twice_on_one_node_counts_once() {
    let srat =
        two_sockets().memory(1, 5 * GIB, 4 * GIB, ENABLED).memory(1, 6 * GIB, GIB, ENABLED).build();
    let machine =
        expect(&[srat], Signature::SRAT, 192, Noted, "(and 1 more), expected each byte once");
    assert_eq!(machine.nodes[1].memory_bytes, 5 * GIB);
}

#[test]
fn holes_are_noted_unless_they_are_known_to_be_no_ram() {
    let x86 = Builder::srat(3)
        .memory(0, 0, 0xa_0000, ENABLED)
        .memory(0, 0x10_0000, 2 * GIB, ENABLED)
        .memory(1, 4 * GIB, GIB, ENABLED);
    assert_eq!(machine(&[x86.build()]).1, []);
    let srat = x86.memory(1, 6 * GIB, GIB, ENABLED).build();
    expect(&[srat], Signature::SRAT, 168, Noted, "no node from 0x140000000 to 0x180000000");

    // AMD keeps the 12 GiB below 1 TiB for HyperTransport.
    let amd = |second_start: u64| {
        Builder::srat(3)
            .memory(0, 0, 0xfd_0000_0000, ENABLED)
            .memory(1, second_start, 512 * GIB, ENABLED)
            .build()
    };
    assert_eq!(machine(&[amd(0x100_0000_0000)]).1, []);
    let beyond = "no node from 0xfd00000000 to 0x10100000000";
    expect(&[amd(0x101_0000_0000)], Signature::SRAT, 88, Noted, beyond);
}

#[test]
fn windows_for_memory_that_comes_later_may_lie_apart() {
    let srat = two_sockets().memory(1, 64 * GIB, GIB, ENABLED | HOT_PLUGGABLE);
    let machine =
        expect(&[srat.build()], Signature::SRAT, 192, Noted, "hot-pluggable memory: 0x1000000000");
    assert_eq!(machine.nodes[1].memory_bytes, 4 * GIB);
}

#[test]
fn ranges_that_are_empty_or_wrap_are_ignored() {
    let srat = two_sockets().memory(1, 8 * GIB, 0, ENABLED).build();
    expect(&[srat], Signature::SRAT, 192, EntryIgnored, "read 0x0 bytes from 0x200000000");
    let srat = two_sockets().memory(1, u64::MAX - 1, 2, ENABLED).build();
    expect(&[srat], Signature::SRAT, 192, EntryIgnored, "a range that ends after it starts");
}

#[test]
fn a_table_without_memory_is_not_used() {
    let srat =
        Builder::srat(3).apic(0, 0, ENABLED).apic(1, 1, ENABLED).memory(0, 0, GIB, 0).build();
    expect(&[srat], Signature::SRAT, 0, TableIgnored, "no enabled memory");
}

#[test]
fn there_are_1024_nodes_at_most() {
    let srat =
        |nodes| (0..nodes).fold(two_sockets(), |srat, pxm| srat.x2apic(pxm, pxm, ENABLED)).build();
    assert_eq!(machine(&[srat(1024)]).0.nodes.len(), 1024);
    let (machine, findings) = machine(&[srat(1025)]);
    assert_eq!(machine.nodes.len(), 1);
    assert!(findings.last().unwrap().to_string().contains("PXM 1024 after 1024 others"));
}

#[test]
fn a_processor_listed_twice_is_where_the_last_entry_says() {
    let srat = two_sockets().x2apic(1, 0, ENABLED).build();
    let machine = expect(&[srat], Signature::SRAT, 192, Noted, "processor 0 again");
    assert_eq!(machine.cpus_of(NodeId(1)).to_string(), "0,2-3");
}

#[test]
fn a_processor_of_the_madt_may_be_unknown_to_the_srat() {
    let madt = (0..6).fold(Builder::madt(), |madt, id| madt.madt_apic(id, true)).build();
    let machine = expect(
        &[two_sockets().build(), madt],
        Signature::MADT,
        0,
        Noted,
        "processor 4 (CPU 4) (and 1 more)",
    );
    assert_eq!((machine.cpus.len(), machine.cpus[5].node), (6, None));
}

#[test]
fn a_slit_must_hold_as_many_distances_as_it_counts() {
    let slit = |localities, distances: &[u8]| {
        [two_sockets().build(), Builder::slit(localities, distances).build()]
    };
    expect(
        &slit(3, &[10, 20, 20, 10]),
        Signature::SLIT,
        36,
        TableIgnored,
        "3 localities, expected as many as 4",
    );
    for lie in [1 << 16, 1 << 32, u64::MAX, 0xffff_ffff] {
        expect(&slit(lie, &[10, 20, 20, 10]), Signature::SLIT, 36, TableIgnored, &lie.to_string());
    }
    expect(
        &slit(2, &[10, 20, 20, 10, 7]),
        Signature::SLIT,
        44,
        Noted,
        "read 5 distances, expected 4",
    );
    let short = Builder::other(b"SLIT").u32(0).build();
    expect(
        &[two_sockets().build(), short],
        Signature::SLIT,
        4,
        TableIgnored,
        "a length of 40 bytes",
    );
}

#[test]
fn a_slit_with_senseless_distances_is_not_used() {
    let check = |distances: &[u8], offset, text| {
        let tables = [two_sockets().build(), Builder::slit(2, distances).build()];
        let machine = expect(&tables, Signature::SLIT, offset, TableIgnored, text);
        assert_eq!(machine.distances.get(NodeId(0), NodeId(1)), 20, "as if there were none");
    };
    check(&[10, 30, 30, 11], 47, "read distance 11 from PXM 1 to 1, expected 10");
    check(&[0, 30, 30, 10], 44, "read distance 0 from PXM 0 to 0, expected 10");
    check(&[10, 10, 30, 10], 45, "read distance 10 from PXM 0 to 1, expected more than 10");
    check(&[10, 30, 9, 10], 46, "read distance 9 from PXM 1 to 0, expected more than 10");
}

#[test]
fn all_senseless_distances_are_findings_within_a_bound() {
    let findings = |n: u64, distances: &[u8]| {
        let srat = (0..n as u32)
            .fold(two_sockets(), |srat, pxm| srat.x2apic(pxm, 8 + pxm, ENABLED))
            .build();
        let (_, findings) = machine(&[srat, Builder::slit(n, distances).build()]);
        assert!(findings.iter().all(|finding| finding.effect == TableIgnored), "{findings:#?}");
        findings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        findings(2, &[11, 30, 9, 10]),
        [
            "SLIT at 0x2c: read distance 11 from PXM 0 to 0, expected 10; the table is not used",
            "SLIT at 0x2e: read distance 9 from PXM 1 to 0, expected more than 10; \
             the table is not used",
        ]
    );
    // 25 senseless distances: 16 have a finding each, and one finding counts the others.
    let all = findings(5, &[0; 25]);
    assert_eq!(all.len(), 17);
    // The 17th is from PXM 3 to 1, at 44 + 16.
    let last = "SLIT at 0x3c: read 9 more such distances, expected none; the table is not used";
    assert_eq!(all[16], last);
}

#[test]
fn asymmetric_and_unreachable_distances_are_noted() {
    let slit = |distances: &[u8]| [two_sockets().build(), Builder::slit(2, distances).build()];
    let text = "read PXM 0 to 1 is 30, back 17, expected the same distance both ways";
    let machine = expect(&slit(&[10, 30, 17, 10]), Signature::SLIT, 45, Noted, text);
    assert_eq!(machine.distances.get(NodeId(1), NodeId(0)), 17);
    let machine = expect(
        &slit(&[10, 255, 255, 10]),
        Signature::SLIT,
        45,
        Noted,
        "distance 255 (unreachable)",
    );
    assert_eq!(machine.distances.get(NodeId(1), NodeId(0)), 255);
}

#[test]
fn a_slit_may_know_more_or_fewer_domains_than_the_srat() {
    let slit = |localities, distances: &[u8]| {
        [two_sockets().build(), Builder::slit(localities, distances).build()]
    };
    expect(
        &slit(1, &[10]),
        Signature::SLIT,
        36,
        Noted,
        "read 1 localities, but the SRAT has PXM 1",
    );
    let three = slit(3, &[10, 20, 30, 20, 10, 30, 30, 30, 10]);
    expect(&three, Signature::SLIT, 36, Noted, "read 3 localities, but the SRAT has no PXM 2");
}

#[test]
fn an_hmat_must_have_room_for_its_counts() {
    let hmat =
        Builder::hmat(2).locality([0, 0], 1000, &[0, 1], &[0, 1], &[80, 130, 130, 80]).build();
    let with = |offset, bytes: &[u8]| [two_sockets().build(), patched(hmat.clone(), offset, bytes)];
    let text = "a structure of type 1 of 56 bytes, expected room for all that it counts";
    for count in [3, 1 << 16, u32::MAX] {
        expect(&with(52, &count.to_le_bytes()), Signature::HMAT, 40, TableIgnored, text);
        expect(&with(56, &count.to_le_bytes()), Signature::HMAT, 40, TableIgnored, text);
    }
    expect(&with(52, &[255; 8]), Signature::HMAT, 40, TableIgnored, text);
    expect(
        &with(44, &[0; 4]),
        Signature::HMAT,
        40,
        TableIgnored,
        "a length of 0 bytes, expected at least 8",
    );
    expect(
        &with(44, &[57, 0, 0, 0]),
        Signature::HMAT,
        40,
        TableIgnored,
        "at most the 56 bytes left",
    );
    expect(&with(8, &[3]), Signature::HMAT, 8, TableIgnored, "read revision 3, expected 1 or 2");
    expect(&with(49, &[6]), Signature::HMAT, 49, EntryIgnored, "read data type 6, expected 0 to 5");
    expect(&with(40, &[3]), Signature::HMAT, 40, EntryIgnored, "a structure of type 3");
    let cache = Builder::hmat(2).cache(0, GIB, 1, 64).build();
    let cache = [two_sockets().build(), patched(cache, 70, &[2])];
    expect(&cache, Signature::HMAT, 40, TableIgnored, "a structure of type 2 of 34 bytes");
    let long = Builder::hmat(2).u32(0).u32(48).raw(&[0; 40]).build();
    expect(
        &[two_sockets().build(), long],
        Signature::HMAT,
        40,
        TableIgnored,
        "a structure of type 0 of 48 bytes",
    );
}

#[test]
fn an_hmat_that_attaches_unknown_domains_is_not_used() {
    let with = |hmat: Builder| {
        let hmat = hmat.locality([0, 0], 1000, &[0], &[0], &[80]).build();
        [two_sockets().build(), hmat]
    };
    let machine = expect(
        &with(Builder::hmat(2).attachment(0, 0, 5)),
        Signature::HMAT,
        56,
        TableIgnored,
        "read memory in PXM 5, expected one with memory in the SRAT",
    );
    assert_eq!(machine.performance, []);
    let tables = with(Builder::hmat(2).attachment(1, 5, 0));
    expect(&tables, Signature::HMAT, 52, TableIgnored, "read an initiator in PXM 5");
}

#[test]
fn values_of_the_hmat_that_overflow_or_name_no_node_are_left_out() {
    let with = |base, pxm| {
        let hmat = Builder::hmat(2).locality([0, 3], base, &[0], &[0, pxm], &[1, 5]).build();
        [two_sockets().build(), hmat]
    };
    let machine = expect(
        &with(1 << 31, 1),
        Signature::HMAT,
        40,
        EntryIgnored,
        "an entry of 0x5 from PXM 0 to 1",
    );
    assert_eq!(machine.performance.len(), 1);
    let (machine, _) = self::machine(&with(u64::MAX, 1));
    assert_eq!(machine.performance.len(), 0);
    expect(
        &with(1, 9),
        Signature::HMAT,
        40,
        EntryIgnored,
        "read PXM 9, expected a PXM of the SRAT",
    );
}

#[test]
fn slit_and_hmat_mean_nothing_without_an_srat() {
    let slit = Builder::slit(2, &[10, 30, 30, 10]).build();
    let hmat = Builder::hmat(2).locality([0, 0], 1000, &[0], &[0], &[80]).build();
    let (machine, findings) = machine(&[slit, hmat]);
    assert_eq!((machine.nodes.len(), machine.performance.len()), (1, 0));
    let tables: Vec<_> = findings.iter().map(|finding| (finding.table, finding.effect)).collect();
    let missing = (Signature::SRAT, Effect::TableMissing);
    assert_eq!(tables, [missing, (Signature::SLIT, TableIgnored), (Signature::HMAT, TableIgnored)]);
}

#[test]
fn an_hmat_with_a_base_unit_of_0_tells_nothing() {
    let hmat = Builder::hmat(2)
        .locality([0, 0], 0, &[0], &[0, 1], &[80, 130])
        .locality([0, 3], 100, &[0], &[0], &[70])
        .build();
    let machine = expect(
        &[two_sockets().build(), hmat],
        Signature::HMAT,
        64,
        EntryIgnored,
        "read a base unit of 0, expected at least 1",
    );
    let [local] = machine.performance[..] else { panic!("{:?}", machine.performance) };
    assert_eq!((local.read_latency_ns, local.read_bandwidth_mb_s), (None, Some(7000)));
}

#[test]
fn an_hmat_has_three_levels_of_caches() {
    for (revision, level, expected) in [(2, 4, "0 to 3"), (1, 5, "0 to 4")] {
        let hmat = Builder::hmat(revision).locality([level, 0], 1000, &[0], &[0], &[80]).build();
        let text = format!("read memory hierarchy {level}, expected {expected}");
        expect(&[two_sockets().build(), hmat], Signature::HMAT, 48, EntryIgnored, &text);
    }
    let last_level = Builder::hmat(1).locality([4, 0], 1000, &[0], &[0], &[80]).build();
    assert_eq!(machine(&[two_sockets().build(), last_level]).1, []);
}

#[test]
fn reserved_fields_are_noted_and_the_table_is_used() {
    let srat = two_sockets()
        .x2apic(1, 4, ENABLED)
        .gicc(1, 5, ENABLED)
        .its(1, 6)
        .initiator(1, [0, 1, 0], ENABLED)
        .port(1, b"ACPI0016", 1, ENABLED)
        .rintc(1, 7, ENABLED)
        .build();
    assert_eq!(machine(std::slice::from_ref(&srat)).1, []);
    // Offsets of the entries, in the order above: four APICs, two of memory, and the six others.
    let [apic, memory, x2apic, gicc, its, initiator, port, rintc] =
        [48, 112, 192, 216, 234, 246, 278, 310];
    let check = |offset: usize, text: &str| {
        let table = patched(srat.clone(), offset, &[0x80]);
        expect(&[table], Signature::SRAT, offset, Noted, text);
    };
    for offset in [40, memory + 6, memory + 24, memory + 32, x2apic + 2, x2apic + 20, its + 6] {
        check(offset, "read 0x80, expected 0 in a reserved field; the table is still used");
    }
    for offset in [initiator + 2, initiator + 12, initiator + 20, initiator + 28, port + 20] {
        check(offset, "read 0x80, expected 0 in a reserved field");
    }
    check(rintc + 2, "read 0x80, expected 0 in a reserved field");
    check(36, "SRAT at 0x24: read 0x80, expected 0x1; the table is still used");
    let flags = [apic + 4, memory + 28, x2apic + 12, gicc + 10, initiator + 24, port + 24];
    for offset in flags.into_iter().chain([rintc + 12]) {
        let table = patched(srat.clone(), offset, &[0x41]);
        let text = "read flags of 0x41, of which 0x40 are reserved, expected no reserved flag";
        expect(&[table], Signature::SRAT, offset, Noted, text);
    }
}

#[test]
fn flags_with_a_meaning_are_no_findings() {
    let specific_purpose = 8;
    let srat = two_sockets().memory(1, 8 * GIB, GIB, ENABLED | specific_purpose);
    let transactions = 2;
    let srat = srat.initiator(1, [0, 1, 0], ENABLED | transactions).build();
    let online_capable = 2;
    let madt = Builder::madt().raw(&[0, 8, 0, 0]).u32(ENABLED | online_capable).build();
    // Minimum transfer size and non-sequential transfers.
    let hmat = Builder::hmat(2).locality([0x30, 0], 1000, &[0], &[0], &[80]).build();
    assert_eq!(machine(&[srat, madt, hmat]).1, []);
}

#[test]
fn reserved_fields_of_an_entry_that_does_not_count_may_hold_anything() {
    let srat = two_sockets().memory(0, 0, 0, 0xffff_fffe).x2apic(0, 9, 0xff00).build();
    assert_eq!(machine(&[srat]).1, []);
    let madt = Builder::madt().raw(&[0, 8, 0, 0]).u32(0xff00).madt_apic(1, true).build();
    let (_, findings) = machine(&[two_sockets().build(), madt]);
    assert_eq!(findings, []);
}

#[test]
fn reserved_fields_of_hmat_and_madt_are_noted() {
    let two = |table: Vec<u8>, offset: usize, bytes: &[u8]| {
        [two_sockets().build(), patched(table, offset, bytes)]
    };
    let hmat = Builder::hmat(2)
        .attachment(1, 0, 0)
        .locality([0, 0], 1000, &[0], &[0], &[80])
        .cache(0, GIB, 1, 64)
        .build();
    // Type 0 has 40 bytes, type 1 here 32 + 2 * 4 + 2.
    let (attachment, locality, cache) = (40, 80, 122);
    let places = [36, attachment + 2, attachment + 10, attachment + 20, attachment + 32];
    for offset in places.into_iter().chain([locality + 11, locality + 20, cache + 12]) {
        let tables = two(hmat.clone(), offset, &[7]);
        let machine = expect(&tables, Signature::HMAT, offset, Noted, "read 0x7, expected 0 in a");
        assert_eq!(machine.performance.len(), 1);
    }
    for (offset, flags) in [(attachment + 8, 3), (locality + 8, 0x40), (cache + 28, 2)] {
        let tables = two(hmat.clone(), offset, &[flags]);
        expect(&tables, Signature::HMAT, offset, Noted, "expected no reserved flag");
    }
    let madt = Builder::madt().madt_apic(0, true).madt_x2apic(1, true).build();
    expect(&two(madt.clone(), 40, &[2]), Signature::MADT, 40, Noted, "flags of 0x2");
    expect(&two(madt.clone(), 48, &[5]), Signature::MADT, 48, Noted, "of which 0x4 are reserved");
    expect(&two(madt, 54, &[5]), Signature::MADT, 54, Noted, "0 in a reserved field");
}

#[test]
fn many_reserved_fields_are_one_finding() {
    let mut srat = two_sockets().build();
    for memory in [112, 152] {
        srat = patched(srat, memory + 24, &[1]);
    }
    expect(&[srat], Signature::SRAT, 136, Noted, "read 0x1 (and 1 more), expected 0 in a reserved");
}

#[test]
fn the_first_table_of_a_name_that_can_be_used_counts() {
    let second = Builder::srat(3).memory(0, 0, GIB, ENABLED).build();
    let (_, findings) = machine(&[two_sockets().build(), second]);
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!(
        finding.to_string(),
        "SRAT at 0x0: read a second table of this name, expected one: the first that can be used \
         counts; the table is not used"
    );
}

#[test]
fn a_second_srat_takes_the_place_of_a_broken_one() {
    let madt = (0..4).fold(Builder::madt(), |madt, id| madt.madt_apic(id, true)).build();
    let broken = [
        ("a false length", patched(two_sockets().build(), 4, &[0xff, 0xff])),
        ("a torn entry", two_sockets().raw(&[1]).build()),
        ("memory on two nodes", two_sockets().memory(1, GIB, 4096, ENABLED).build()),
        ("no memory", Builder::srat(3).apic(0, 0, ENABLED).build()),
    ];
    for (fault, first) in broken {
        let (machine, findings) = machine(&[first, two_sockets().build(), madt.clone()]);
        assert_eq!(machine.cpus_of(NodeId(1)).to_string(), "2-3", "{fault}: {findings:#?}");
        assert_eq!(machine.memory_bytes(), 8 * GIB, "{fault}");
        let effects: Vec<_> = findings.iter().map(|f| (f.table, f.effect)).collect();
        assert_eq!(effects, [(Signature::SRAT, TableIgnored)], "{fault}: {findings:#?}");
    }
}

#[test]
fn no_finding_calls_a_rejected_table_used() {
    let mut srat = two_sockets().raw(&[200, 2]).raw(&[1]).build();
    srat[9] = srat[9].wrapping_add(1);
    let mut slit = Builder::slit(2, &[10, 20, 20, 10, 7]).build();
    slit[9] = slit[9].wrapping_add(1);
    let hmat = Builder::hmat(2).attachment(0, 0, 9).u32(7).u32(8).build();
    for tables in [vec![srat, slit], vec![two_sockets().build(), hmat]] {
        let (_, findings) = machine(&tables);
        assert!(findings.len() >= 2, "{findings:#?}");
        let ignored = |finding: &Finding| finding.effect == TableIgnored;
        assert!(findings.iter().all(ignored), "{findings:#?}");
    }
}

#[test]
fn a_madt_must_fit_too() {
    let madt = Builder::madt().raw(&[0, 6, 0, 0, 1, 0]).build();
    expect(
        &[two_sockets().build(), madt],
        Signature::MADT,
        44,
        TableIgnored,
        "an entry of type 0 of 6 bytes",
    );
}
