//! Machines by their ACPI tables: the result of `topology` for tables that are in order.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "common/acpi_builder.rs"]
mod acpi_builder;
mod common;

use acpi_builder::*;
use nearside_topology::{
    Access, CpuId, CpuSet, DeviceKind, NodeId, Pxm, Topology,
    acpi::{self, Effect, Finding, ProcessorId, Subject, Tables},
};
use std::path::Path;

/// The machine of some raw tables, with the findings.
fn machine(tables: &[Vec<u8>]) -> (Topology, Vec<Finding>) {
    acpi::topology(&Tables::from_bytes(acpidump(tables).as_bytes()))
}

/// The machine of tables without oddities.
fn sound_machine(tables: &[Vec<u8>]) -> Topology {
    let (machine, findings) = machine(tables);
    assert_eq!(findings, []);
    machine
}

/// Nodes as `(pxm, CPUs, GiB)`, by node number.
fn nodes(machine: &Topology) -> Vec<(u32, String, u64)> {
    assert!(machine.nodes.iter().enumerate().all(|(at, node)| node.id == NodeId(at as u32)));
    let node = |node: &nearside_topology::Node| {
        (node.pxm.unwrap().0, machine.cpus_of(node.id).to_string(), node.memory_bytes / GIB)
    };
    machine.nodes.iter().map(node).collect()
}

