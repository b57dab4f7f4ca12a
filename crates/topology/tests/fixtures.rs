//! Reads every machine of `fixtures/` and checks the result against the machine's description.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

mod common;

use nearside_topology::{
    Access, CpuId, CpuSet, DeviceKind, MemoryTiers, NodeId, NodeSet, ReservedHugePages, Topology,
    fake::{FakeError, FakeSpec, fake},
    sysfs::{self, Note},
};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn read(name: &str) -> (Topology, Vec<Note>) {
    let root = common::unpacked(name).unwrap();
    sysfs::read(root.path()).unwrap()
}

fn machine(name: &str) -> Topology {
    read(name).0
}

/// A list, or the number of ids where the list is too long for a table.
fn set<T: nearside_topology::Id>(ids: impl Iterator<Item = T>) -> String {
    let ids: nearside_topology::IdSet<T> = ids.collect();
    let list = ids.to_string();
    if list.len() < 20 { list } else { format!("{} ids", ids.len()) }
}

/// One line of facts, in the order of the table below.
fn facts(name: &str, machine: &Topology, notes: &[Note]) -> String {
    let online = || machine.cpus.iter().filter(|cpu| cpu.online);
    let nodes = machine.node_set();
    format!(
        "{name} | {nodes} | {} | {} | {} | {} | {} | {} | {} | {}",
        online().count(),
        set(machine.cpus.iter().filter(|cpu| !cpu.online).map(|cpu| cpu.id)),
        online().map(|cpu| cpu.core).collect::<BTreeSet<_>>().len(),
        online().filter_map(|cpu| cpu.last_level_cache).collect::<BTreeSet<_>>().len(),
        machine.memory_bytes() >> 30,
        set(nodes.iter().filter(|&node| machine.cpus_of(node).is_empty())),
        set(nodes.difference(&machine.memory_nodes()).iter()),
        notes.len(),
    )
}

/// Worked out by hand from the descriptions in `examples/fixtures/machines.rs`.
const FACTS: &str = "
name                | nodes       | CPUs | offline | cores | LLCs | GiB  | no CPUs | empty  | notes
laptop              | 0           | 8    |         | 4     | 1    | 16   |         |        | 0
hybrid              | 0           | 24   |         | 16    | 1    | 32   |         |        | 0
two-sockets         | 0-1         | 32   |         | 16    | 2    | 128  |         |        | 0
guest               | 0-1         | 8    |         | 8     | 0    | 8    |         |        | 1
huge-pages          | 0-1         | 32   |         | 16    | 2    | 128  |         |        | 0
nps1                | 0-1         | 256  |         | 128   | 16   | 512  |         |        | 0
nps4                | 0-7         | 256  |         | 128   | 16   | 512  |         |        | 0
snc2                | 0-3         | 32   |         | 32    | 2    | 128  |         |        | 0
cxl                 | 0-2         | 32   |         | 16    | 2    | 256  | 2       |        | 0
tiers               | 0-3         | 32   |         | 16    | 2    | 224  | 2-3     | 3      | 0
xeon-max            | 0-3         | 32   |         | 16    | 2    | 640  | 2-3     |        | 0
many-core           | 0-1         | 256  |         | 64    | 1    | 112  | 1       |        | 0
opteron-8           | 0-7         | 32   |         | 32    | 8    | 128  |         |        | 0
chassis-4           | 0-3         | 32   |         | 16    | 4    | 128  |         |        | 0
blades-24           | 0-23        | 480  |         | 240   | 24   | 3072 |         |        | 0
nodes-64            | 0-63        | 256  |         | 256   | 64   | 512  |         |        | 0
offline-cpus        | 0-1         | 29   | 3,19-20 | 15    | 2    | 128  |         |        | 0
offline-node        | 0           | 8    | 8-15    | 8     | 1    | 64   |         |        | 0
memoryless          | 0-1         | 16   |         | 16    | 2    | 64   |         | 1      | 0
power9              | 0,8,252-255 | 128  |         | 32    | 2    | 576  | 252-255 |        | 0
smt8                | 0-3         | 128  |         | 16    | 4    | 256  |         |        | 0
interleaved         | 0-1         | 16   |         | 16    | 2    | 64   |         |        | 0
one-way             | 0-3         | 8    |         | 8     | 4    | 32   |         |        | 0
emulated            | 0-3         | 4    |         | 4     | 1    | 16   | 3       |        | 1
arm-64k             | 0-1         | 64   |         | 64    | 2    | 256  |         |        | 0
old-kernel          | 0           | 4    |         | 2     | 1    | 8    |         |        | 0
masks               | 0-1         | 32   |         | 16    | 2    | 128  |         |        | 0
copied-masks        | 0-1         | 32   |         | 16    | 2    | 128  |         |        | 1
no-online-list      | 0           | 4    |         | 4     | 1    | 8    | 0       |        | 3
links-differ        | 0-1         | 32   |         | 16    | 2    | 128  |         |        | 3
no-numa             | 0           | 4    |         | 4     | 1    | 8    |         |        | 0
threadripper-2970wx | 0-3         | 48   |         | 24    | 8    | 64   |         | 1,3    | 0
power8              | 0-1,16-17   | 20   | 140 ids | 20    | 4    | 64   |         | 1,17   | 0
grace-hopper        | 0-8         | 72   |         | 72    | 1    | 576  | 1-8     | 2-8    | 0
gb200               | 0-33        | 144  |         | 144   | 2    | 1696 | 2-33    | 28 ids | 0
garbage-distances   | 0-1         | 32   |         | 16    | 2    | 128  |         |        | 1
ragged-distances    | 0-2         | 32   |         | 16    | 2    | 129  | 2       |        | 3
missing-files       | 0-1         | 32   |         | 32    | 0    | 64   |         | 1      | 5
lies                | 0-1         | 32   |         | 16    | 2    | 64   | 1       | 0      | 10
";

