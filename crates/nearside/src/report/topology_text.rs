//! A machine as tables, with the content of `numactl --hardware` and `xl info -n`, and with zones,
//! huge pages, caches and performance.

use super::{
    cores::{cores_in_short, groups},
    table::{Side::Left, Side::Right, WIDTH, broken, table, wrapped},
    units::{count, mib, percent, size},
};
use nearside_topology::{
    Access, CpuSet, Device, DeviceKind, Distance, Distances, MemoryTier, MemoryTiers, Node, NodeId,
    NodeSet, Performance, ReservedHugePages, Topology,
};
use std::{collections::BTreeMap, fmt::Display};

/// The whole report.
pub(crate) fn report(topology: &Topology) -> String {
    [
        summary(topology),
        nodes(topology),
        distances(topology),
        cpus(topology),
        zones(topology),
        huge_pages(topology),
        performance(topology),
        tiers(topology),
        devices(topology),
    ]
    .concat()
}

/// The machine in one line: `4 nodes (0-3), 16 CPUs on 8 cores, 64 GiB of memory, 60 GiB free`.
pub(crate) fn summary_line(topology: &Topology) -> String {
    let online = topology.cpus.iter().filter(|cpu| cpu.online).count();
    let cores: usize = groups(topology).iter().map(|group| group.cores.len()).sum();
    let nodes = topology.node_set();
    let (cpus, cores) = (count(online, "CPU"), count(cores, "core"));
    let unknown = topology.nodes_of_unknown_memory();
    let memory = match (topology.memory_bytes(), unknown.is_empty()) {
        (bytes, true) => format!("{} of memory", size(bytes)),
        (0, false) => "memory unknown".into(),
        (bytes, false) => {
            format!("{} of memory, unknown on {}", size(bytes), unknown.named())
        }
    };
    let free = free_bytes(topology).map_or(String::new(), |free| format!(", {} free", size(free)));
    format!("{} ({nodes}), {cpus} on {cores}, {memory}{free}", count(nodes.len(), "node"))
}

/// Memory of all nodes, if it is known for every node.
pub(crate) fn memory_bytes(topology: &Topology) -> Option<u64> {
    topology.nodes_of_unknown_memory().is_empty().then(|| topology.memory_bytes())
}

/// The source of the description.
pub(crate) fn source(topology: &Topology) -> &str {
    if topology.source == "/" { "this host" } else { &topology.source }
}

fn summary(topology: &Topology) -> String {
    let mut text =
        format!("available: {}\nsource:    {}\n", summary_line(topology), source(topology));
    let offline: CpuSet =
        topology.cpus.iter().filter(|cpu| !cpu.online).map(|cpu| cpu.id).collect();
    if !offline.is_empty() {
        text += &format!("offline:   {}\n", broken(&offline.named(), 11));
    }
    if !topology.isolated_cpus.is_empty() {
        text +=
            &format!("isolated:  {}\n", broken(&format!("CPUs {}", topology.isolated_cpus), 11));
    }
    text
}

/// Free memory of all nodes, if it is known for every node with memory.
pub(crate) fn free_bytes(topology: &Topology) -> Option<u64> {
    let with_memory = topology.nodes.iter().filter(|node| node.known_memory_bytes() != Some(0));
    with_memory
        .map(|node| node.state.map(|state| state.free_bytes))
        .try_fold(0u64, |sum, free| Some(sum.saturating_add(free?)))
}

fn nodes(topology: &Topology) -> String {
    // Only firmware tables have proximity domains.
    let with_pxm = topology.nodes.iter().any(|node| node.pxm.is_some());
    let mut columns = vec![("node", Right)];
    columns.extend(with_pxm.then_some(("PXM", Right)));
    columns.extend([
        ("CPUs", Left),
        ("cores", Right),
        ("memory MiB", Right),
        ("free MiB", Right),
        ("free", Right),
    ]);
    let row = |node: &Node| {
        let cpus = topology.cpus_of(node.id);
        let free = node.state.map(|state| state.free_bytes);
        let mut row = vec![node.id.to_string()];
        row.extend(with_pxm.then(|| or_dash(node.pxm)));
        row.extend([
            if cpus.is_empty() { "none".into() } else { cpus.to_string() },
            topology.cores_of(node.id).to_string(),
            or_dash(node.known_memory_bytes().map(mib)),
            or_dash(free.map(mib)),
            or_dash(
                free.and_then(|free| percent(free, node.memory_bytes))
                    .map(|share| format!("{share} %")),
            ),
        ]);
        row
    };
    table("Nodes", &columns, &topology.nodes.iter().map(row).collect::<Vec<_>>())
}