fn expect_nodes(machine: &Topology, expected: &[(u32, &str, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|&(pxm, cpus, gib)| (pxm, cpus.to_string(), gib)).collect();
    assert_eq!(nodes(machine), expected);
}

fn distances(machine: &Topology) -> Vec<u8> {
    machine.nodes.iter().flat_map(|node| machine.distances.row(node.id)).collect()
}

#[test]
fn two_sockets_are_two_nodes() {
    let machine =
        sound_machine(&[two_sockets().build(), Builder::slit(2, &[10, 21, 21, 10]).build()]);
    expect_nodes(&machine, &[(0, "0-1", 4), (1, "2-3", 4)]);
    assert_eq!(distances(&machine), [10, 21, 21, 10]);
    assert_eq!(machine.node(NodeId(1)).unwrap().ranges[0].start, 4 * GIB);
    assert_eq!(machine.cpu(CpuId(3)).unwrap().firmware_id, Some(3));
}

#[test]
fn without_a_slit_every_other_node_is_at_20() {
    assert_eq!(distances(&sound_machine(&[two_sockets().build()])), [10, 20, 20, 10]);
}

#[test]
fn nodes_are_numbered_as_domains_come_processors_before_memory() {
    // Linux meets PXM 7 (a CPU), then 3 (a CPU behind a memory entry), then 5 (memory alone), in
    // any order of their numbers.
    let srat = Builder::srat(3)
        .memory(5, 0, GIB, ENABLED)
        .x2apic(7, 300, ENABLED)
        .memory(7, GIB, GIB, ENABLED)
        .apic(3, 4, ENABLED)
        .memory(3, 2 * GIB, GIB, ENABLED);
    expect_nodes(&sound_machine(&[srat.build()]), &[(7, "0", 1), (3, "1", 1), (5, "", 1)]);
}

#[test]
fn the_slit_is_looked_up_by_domain_not_by_node() {
    let srat = Builder::srat(3)
        .apic(1, 0, ENABLED)
        .apic(0, 1, ENABLED)
        .memory(1, 0, GIB, ENABLED)
        .memory(0, GIB, GIB, ENABLED);
    let (machine, findings) = machine(&[srat.build(), Builder::slit(2, &[10, 17, 30, 10]).build()]);
    assert_eq!(distances(&machine), [10, 30, 17, 10]);
    assert_eq!(findings.len(), 1, "asymmetric: {findings:?}");
}

#[test]
fn revision_1_has_domains_of_8_bits_and_later_ones_of_32() {
    let srat = |revision| {
        Builder::srat(revision)
            .apic(0x0102_0304, 0, ENABLED)
            .memory(0x0102_0304, 0, GIB, ENABLED)
            .build()
    };
    let (first, findings) = machine(&[srat(1)]);
    expect_nodes(&first, &[(4, "0", 1)]);
    let reserved = "read 0x10203 (and 1 more), expected 0 in a reserved field";
    assert!(findings[0].to_string().contains(reserved), "{findings:?}");
    for revision in [2, 3] {
        let (machine, findings) = machine(&[srat(revision)]);
        expect_nodes(&machine, &[(0x0102_0304, "0", 1)]);
        assert!(findings.iter().all(|finding| finding.effect == Effect::Noted), "{findings:?}");
    }
}

#[test]
fn every_type_of_entry_is_understood() {
    let srat = Builder::srat(3)
        .apic(0, 0x11, ENABLED)
        .memory(0, 0, GIB, ENABLED)
        .x2apic(1, 0x1234, ENABLED)
        .gicc(2, 0x22, ENABLED)
        .its(9, 0x33)
        .initiator(3, [0, 0x3b, 2 << 3 | 1], ENABLED)
        .port(8, b"ACPI0016", 5, ENABLED)
        .rintc(4, 0x44, ENABLED)
        .build();
    let tables = Tables::from_bytes(&srat);
    let subjects: Vec<_> =
        tables.srat.iter().flat_map(|srat| &srat.entries).map(|e| (e.pxm.0, e.subject)).collect();
    assert!(matches!(subjects[0], (0, Subject::Processor(ProcessorId::Apic(0x11)))));
    assert!(matches!(subjects[1], (0, Subject::Memory(range)) if range.length_bytes == GIB));
    assert!(matches!(subjects[2], (1, Subject::Processor(ProcessorId::Apic(0x1234)))));
    assert!(matches!(subjects[3], (2, Subject::Processor(ProcessorId::Uid(0x22)))));
    assert!(matches!(subjects[4], (9, Subject::GicIts(0x33))));
    assert!(matches!(subjects[5], (3, Subject::GenericInitiator(pci))
            if pci.to_string() == "0000:3b:02.1"));
    assert!(
        matches!(subjects[6], (8, Subject::GenericPort(acpi)) if acpi.to_string() == "ACPI0016:5")
    );
    assert!(matches!(subjects[7], (4, Subject::Processor(ProcessorId::Uid(0x44)))));

    // The ITS and the port make no node; the initiator makes one without CPUs and memory, with a
    // device on it.
    let (machine, findings) = acpi::topology(&tables);
    assert_eq!(findings, []);
    expect_nodes(&machine, &[(0, "0", 1), (1, "1", 0), (2, "2", 0), (3, "", 0), (4, "3", 0)]);
    let [gpu] = &machine.devices[..] else { panic!("{:?}", machine.devices) };
    assert_eq!(
        (gpu.kind, gpu.name.as_str(), gpu.node),
        (DeviceKind::Pci, "0000:3b:02.1", Some(NodeId(3)))
    );
}

/// The tables that firmware would have for a machine whose domains are its nodes.
fn tables_of(machine: &Topology) -> [Vec<u8>; 2] {
    let cpus = machine.cpus.iter().filter(|cpu| cpu.online);
    let srat = cpus
        .fold(Builder::srat(3), |srat, cpu| srat.x2apic(cpu.node.unwrap().0, cpu.id.0, ENABLED));
    let mut start = 0;
    let srat = machine.nodes.iter().fold(srat, |srat, node| {
        let (pxm, bytes) = (node.id.0, node.memory_bytes);
        if bytes == 0 && machine.cpus_of(node.id).is_empty() {
            return srat.initiator(pxm, [0, pxm as u8, 0], ENABLED);
        }
        start += bytes;
        if bytes == 0 { srat } else { srat.memory(pxm, start - bytes, bytes, ENABLED) }
    });
    let count = machine.nodes.iter().map(|node| node.id.0 + 1).max().unwrap();
    let known = machine.node_set();
    let distance = |from: u32, to: u32| match (NodeId(from), NodeId(to)) {
        (from, to) if known.contains(from) && known.contains(to) => machine.distances.get(from, to),
        (from, to) if from == to => 10,
        _ => 20,
    };
    let table: Vec<u8> =
        (0..count).flat_map(|from| (0..count).map(move |to| distance(from, to))).collect();
    [srat.build(), Builder::slit(count.into(), &table).build()]
}

#[test]
fn odd_machines_are_read_from_their_tables() {
    // Linux takes no SLIT with 10 between two nodes, as the fixture has it.
    for name in common::ODD.into_iter().filter(|name| *name != "tiers") {
        let root = common::unpacked(name).unwrap();
        let (odd, _) = nearside_topology::sysfs::read(root.path()).unwrap();
        let (read, findings) = machine(&tables_of(&odd));
        // A SLIT has rows for the numbers between sparse ones, too.
        let noted = |it: &Finding| it.effect == Effect::Noted && it.read.contains(" localities, ");
        assert!(findings.iter().all(noted), "{name}: {findings:?}");
        assert_eq!(read.nodes.len(), odd.nodes.len(), "{name}");
        for node in &read.nodes {
            let pxm = NodeId(node.pxm.unwrap().0);
            let firmware_ids = read.cpus_of(node.id);
            let firmware_ids = firmware_ids.iter().map(|cpu| read.cpu(cpu).unwrap().firmware_id);
            let cpus: CpuSet = firmware_ids.map(|id| CpuId(id.unwrap())).collect();
            assert_eq!(cpus, odd.cpus_of(pxm), "{name}, domain {pxm}");
            let bytes = odd.node(pxm).unwrap().memory_bytes;
            assert_eq!(node.memory_bytes, bytes, "{name}, domain {pxm}");
            for other in &read.nodes {
                let to = NodeId(other.pxm.unwrap().0);
                let distance = read.distances.get(node.id, other.id);
                assert_eq!(distance, odd.distances.get(pxm, to), "{name}, {pxm} to {to}");
            }
        }
    }
}

#[test]
fn entries_that_are_not_enabled_do_not_count() {
    let srat = two_sockets()
        .apic(2, 4, 0)
        .x2apic(3, 5, 0)
        .gicc(4, 6, 0)
        .initiator(5, [0, 1, 0], 0)
        .rintc(6, 7, 0)
        .memory(7, 100 * GIB, GIB, HOT_PLUGGABLE);
    let machine = sound_machine(&[srat.build()]);
    expect_nodes(&machine, &[(0, "0-1", 4), (1, "2-3", 4)]);
    assert_eq!(machine.devices, []);
}

#[test]
fn memory_that_may_be_absent_is_listed_but_not_counted() {
    let srat = two_sockets().memory(1, 8 * GIB, 64 * GIB, ENABLED | HOT_PLUGGABLE).memory(
        2,
        72 * GIB,
        128 * GIB,
        ENABLED | NON_VOLATILE,
    );
    let (machine, findings) = machine(&[srat.build()]);
    expect_nodes(&machine, &[(0, "0-1", 4), (1, "2-3", 4), (2, "", 0)]);
    let ranges = |node| &machine.node(NodeId(node)).unwrap().ranges;
    assert!(ranges(1)[1].hot_pluggable && !ranges(1)[1].non_volatile);
    assert!(ranges(2)[0].non_volatile && !ranges(2)[0].hot_pluggable);
    assert_eq!(findings.len(), 1, "{findings:?}");
}

#[test]
fn the_madt_gives_cpus_their_numbers() {
    // SMT siblings come last in the MADT, as firmware for x86 has it; 7 is disabled, 9 is listed
    // twice.
    let srat = Builder::srat(3)
        .apic(0, 0, ENABLED)
        .apic(0, 1, ENABLED)
        .apic(1, 2, ENABLED)
        .apic(1, 3, ENABLED)
        .x2apic(1, 9, ENABLED)
        .memory(0, 0, GIB, ENABLED)
        .memory(1, GIB, GIB, ENABLED);
    let madt = Builder::madt()
        .madt_apic(0, true)
        .madt_apic(2, true)
        .madt_apic(7, false)
        .madt_apic(0xff, true)
        .raw(&[1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0])
        .madt_apic(1, true)
        .madt_apic(3, true)
        .madt_x2apic(9, true)
        .madt_apic(9, true);
    let machine = sound_machine(&[srat.build(), madt.build()]);
    expect_nodes(&machine, &[(0, "0,2", 1), (1, "1,3-4", 1)]);
}

#[test]
fn arm_and_risc_v_join_srat_and_madt_by_uid() {
    let memory =
        |srat: Builder| srat.memory(0, 0, GIB, ENABLED).memory(1, GIB, GIB, ENABLED).build();
    let arm = memory(Builder::srat(3).gicc(0, 8, ENABLED).gicc(1, 9, ENABLED));
    let madt = Builder::madt().madt_gicc(9, true).madt_gicc(8, true).build();
    expect_nodes(&sound_machine(&[arm, madt]), &[(0, "1", 1), (1, "0", 1)]);
    let risc_v = memory(Builder::srat(3).rintc(0, 8, ENABLED).rintc(1, 9, ENABLED));
    let madt = Builder::madt().madt_rintc(9, true).madt_rintc(8, true).build();
    expect_nodes(&sound_machine(&[risc_v, madt]), &[(0, "1", 1), (1, "0", 1)]);
}

#[test]
fn loongarch_joins_srat_and_madt_by_the_cores_id() {
    let srat = two_sockets().build();
    let madt = (0..4).fold(Builder::madt(), |madt, core| madt.madt_core_pic(core, true)).build();
    expect_nodes(&sound_machine(&[srat, madt]), &[(0, "0-1", 4), (1, "2-3", 4)]);
}

#[test]
fn a_madt_whose_cpus_are_of_unknown_types_leaves_those_of_the_srat() {
    // Itanium's local SAPIC, and a type of a later specification.
    for kind in [7, 28] {
        let madt = Builder::madt().raw(&[kind, 12, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]).build();
        let (machine, findings) = machine(&[two_sockets().build(), madt]);
        expect_nodes(&machine, &[(0, "0-1", 4), (1, "2-3", 4)]);
        let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
        let unknown = format!(
            "APIC at 0x2c: read an entry of type {kind}, expected a type of which it is known \
             whether it describes CPUs; this part is ignored, the table is still used"
        );
        let none = "APIC at 0x0: read no enabled processor of a known type, expected some; those \
                    of the SRAT are taken; the table is still used";
        assert_eq!(findings, [unknown.as_str(), none]);
    }
}

#[test]
fn a_processor_that_is_listed_again_is_noted_and_one_without_a_domain_is_offline() {
    let madt =
        (0..4).chain([77, 77, 77]).fold(Builder::madt(), |madt, id| madt.madt_x2apic(id, true));
    let (machine, findings) = machine(&[two_sockets().build(), madt.build()]);
    expect_nodes(&machine, &[(0, "0-1", 4), (1, "2-3", 4)]);
    let stray = machine.cpu(CpuId(4)).unwrap();
    assert_eq!((stray.node, stray.online, stray.firmware_id), (None, false, Some(77)));
    let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        findings,
        [
            "APIC at 0x7c: read processor 77 again (and 1 more), expected each processor once; \
             this part is ignored, the table is still used",
            "APIC at 0x0: read processor 77 (CPU 4), expected a proximity domain in the SRAT; \
             without one it counts as offline; the table is still used",
        ]
    );
}

