//! The domains of `domains/`, the host and the placement that they are tried with.

#![allow(dead_code, reason = "each test uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use nearside_libvirt::{
    CellPlacement, Domain, Intent, IothreadId, MemoryMode, Metadata, Placement, Written, complete,
};
use nearside_topology::{
    Cpu, CpuId, CpuSet, Device, DeviceKind, Distances, HugePagePool, Node, NodeId, Topology,
};
use std::{collections::BTreeMap, fs, path::Path};

const GIB: u64 = 1 << 30;

/// All domains by name: the text of each file.
pub(crate) fn domains() -> BTreeMap<String, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/domains");
    let file = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
    };
    fs::read_dir(folder).unwrap().map(file).collect()
}

/// Nodes 0 to 3 with 8 CPUs and 64 GiB each, in two pairs; node 4 has memory alone, node 5 CPUs
/// alone. Each node with memory has 4 GiB in huge pages.
pub(crate) fn host() -> Topology {
    let ids: Vec<NodeId> = (0..6).map(NodeId).collect();
    let node = |&id: &NodeId| Node {
        id,
        memory_bytes: if id == NodeId(5) { 0 } else { 64 * GIB },
        huge_pages: vec![HugePagePool {
            page_bytes: 2 << 20,
            total_pages: if id == NodeId(5) { 0 } else { 2048 },
            free_pages: 0,
            surplus_pages: 0,
        }],
        ..Node::default()
    };
    let rows = [
        [10, 12, 20, 22, 24, 30],
        [12, 10, 22, 20, 24, 30],
        [20, 22, 10, 12, 24, 30],
        [22, 20, 12, 10, 24, 30],
        [24, 24, 24, 24, 10, 30],
        [30, 30, 30, 30, 30, 10],
    ];
    let cpus = (0..40).map(|cpu| {
        let node = if cpu < 32 { cpu / 8 } else { 5 };
        Cpu::new(CpuId(cpu), NodeId(node))
    });
    let device = |kind, name: &str, node| Device {
        kind,
        name: name.into(),
        node: Some(NodeId(node)),
        class: None,
    };
    Topology {
        nodes: ids.iter().map(node).collect(),
        cpus: cpus.collect(),
        distances: Distances::new(&ids, rows.as_flattened()).unwrap(),
        devices: vec![
            device(DeviceKind::Pci, "0000:3b:00.0", 1),
            device(DeviceKind::Pci, "0000:af:00.0", 3),
            device(DeviceKind::Netdev, "eth0", 0),
        ],
        ..Topology::default()
    }
}

/// Cell 0 on node 0, cell 1 on node 1, and so on; a domain without cells is on node 1. The begin of
/// a domain's name asks for something else.
pub(crate) fn placement(name: &str, domain: &Domain) -> Placement {
    let host = host();
    let spread = name.starts_with("spread");
    let cell = |cell: usize| {
        let nodes = match (domain.cells.is_empty(), spread) {
            (true, _) => "1".to_owned(),
            (false, true) => format!("{}-{}", cell * 2 % 4, cell * 2 % 4 + 1),
            (false, false) => (cell % 4).to_string(),
        };
        let nodes = nodes.parse().unwrap();
        CellPlacement { cpus: host.cpus_of_nodes(&nodes), nodes }
    };
    let preferred = name.starts_with("preferred");
    Placement {
        mode: if preferred { MemoryMode::Preferred } else { MemoryMode::Strict },
        cells: (0..domain.cells.len().max(1)).map(cell).collect(),
        pins_vcpus: !name.starts_with("soft"),
        emulator_cpus: CpuSet::new(),
        iothreads: [1, 2, 4].map(|id| (IothreadId(id), host.cpus_of(NodeId(1)))).into(),
        distances: Some(host.distances),
    }
}

/// The completed domain with its metadata.
pub(crate) fn placed(domain: &Domain, placement: &Placement) -> Domain {
    let after = Domain::read(&complete(domain, placement)).unwrap();
    let mode = domain.completed_mode(placement.mode);
    let intent = Intent::of(&after, mode, [(1, 1 << 30, None)], &host());
    let metadata = Metadata { intent, wrote: Written::between(domain, &after) };
    Domain::read(&metadata.write_to(&after).unwrap()).unwrap()
}