#[test]
fn every_machine_is_read_as_it_is_described() {
    let words =
        |line: &str| line.split('|').map(|word| word.trim().to_string()).collect::<Vec<_>>();
    let expected: Vec<Vec<String>> = FACTS.trim().lines().skip(1).map(words).collect();
    for row in &expected {
        let (machine, notes) = read(&row[0]);
        assert_eq!(&words(&facts(&row[0], &machine, &notes)), row, "{}: {notes:#?}", row[0]);
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let machines =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "machine"));
    assert_eq!(machines.count(), expected.len(), "each machine has a row");
}

fn rows(machine: &Topology) -> Vec<Vec<u8>> {
    machine.nodes.iter().map(|node| machine.distances.row(node.id).collect()).collect()
}

#[test]
fn distances_are_those_of_the_files() {
    assert_eq!(rows(&machine("cxl")), [[10, 21, 14], [21, 10, 24], [14, 24, 10]]);
    assert_eq!(rows(&machine("opteron-8"))[0], [10, 16, 16, 22, 16, 22, 16, 22]);
    // Node 3 is two hops from 0, 4 and 6.
    assert_eq!(rows(&machine("opteron-8"))[3], [22, 16, 16, 10, 22, 16, 22, 16]);
    assert_eq!(
        rows(&machine("one-way")),
        [[10, 20, 30, 40], [40, 10, 20, 30], [30, 40, 10, 20], [20, 30, 40, 10]]
    );
    let power9 = machine("power9");
    assert_eq!(power9.distances.get(NodeId(8), NodeId(0)), 40);
    assert_eq!(power9.distances.get(NodeId(8), NodeId(253)), 80);
    let gb200 = machine("gb200");
    let far = [(0, 1), (0, 2), (1, 10), (18, 1), (2, 3), (2, 26), (26, 26)];
    let far = far.map(|(from, to)| gb200.distances.get(NodeId(from), NodeId(to)));
    assert_eq!(far, [40, 80, 120, 80, 255, 255, 10]);
    let blades = machine("blades-24");
    let from_first = [0, 1, 2, 7, 8, 23].map(|to| blades.distances.get(NodeId(0), NodeId(to)));
    assert_eq!(from_first, [10, 50, 65, 65, 79, 79]);
}

#[test]
fn a_senseless_row_of_distances_is_replaced() {
    let (machine, notes) = read("garbage-distances");
    assert_eq!(rows(&machine), [[10, 21], [20, 10]]);
    assert!(notes[0].file.ends_with("sys/devices/system/node/node1/distance"));
    let why = "read \"fish\", expected a distance of 0 to 255; \
               10 to itself and 20 to every other node are assumed";
    assert_eq!(notes[0].why, why);
    let (machine, notes) = read("ragged-distances");
    assert_eq!(rows(&machine), [[10, 20, 20], [20, 10, 20], [20, 20, 10]]);
    assert!(
        notes[0].why.starts_with("read \"10 21\", expected 3 distances, one for each online node;")
    );
    assert!(notes[2].why.starts_with("read \"300\", expected a distance of 0 to 255;"));
}