#[test]
fn without_an_srat_there_is_one_node() {
    let (machine, findings) =
        machine(&[Builder::madt().madt_apic(0, true).madt_apic(1, true).build()]);
    assert_eq!(machine.cpus_of(NodeId(0)), CpuSet::from([CpuId(0), CpuId(1)]));
    assert_eq!(
        (machine.nodes.len(), machine.nodes[0].pxm, distances(&machine)),
        (1, None, vec![10])
    );
    assert_eq!(machine.nodes[0].known_memory_bytes(), None);
    let expected = "SRAT at 0x0: read no such table, expected one; everything counts as one node";
    assert_eq!(findings.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

#[test]
fn sixty_four_nodes_with_eight_ranges_each() {
    let mut srat = Builder::srat(3);
    for pxm in 0..64 {
        for cpu in 0..4 {
            srat = srat.x2apic(pxm, pxm * 4 + cpu, ENABLED);
        }
        for range in 0..8 {
            srat = srat.memory(pxm, (u64::from(pxm) * 8 + range) * GIB, GIB, ENABLED);
        }
    }
    let distance = |i: usize, j: usize| if i == j { 10 } else { 12 + (i ^ j).count_ones() as u8 };
    let rows: Vec<u8> = (0..64 * 64).map(|at| distance(at / 64, at % 64)).collect();
    let machine = sound_machine(&[srat.build(), Builder::slit(64, &rows).build()]);
    assert_eq!(
        (machine.nodes.len(), machine.cpus.len(), machine.memory_bytes()),
        (64, 256, 512 * GIB)
    );
    assert_eq!(distances(&machine), rows);
}

#[test]
fn the_hmat_gives_latency_and_bandwidth() {
    let srat = two_sockets().initiator(2, [0, 1, 0], ENABLED).memory(3, 8 * GIB, GIB, ENABLED);
    let hmat = Builder::hmat(2)
        .attachment(1, 0, 0)
        .attachment(1, 1, 1)
        .attachment(0, 99, 3)
        // Access latency, 100 ps a unit, three initiators and two targets.
        .locality([0, 0], 100, &[0, 1, 2], &[0, 3], &[801, 1800, 1200, 0xffff, 0, 900])
        // Read and write bandwidth apart; the write latency of one pair overrides its access
        // latency.
        .locality([0, 4], 1000, &[0], &[0], &[200])
        .locality([0, 5], 1000, &[0], &[0], &[150])
        .locality([0, 2], 1000, &[0], &[0], &[95])
        // Hits in the cache of memory show nothing about the memory.
        .locality([1, 0], 1000, &[0], &[0], &[1])
        .cache(3, GIB, 1, 64);
    let tables = Tables::from_bytes(acpidump(&[srat.build(), hmat.build()]).as_bytes());
    let cache = tables.hmat.as_ref().unwrap().caches[0];
    assert_eq!(
        (cache.memory, cache.size_bytes, cache.level, cache.line_bytes),
        (Pxm(3), GIB, 1, 64)
    );
    let (machine, findings) = acpi::topology(&tables);
    assert_eq!(findings.len(), 1, "the unreachable pair: {findings:?}");

    let local = machine.performance(NodeId(0), NodeId(0)).unwrap();
    assert_eq!((local.read_latency_ns, local.write_latency_ns), (Some(81), Some(95)));
    assert_eq!(
        (local.read_bandwidth_mb_s, local.write_bandwidth_mb_s),
        (Some(200_000), Some(150_000))
    );
    assert_eq!(local.access, Access::Access1);
    let tier = machine.performance(NodeId(0), NodeId(3)).unwrap();
    assert_eq!((tier.read_latency_ns, tier.read_bandwidth_mb_s), (Some(180), None));
    assert_eq!(machine.performance(NodeId(1), NodeId(3)), None, "unreachable");
    assert_eq!(machine.performance(NodeId(2), NodeId(0)), None, "not provided");
    assert_eq!(
        machine.performance(NodeId(2), NodeId(3)).unwrap().access,
        Access::Access0,
        "a device's"
    );
}

#[test]
fn revision_1_of_the_hmat_counts_in_tenths() {
    let hmat = Builder::hmat(1)
        .attachment(3, 0, 0)
        .attachment(1, 0, 77)
        .locality([0, 0], 1, &[0], &[0, 1], &[805, 9])
        .locality([0, 3], 10, &[0], &[0], &[70_00])
        .build();
    let machine = sound_machine(&[two_sockets().build(), hmat]);
    let [local] = machine.performance[..] else { panic!("{:?}", machine.performance) };
    assert_eq!((local.read_latency_ns, local.write_bandwidth_mb_s), (Some(81), Some(7000)));
}

#[test]
fn a_qemu_machine_with_room_for_more_memory() {
    // -smp 4 -m 128M,slots=2,maxmem=1G, two nodes of 64 MiB and two CPUs, distance 21.
    let (machine, findings) = fixture("qemu-two-nodes-hotplug.acpidump");
    assert_eq!(machine.cpus_of(NodeId(0)).to_string(), "0-1");
    assert_eq!(machine.cpus_of(NodeId(1)).to_string(), "2-3");
    assert_eq!(
        machine.nodes.iter().map(|node| node.memory_bytes).collect::<Vec<_>>(),
        [(64 << 20) - 0x6_0000, 64 << 20]
    );
    assert_eq!(distances(&machine), [10, 21, 21, 10]);
    assert!(machine.nodes[1].ranges.last().unwrap().hot_pluggable);
    assert!(findings.iter().all(|finding| finding.effect == Effect::Noted), "{findings:?}");
}

#[test]
fn a_qemu_machine_with_a_slow_tier() {
    // Two nodes with CPUs and one without, whose memory takes 30 ns and more; see `-numa hmat-lb`.
    let (machine, findings) = fixture("qemu-three-nodes-hmat.acpidump");
    assert_eq!(findings, []);
    assert_eq!(machine.cpus_of(NodeId(2)), CpuSet::new());
    let latency =
        |from, to| machine.performance(NodeId(from), NodeId(to)).unwrap().read_latency_ns.unwrap();
    assert_eq!([latency(0, 0), latency(0, 1), latency(0, 2)], [10, 15, 35]);
    assert_eq!([latency(1, 0), latency(1, 1), latency(1, 2)], [15, 10, 35]);
    // QEMU takes MiB/s and writes the same number as MB/s.
    assert_eq!(machine.performance(NodeId(0), NodeId(2)).unwrap().read_bandwidth_mb_s, Some(3500));
}

fn fixture(name: &str) -> (Topology, Vec<Finding>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/acpi").join(name);
    acpi::topology(&acpi::read(&path).unwrap())
}