/// A matrix as in `numactl` as long as it fits the width; else each node's neighbours by rising
/// distance.
fn distances(topology: &Topology) -> String {
    let nodes: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
    let widest = nodes
        .iter()
        .flat_map(|&from| nodes.iter().map(move |&to| topology.distances.get(from, to)));
    let widest = widest.map(|distance| distance.to_string().len()).max().unwrap_or(0);
    let widest = nodes.last().map_or(0, |node| node.to_string().len()).max(widest);
    let heading = 8;
    if heading + nodes.len() * (widest + 2) > WIDTH {
        return neighbours(&nodes, &topology.distances);
    }
    let mut text = format!("\nDistances\n{:>heading$}", "node ");
    let line = |cells: Vec<String>| {
        cells.iter().map(|cell| format!("  {cell:>widest$}")).collect::<String>() + "\n"
    };
    text += &line(nodes.iter().map(NodeId::to_string).collect());
    for &from in &nodes {
        text += &format!("{:>heading$}", format!("{from}:"));
        text +=
            &line(nodes.iter().map(|&to| topology.distances.get(from, to).to_string()).collect());
    }
    text
}

fn neighbours(nodes: &[NodeId], distances: &Distances) -> String {
    let mut text =
        "\nDistances (from a node: the nodes at each distance, nearest first)\n".to_string();
    for &from in nodes {
        let mut rings: BTreeMap<Distance, NodeSet> = BTreeMap::new();
        for &to in nodes {
            rings.entry(distances.get(from, to)).or_default().insert(to);
        }
        let words: Vec<String> =
            rings.iter().map(|(distance, to)| format!("{distance}:{to} ")).collect();
        text += &format!("{:>7}  {}\n", format!("{from}:"), wrapped(&words, 9).trim_end());
    }
    text
}

fn cpus(topology: &Topology) -> String {
    let groups = groups(topology);
    let rows = groups.iter().map(|group| {
        vec![
            or_dash(group.node),
            or_dash(group.package),
            or_dash(group.last_level_cache),
            group.cpus.to_string(),
            count(group.cores.len(), "core"),
            cores_in_short(&group.cores).join(" "),
        ]
    });
    let columns = [
        ("node", Right),
        ("package", Right),
        ("LLC", Right),
        ("CPUs", Left),
        ("", Right),
        ("SMT siblings", Left),
    ];
    table(
        "CPUs (LLC: the lowest CPU that shares the last-level cache)",
        &columns,
        &rows.collect::<Vec<_>>(),
    )
}

fn zones(topology: &Topology) -> String {
    let rows = topology.nodes.iter().flat_map(|node| {
        node.zones.iter().map(|zone| {
            let largest = zone.free_blocks.iter().rposition(|&blocks| blocks > 0);
            vec![
                node.id.to_string(),
                zone.name.clone(),
                mib(zone.managed_bytes),
                mib(zone.free_bytes),
                mib(zone.low_watermark_bytes),
                mib(zone.high_watermark_bytes),
                or_dash(largest),
            ]
        })
    });
    let columns = [
        ("node", Right),
        ("zone", Left),
        ("managed MiB", Right),
        ("free MiB", Right),
        ("low MiB", Right),
        ("high MiB", Right),
        ("largest free order", Right),
    ];
    table("Zones", &columns, &rows.collect::<Vec<_>>())
}

fn huge_pages(topology: &Topology) -> String {
    let rows = topology.nodes.iter().flat_map(|node| {
        let used = node.huge_pages.iter().filter(|pool| pool.total_pages > 0);
        used.map(|pool| {
            vec![
                node.id.to_string(),
                size(pool.page_bytes),
                pool.total_pages.to_string(),
                pool.free_pages.to_string(),
                pool.surplus_pages.to_string(),
            ]
        })
    });
    let columns =
        [("node", Right), ("page", Right), ("total", Right), ("free", Right), ("surplus", Right)];
    let text = table("Huge pages", &columns, &rows.collect::<Vec<_>>());
    match text.is_empty() && topology.nodes.iter().any(|node| !node.huge_pages.is_empty()) {
        true => "\nHuge pages: no pool has any\n".into(),
        false => text + &reserved_huge_pages(topology),
    }
}