#[test]
fn cpus_know_their_node_core_cache_and_package() {
    let nps4 = machine("nps4");
    let cpu = nps4.cpu(CpuId(201)).unwrap();
    // Thread 2 of core 73, in the tenth group of eight cores, on node 4 in the second socket.
    assert_eq!(
        (cpu.node, cpu.core, cpu.last_level_cache, cpu.package),
        (Some(NodeId(4)), CpuId(73), Some(CpuId(72)), Some(1))
    );
    assert_eq!(nps4.cores_of(NodeId(4)), 16);
    assert_eq!(machine("snc2").cpu(CpuId(9)).unwrap().last_level_cache, Some(CpuId(0)));
    assert_eq!(machine("arm-64k").cpu(CpuId(9)).unwrap().package, None);
    assert_eq!(machine("smt8").cpu(CpuId(63)).unwrap().core, CpuId(56));
    assert_eq!(machine("hybrid").cpu(CpuId(15)).unwrap().core, CpuId(14));
    assert_eq!(machine("interleaved").cpus_of(NodeId(1)).to_string(), "1,3,5,7,9,11,13,15");
}

#[test]
fn offline_cpus_keep_their_node_where_the_kernel_still_tells_it() {
    let machine = machine("offline-cpus");
    let node_of = |cpu| machine.cpu(CpuId(cpu)).unwrap().node;
    assert_eq!((node_of(3), node_of(19), node_of(20)), (Some(NodeId(0)), Some(NodeId(0)), None));
    assert_eq!(machine.cpus_of(NodeId(0)).to_string(), "0-2,4-7,16-18,21-23");
    assert_eq!(machine.cores_of(NodeId(0)), 7);
}

#[test]
fn masks_are_as_good_as_lists() {
    let (lists, masks) = (machine("two-sockets"), machine("masks"));
    assert_eq!(masks.cpus, lists.cpus, "nodes, packages, cores and caches");
    assert_eq!(machine("copied-masks").cpus, lists.cpus, "and all CPUs are online");
}

#[test]
fn a_list_counts_more_than_a_mask_and_a_false_mask_is_noted() {
    let root = common::unpacked("masks").unwrap();
    let node_0 = "sys/devices/system/node/node0";
    common::unpack(&format!("{node_0}/cpulist: 0-6,16-23\n"), root.path()).unwrap();
    let (machine, notes) = sysfs::read(root.path()).unwrap();
    assert_eq!(machine.cpus_of(NodeId(0)).to_string(), "0-6,16-23");
    assert_eq!(notes.len(), 1, "CPU 7 is on no node: {notes:#?}");
    common::unpack(&format!("{node_0}/cpulist: none\n{node_0}/cpumap: 0xff\n"), root.path())
        .unwrap();
    let (_, notes) = sysfs::read(root.path()).unwrap();
    let why: Vec<_> = notes.iter().map(|note| note.why.as_str()).collect();
    assert!(why[0].starts_with("read \"none\", expected a list such as 0-3,8"), "{why:#?}");
    let false_mask = "read \"0xff\", expected a mask such as 0000ffff: \"0xff\" is no hexadecimal \
                      word of 32 bits";
    assert_eq!(why[1], false_mask);
}

#[test]
fn packages_are_numbered_by_their_cpus_only_where_no_cpu_has_a_number() {
    let root = common::unpacked("masks").unwrap();
    let package = "sys/devices/system/cpu/cpu8/topology/physical_package_id";
    common::unpack(&format!("{package}: 7\n"), root.path()).unwrap();
    let (machine, _) = sysfs::read(root.path()).unwrap();
    let package_of = |cpu| machine.cpu(CpuId(cpu)).unwrap().package;
    assert_eq!((package_of(0), package_of(8), package_of(9)), (None, Some(7), None));
}

#[test]
fn a_missing_list_of_online_cpus_means_unknown_and_other_files_are_asked() {
    let file = |path: &str| format!("sys/devices/system/cpu/{path}\n");
    let online = |name: &str, more: &str| {
        let root = common::unpacked(name).unwrap();
        let list = root.path().join("sys/devices/system/cpu/online");
        std::fs::remove_file(list).unwrap_or_default();
        common::unpack(more, root.path()).unwrap();
        let (machine, notes) = sysfs::read(root.path()).unwrap();
        let note = notes.iter().find(|note| note.file.ends_with("cpu/online")).unwrap();
        (set(machine.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id)), note.why.clone())
    };
    let from_others =
        "cannot be read as a list: the online CPUs are taken from other files".to_string();
    // No file has the state: all CPUs count as online.
    let nothing = "cannot be read as a list: CPUs 0-3 count as online, since no file tells";
    assert_eq!(online("no-online-list", ""), ("0-3".into(), nothing.into()));
    assert_eq!(online("no-numa", ""), ("0-3".into(), nothing.into()));
    // A CPU's own file has its state alone; the list of offline CPUs has the state of all.
    let one = "cannot be read as a list: CPUs 0,2-3 count as online, since no file tells";
    assert_eq!(online("no-numa", &file("cpu1/online: 0")), ("0,2-3".into(), one.into()));
    assert_eq!(online("no-numa", &file("offline: 2-3")), ("0-1".into(), from_others.clone()));
    // Nodes list every online CPU: 3 and 19 to 20 are not.
    assert_eq!(online("offline-cpus", ""), ("0-2,4-18,21-31".into(), from_others));
}

#[test]
fn contradictions_of_lists_and_links_are_noted_with_the_one_that_counts() {
    let (machine, notes) = read("links-differ");
    let told: Vec<_> = notes
        .iter()
        .map(|note| format!("{}: {}", note.file.file_name().unwrap().display(), note.why))
        .collect();
    assert_eq!(
        told,
        [
            "cpulist: lists CPUs 2-3, but the links of these CPUs are on node 1: the list counts",
            "cpulist: lacks CPU 6, but the links of these CPUs are here: the links count",
            "node: online, but on no node: CPUs 7,23; no domain is placed there",
        ]
    );
    let node_of = |cpu| machine.cpu(CpuId(cpu)).unwrap().node;
    assert_eq!(
        [2, 6, 7, 8].map(node_of),
        [Some(NodeId(0)), Some(NodeId(0)), None, Some(NodeId(1))]
    );
    // A link in the CPU's folder is as good as one in the node's.
    let root = common::unpacked("two-sockets").unwrap();
    common::unpack("sys/devices/system/cpu/cpu9/node0 -> ../../node/node0\n", root.path()).unwrap();
    let (_, notes) = sysfs::read(root.path()).unwrap();
    assert_eq!(notes.len(), 1, "{notes:#?}");
    assert!(notes[0].to_string().ends_with(
        "node1/cpulist: lists CPU 9, but the links of these CPUs are on node 0: the list counts"
    ));
}

#[test]
fn isolated_cpus_are_those_that_are_online() {
    let root = common::unpacked("offline-cpus").unwrap();
    common::unpack("sys/devices/system/cpu/isolated: 2-4,99\n", root.path()).unwrap();
    let (machine, notes) = sysfs::read(root.path()).unwrap();
    assert_eq!(
        (machine.isolated_cpus.to_string(), notes.len()),
        ("2,4".into(), 0),
        "CPU 3 is offline"
    );
    common::unpack("sys/devices/system/cpu/isolated: \n", root.path()).unwrap();
    assert!(sysfs::read(root.path()).unwrap().0.isolated_cpus.is_empty());
}

#[test]
fn emulated_nodes_of_the_kernel_share_their_cpus_but_each_cpu_has_one_node() {
    let (machine, notes) = read("emulated");
    let nodes: Vec<_> = machine.cpus.iter().map(|cpu| cpu.node.unwrap().0).collect();
    assert_eq!(nodes, [0, 1, 2, 0]);
    assert_eq!(notes[0].why, "nodes 0, 1, 2, 3 all list this CPU: it is taken to be on node 0");
}