fn reserved_huge_pages(topology: &Topology) -> String {
    let reserved = topology.reserved_huge_pages.iter();
    let line = |ReservedHugePages { page_bytes, pages }: &ReservedHugePages| {
        format!(
            "reserved and not touched yet, on unknown nodes: {pages} of {}\n",
            size(*page_bytes)
        )
    };
    reserved.map(line).collect()
}

fn performance(topology: &Topology) -> String {
    // Initiators with the same figures share a row.
    let mut alike: BTreeMap<_, NodeSet> = BTreeMap::new();
    for performance in &topology.performance {
        let &Performance { access, initiator, target, .. } = performance;
        let figures = (
            performance.read_latency_ns,
            performance.write_latency_ns,
            performance.read_bandwidth_mb_s,
            performance.write_bandwidth_mb_s,
        );
        alike.entry((target, access, figures)).or_default().insert(initiator);
    }
    let rows = alike.into_iter().map(|((target, access, figures), initiators)| {
        let (read_ns, write_ns, read_mb_s, write_mb_s) = figures;
        vec![
            target.to_string(),
            initiators.to_string(),
            match access {
                Access::Access0 => "any".into(),
                Access::Access1 => "CPUs".into(),
            },
            or_dash(read_ns),
            or_dash(write_ns),
            or_dash(read_mb_s),
            or_dash(write_mb_s),
        ]
    });
    let columns = [
        ("memory of node", Right),
        ("from nodes", Left),
        ("initiators", Left),
        ("read ns", Right),
        ("write ns", Right),
        ("read MB/s", Right),
        ("write MB/s", Right),
    ];
    table("Performance (HMAT)", &columns, &rows.collect::<Vec<_>>())
}

/// The memory tiers, and whether pages sink from one to the next; nothing if there is one tier.
fn tiers(topology: &Topology) -> String {
    let MemoryTiers { tiers, demotion_enabled } = &topology.memory_tiers;
    if tiers.len() < 2 {
        return String::new();
    }
    let row = |tier: &MemoryTier| vec![tier.number.to_string(), tier.nodes.to_string()];
    let rows: Vec<_> = tiers.iter().map(row).collect();
    let table = table("Memory tiers (less is faster)", &[("tier", Right), ("nodes", Left)], &rows);
    match demotion_enabled {
        Some(enabled) => format!("{table}  demotion {}\n", on_or_off(*enabled)),
        None => table,
    }
}

/// The state of demotion in a word.
pub(crate) const fn on_or_off(enabled: bool) -> &'static str {
    if enabled { "on" } else { "off" }
}

fn devices(topology: &Topology) -> String {
    let mut by_node: BTreeMap<_, Vec<&Device>> = BTreeMap::new();
    for device in &topology.devices {
        by_node.entry((device.node.is_none(), device.node)).or_default().push(device);
    }
    let mut text = String::new();
    for ((_, node), devices) in by_node {
        let of_kind = |kind| move |device: &&&Device| device.kind == kind;
        let names = |kind| {
            devices
                .iter()
                .filter(of_kind(kind))
                .map(|device| device.name.clone())
                .collect::<Vec<_>>()
        };
        let pci: Vec<_> = devices.iter().filter(of_kind(DeviceKind::Pci)).collect();
        let mut pci_names: Vec<_> = pci
            .iter()
            .filter(|device| worth_naming(device))
            .map(|device| device.name.clone())
            .collect();
        let others = pci.len() - pci_names.len();
        if others > 0 {
            pci_names.push(match pci_names.is_empty() {
                true => format!("({others})"),
                false => format!("({others} other{})", if others == 1 { "" } else { "s" }),
            });
        }
        let node = node.map_or("none".into(), |node| node.to_string());
        let kinds = [
            ("netdev", names(DeviceKind::Netdev)),
            ("block", names(DeviceKind::Block)),
            ("pci", pci_names),
        ];
        for (kind, names) in kinds.into_iter().filter(|(_, names)| !names.is_empty()) {
            text += &format!("{node:>6}  {kind:<6}  {}\n", wrapped(&names, 16));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("\nDevices\n{:>6}\n{text}", "node"),
    }
}

/// Functions that a domain may want to be near: storage, network, display and accelerators. A host
/// has dozens of bridges and system functions besides (class codes: PCI Code and ID Assignment
/// Specification, section 1).
fn worth_naming(device: &Device) -> bool {
    matches!(device.class.map(|class| class >> 16), Some(0x01 | 0x02 | 0x03 | 0x0b | 0x12) | None)
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}