#[test]
fn memory_zones_and_huge_pages_are_in_bytes() {
    const GIB: u64 = 1 << 30;
    let machine_of_4k = machine("two-sockets");
    let node = machine_of_4k.node(NodeId(0)).unwrap();
    assert_eq!((node.memory_bytes, node.state.unwrap().free_bytes), (64 * GIB, 40 * GIB));
    let zones: Vec<_> = node
        .zones
        .iter()
        .map(|zone| (zone.name.as_str(), zone.managed_bytes / GIB, zone.free_bytes / GIB))
        .collect();
    assert_eq!(zones, [("DMA32", 2, 2), ("Normal", 62, 38)]);
    // 38 GiB in blocks of 4 MiB.
    assert_eq!(node.zones[1].free_blocks, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9728]);
    // 62 GiB / 4096 = 16252928 pages; / 819 = 19844 pages.
    assert_eq!(node.zones[1].low_watermark_bytes, 19_844 * 4096);

    let power9 = machine("power9");
    assert_eq!(
        power9.node(NodeId(8)).unwrap().zones[0].managed_bytes,
        256 * GIB,
        "base pages of 64 KiB"
    );
    assert!(machine("memoryless").node(NodeId(1)).unwrap().zones.is_empty());

    let huge = machine("huge-pages");
    let pools: Vec<_> = huge.nodes[0]
        .huge_pages
        .iter()
        .map(|p| (p.page_bytes, p.total_pages, p.free_pages, p.surplus_pages))
        .collect();
    assert_eq!(pools, [(2 << 20, 1024, 0, 24), (GIB, 48, 8, 0)]);
}

#[test]
fn reserved_huge_pages_are_counted_for_the_whole_machine() {
    let root = common::unpacked("huge-pages").unwrap();
    common::unpack("sys/kernel/mm/hugepages/hugepages-1048576kB/resv_hugepages: 3\n", root.path())
        .unwrap();
    common::unpack("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages: 0\n", root.path())
        .unwrap();
    let (machine, notes) = sysfs::read(root.path()).unwrap();
    assert_eq!(
        machine.reserved_huge_pages,
        [ReservedHugePages { page_bytes: 1 << 30, pages: 3 }],
        "{notes:#?}"
    );
    assert_eq!(
        (machine.reserved_huge_bytes(1 << 30), machine.reserved_huge_bytes(2 << 20)),
        (3 << 30, 0)
    );
    let cut = fake(&machine, &FakeSpec::Uniform(2)).unwrap();
    assert_eq!(cut.reserved_huge_pages, machine.reserved_huge_pages);
}

#[test]
fn memory_is_read_again_and_cpus_and_devices_are_taken_from_the_known_machine() {
    for name in ["laptop", "no-numa", "tiers", "power9", "lies"] {
        let root = common::unpacked(name).unwrap();
        let (machine, _) = sysfs::read(root.path()).unwrap();
        assert_eq!(sysfs::read_again(&machine, root.path()).unwrap().0, machine, "{name}");
    }
    let root = common::unpacked("chassis-4").unwrap();
    let (before, _) = sysfs::read(root.path()).unwrap();
    let meminfo = "sys/devices/system/node/node2/meminfo:\n\tNode 2 MemTotal: 4096 kB\n\tNode 2 \
                   MemFree: 1024 kB\n";
    common::unpack(meminfo, root.path()).unwrap();
    let cores = "sys/devices/system/cpu/cpu{0-31}/topology/core_cpus_list: 0-31\n";
    common::unpack(cores, root.path()).unwrap();
    let (again, _) = sysfs::read_again(&before, root.path()).unwrap();
    assert_eq!(again.nodes[2].state.unwrap().free_bytes, 1 << 20);
    assert_eq!((&again.cpus, &again.devices), (&before.cpus, &before.devices));
    let (anew, _) = sysfs::read(root.path()).unwrap();
    assert_ne!(anew.cpus, before.cpus, "the files of cores differ");

    // Other nodes are another machine.
    std::fs::remove_dir_all(root.path().join("sys/devices/system/node/node3")).unwrap();
    let (without, _) = sysfs::read(root.path()).unwrap();
    assert_eq!(sysfs::read_again(&before, root.path()).unwrap().0, without);
}

#[test]
fn cpus_are_read_again_when_others_are_online() {
    let root = common::unpacked("chassis-4").unwrap();
    let (all, _) = sysfs::read(root.path()).unwrap();
    common::unpack("sys/devices/system/cpu/online: 0-30\n", root.path()).unwrap();
    let (fewer, _) = sysfs::read(root.path()).unwrap();
    assert_eq!(fewer.cpus.iter().filter(|cpu| !cpu.online).count(), 1);
    for again in [sysfs::read_again, sysfs::read_changes] {
        assert_eq!(again(&all, root.path()).unwrap().0.cpus, fewer.cpus);
    }
    common::unpack("sys/devices/system/cpu/online: 0-31\n", root.path()).unwrap();
    assert_eq!(sysfs::read_changes(&fewer, root.path()).unwrap().0.cpus, all.cpus);
    // Without the list there is nothing to compare with.
    std::fs::remove_file(root.path().join("sys/devices/system/cpu/online")).unwrap();
    assert_eq!(sysfs::read_changes(&fewer, root.path()).unwrap().0.cpus, fewer.cpus);
}

#[test]
fn zones_are_read_again_when_free_memory_has_changed() {
    let root = common::unpacked("chassis-4").unwrap();
    let read = |name: &str| std::fs::read_to_string(root.path().join(name)).unwrap();
    let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
    let (before, _) = sysfs::read(root.path()).unwrap();
    let zoneinfo = read("proc/zoneinfo").replace(" low ", " low 9");
    write("proc/zoneinfo", &zoneinfo);
    let again = |known| sysfs::read_changes(known, root.path()).unwrap().0;
    assert_ne!(
        sysfs::read_again(&before, root.path()).unwrap().0.nodes[2].zones,
        before.nodes[2].zones
    );
    assert_eq!(again(&before).nodes[2].zones, before.nodes[2].zones);

    let meminfo = read("sys/devices/system/node/node2/meminfo");
    let free_kib = before.nodes[2].state.unwrap().free_bytes >> 10;
    let with_free = |kib: u64| meminfo.replace(&format!("{free_kib} kB"), &format!("{kib} kB"));
    write("sys/devices/system/node/node2/meminfo", &with_free(free_kib - free_kib / 100));
    assert_eq!(again(&before).nodes[2].zones, before.nodes[2].zones);
    write("sys/devices/system/node/node2/meminfo", &with_free(free_kib - free_kib / 50));
    let (anew, _) = sysfs::read(root.path()).unwrap();
    assert_ne!(anew.nodes[2].zones, before.nodes[2].zones);
    assert_eq!(again(&before), anew);
}

#[test]
fn hmat_figures_belong_to_initiators_and_targets() {
    let tiers = machine("tiers");
    let of = |access, target| {
        tiers.performance.iter().filter(move |p| p.access == access && p.target == NodeId(target))
    };
    let accelerator: Vec<_> = of(Access::Access0, 2).collect();
    assert_eq!(
        (accelerator.len(), accelerator[0].initiator, accelerator[0].read_latency_ns),
        (1, NodeId(3), Some(60))
    );
    let cpus: Vec<_> = of(Access::Access1, 2)
        .map(|p| (p.initiator.0, p.write_latency_ns, p.write_bandwidth_mb_s))
        .collect();
    assert_eq!(cpus, [(0, Some(400), Some(45_000)), (1, Some(400), Some(45_000))]);
    assert_eq!(
        tiers.performance(NodeId(3), NodeId(2)).unwrap().read_bandwidth_mb_s,
        Some(3_000_000)
    );
    // 0 is the kernel's word for "firmware does not say".
    assert_eq!(machine("cxl").performance(NodeId(0), NodeId(2)).unwrap().write_latency_ns, None);
}

#[test]
fn devices_are_near_the_node_of_their_hardware() {
    let machine = machine("two-sockets");
    let of = |kind| {
        let devices = machine.devices.iter().filter(move |device| device.kind == kind);
        devices
            .map(|device| (device.name.as_str(), device.node.map(|node| node.0)))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(DeviceKind::Netdev),
        [("ens1f0", Some(0)), ("ens2f0", Some(1))],
        "and the bridge br0 is no hardware"
    );
    assert_eq!(of(DeviceKind::Block), [("nvme0n1", Some(0))]);
    assert_eq!(of(DeviceKind::Pci).len(), 5);
    let gpu = machine.devices.iter().find(|device| device.name == "0000:d8:00.0").unwrap();
    assert_eq!((gpu.node, gpu.class), (Some(NodeId(1)), Some(0x03_02_00)));
}

#[test]
fn a_kernel_without_numa_is_one_node() {
    let machine = machine("no-numa");
    assert_eq!(machine.cpus_of(NodeId(0)).to_string(), "0-3");
    assert_eq!(machine.nodes[0].state.unwrap().free_bytes, 6 << 30);
    assert_eq!(machine.nodes[0].huge_pages[0].total_pages, 8);
    assert_eq!(rows(&machine), [[10]]);
}

#[test]
fn notes_name_the_file_its_content_and_the_expectation() {
    let (machine, notes) = read("lies");
    let told = |file: &str, why: &str| {
        let found = notes.iter().any(|note| note.file.ends_with(file) && note.why.contains(why));
        assert!(found, "{file}: {why} is not in {notes:#?}");
    };
    told("node/node1/cpulist", "4000000000 is above 65535");
    told(
        "node/node0/meminfo",
        "MemTotal: read \"18446744073709551615 kB\", expected a number of kB",
    );
    told("node/node0/meminfo", "MemFree: read \"-1 kB\", expected a number of kB");
    told("hugepages-2048kB/free_hugepages", "read \"many\", expected a number");
    told("node/node2000", "Linux has no node above 1023: left out");
    told("cpu8/topology/core_cpus_list", "read \"9,25\", expected a list with CPU 8 itself in it");
    told("0000:3b:00.0/numa_node", "read 7, expected -1 or an online node: taken as near no node");
    assert_eq!(machine.cpu(CpuId(8)).unwrap().node, None);
}

#[test]
fn memory_tiers_and_demotion_are_read() {
    let root = common::unpacked("cxl").unwrap();
    let read = || sysfs::read(root.path()).unwrap();
    let (machine, notes) = read();
    assert_eq!((machine.memory_tiers, notes.len()), (MemoryTiers::default(), 0), "an old kernel");
    let file = |path: &str, text: &str| {
        let path = root.path().join("sys").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    const TIERS: &str = "devices/virtual/memory_tiering";
    for (number, nodes) in [(22, "2\n"), (4, "0-1\n"), (9, "\n")] {
        file(&format!("{TIERS}/memory_tier{number}/nodelist"), nodes);
    }
    file(&format!("{TIERS}/uevent"), "");
    file("kernel/mm/numa/demotion_enabled", "true\n");
    let (machine, notes) = read();
    assert_eq!((machine.memory_tiers.demotion_enabled, notes.len()), (Some(true), 0));
    let tiers = machine.memory_tiers.tiers.iter();
    let tiers: Vec<_> = tiers.map(|it| (it.number, it.nodes.to_string())).collect();
    assert_eq!(tiers, [(4, "0-1".into()), (22, "2".into())]);
    let lower: Vec<_> = machine.lower_memory_tiers().iter().map(ToString::to_string).collect();
    assert_eq!(lower, ["2"]);
    let again = sysfs::read_again(&machine, root.path()).unwrap().0;
    assert_eq!(again.memory_tiers, machine.memory_tiers);
    let cut = fake(&machine, &FakeSpec::Uniform(2)).unwrap();
    let tiers: Vec<_> = cut.memory_tiers.tiers.iter().map(|it| it.nodes.len()).collect();
    assert_eq!((cut.nodes.len(), tiers), (6, vec![4, 2]));
    file(&format!("{TIERS}/memory_tier4/nodelist"), "many\n");
    file("kernel/mm/numa/demotion_enabled", "perhaps\n");
    let (machine, notes) = read();
    assert_eq!((machine.memory_tiers.tiers.len(), notes.len()), (1, 2), "{notes:?}");
}

#[test]
fn a_root_without_any_known_file_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let error = sysfs::read(root.path()).unwrap_err().to_string();
    assert!(error.ends_with("found none of them"), "{error}");
    let error = sysfs::read(&root.path().join("nowhere")).unwrap_err().to_string();
    assert!(error.contains("nowhere: cannot be read as the root of a Linux file tree"), "{error}");
}

#[test]
fn a_pipe_or_an_endless_file_does_not_hold_the_reader() {
    let root = common::unpacked("laptop").unwrap();
    let zoneinfo = root.path().join("proc/zoneinfo");
    std::fs::remove_file(&zoneinfo).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &zoneinfo).unwrap();
    let long =
        std::fs::File::create(root.path().join("sys/devices/system/node/node0/meminfo")).unwrap();
    long.set_len(1 << 40).unwrap();
    let (_, notes) = sysfs::read(root.path()).unwrap();
    let why: Vec<_> = notes.iter().map(|note| note.why.as_str()).collect();
    let unknown = "it is a device, expected a regular file: watermarks that were not read count as \
                   0, so too much may be promised";
    assert_eq!(why, ["it is larger than 16 MiB", unknown]);
    assert!(notes.iter().all(|note| note.about_memory), "{notes:#?}");
}

#[test]
fn watermarks_are_found_behind_any_number_of_cpus() {
    let root = common::unpacked("two-sockets").unwrap();
    let file = root.path().join("proc/zoneinfo");
    let zoneinfo = std::fs::read_to_string(&file).unwrap();
    let (node_0, node_1) = zoneinfo.split_at(zoneinfo.find("Node 1").unwrap());
    let pageset = "    cpu: 7\n              count:    7\n              high:     55\n\
                   \x20             batch:    8\n";
    let pagesets = pageset.repeat((20 << 20) / pageset.len());
    std::fs::write(&file, format!("{node_0}  pagesets\n{pagesets}{node_1}")).unwrap();
    let (machine, notes) = sysfs::read(root.path()).unwrap();
    assert_eq!((&machine.nodes, notes.len()), (&self::machine("two-sockets").nodes, 0));
}

#[test]
fn notes_about_memory_differ_from_those_that_many_machines_have() {
    for name in ["guest", "emulated", "garbage-distances"] {
        assert!(read(name).1.iter().all(|note| !note.about_memory), "{name}");
    }
    let (_, notes) = read("missing-files");
    let about_memory =
        notes.iter().filter(|note| note.about_memory).map(|note| note.file.file_name().unwrap());
    assert_eq!(about_memory.collect::<Vec<_>>(), ["meminfo", "zoneinfo"]);
}

#[test]
fn a_link_out_of_the_root_is_not_followed() {
    let root = common::unpacked("laptop").unwrap();
    common::unpack("sys/class/net/evil0/device -> /\n", root.path()).unwrap();
    let (machine, _) = sysfs::read(root.path()).unwrap();
    assert!(machine.devices.iter().all(|device| device.name != "evil0"));
}

#[test]
fn every_machine_can_be_cut_and_loses_nothing() {
    for name in FACTS.trim().lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
        let whole = machine(name);
        for spec in [FakeSpec::Nodes(3), FakeSpec::Size(1 << 30), FakeSpec::Uniform(2)] {
            let cut = match fake(&whole, &spec) {
                Ok(cut) => cut,
                Err(FakeError::UnknownMemory { nodes, .. }) => {
                    assert_eq!(nodes, whole.nodes_of_unknown_memory(), "{name}");
                    assert!(["missing-files", "lies"].contains(&name), "{name}: fake={spec}");
                    continue;
                }
                // A terabyte in pieces of 1 GiB is more nodes than there can be.
                Err(error) => {
                    assert!(whole.memory_bytes() >> 30 > 1024, "{name}: {error}");
                    continue;
                }
            };
            let (nodes, cpus): (NodeSet, CpuSet) =
                (cut.node_set(), cut.cpus_of_nodes(&cut.node_set()));
            assert_eq!(cut.memory_bytes(), whole.memory_bytes(), "{name}: fake={spec}");
            assert_eq!(cpus, whole.cpus_of_nodes(&whole.node_set()), "{name}: fake={spec}");
            assert!(
                cut.devices
                    .iter()
                    .filter_map(|device| device.node)
                    .all(|node| nodes.contains(node))
            );
        }
    }
}

proptest! {
    // Each case unpacks a machine.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_content_of_any_file_breaks_the_reader(
        which: proptest::sample::Index,
        content in concat!(
            "[0-9,\\-]{0,12}|-?[0-9]{1,22}( kB)?|",
            "Node [0-9]{1,12}, zone  [A-Z]{0,3}|\\PC{0,20}",
        ),
        name in proptest::sample::select(vec!["tiers", "offline-cpus", "no-numa", "guest"]),
    ) {
        let text = common::machine(name).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        let files: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains(": ")).collect();
        let at = files[which.index(files.len())];
        let mangled = match lines[at].split_once(": ") {
            Some((key, _)) => format!("{key}: {content}"),
            None => content,
        };
        lines[at] = &mangled;
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        // Content that ends with a colon makes a path of the line.
        prop_assume!(common::unpack(&lines.join("\n"), root.path()).is_ok());
        if let Ok((machine, _)) = sysfs::read(root.path()) {
            prop_assert!(machine.nodes.len() <= 4);
            let has_node = |node| machine.node(node).is_some();
            prop_assert!(machine.cpus.iter().all(|cpu| cpu.node.is_none_or(has_node)));
        }
    }
}
