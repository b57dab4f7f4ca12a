//! A home as arguments of `qemu-system-*`.

use super::guest::{huge_page_kib, kib, lacking};
use nearside_policy::{Cell, Guest, MemoryPolicy};
use nearside_topology::{Distances, NodeSet, Topology};

/// The arguments, one option with its value on a line, and a note for each limit of QEMU.
pub(crate) fn report(guest: &Guest, topology: &Topology) -> (String, Vec<String>) {
    let mut notes = vec![format!(
        "QEMU does not bind its vCPU threads: start it with taskset --cpu-list {} or nearside run",
        guest.cpus
    )];
    let mut lines = vec![smp(guest), format!("-m {}K", kib(guest.memory_bytes))];
    for (id, cell) in guest.cells.iter().enumerate() {
        let mut node = format!("-numa node,nodeid={id}");
        if !cell.vcpus.is_empty() {
            node += &format!(",cpus={}-{}", cell.vcpus.start, cell.vcpus.end - 1);
        }
        if cell.memory_bytes > 0 {
            lines.push(backend(guest, id, cell, &mut notes));
            node += &format!(",memdev=ram{id}");
        }
        lines.push(node);
    }
    if guest.cells.len() > 1 {
        notes.push(
            "bind each cell's vCPU threads to its node: --format libvirt shows the CPUs".into(),
        );
        lines.extend(distances(guest, topology));
    }
    (lines.join("\n") + "\n", notes)
}

// One socket a cell if all cells are equal: QEMU warns about a socket that spans several.
fn smp(guest: &Guest) -> String {
    let (vcpus, cells) = (guest.vcpus, guest.cells.len() as u64);
    let length = |cell: &Cell| cell.vcpus.end - cell.vcpus.start;
    let sockets =
        if guest.cells.iter().all(|cell| length(cell) * cells == vcpus) { cells } else { vcpus };
    format!("-smp {vcpus},sockets={sockets},cores={},threads=1", vcpus / sockets)
}

fn backend(guest: &Guest, id: usize, cell: &Cell, notes: &mut Vec<String>) -> String {
    // A pool reserves pages for the whole machine, not on a node: pages touched late may come from
    // another node.
    let kind = match huge_page_kib(guest) {
        Some(kib) => format!("memory-backend-memfd,hugetlb=on,hugetlbsize={kib}K,prealloc=on"),
        None => "memory-backend-ram".into(),
    };
    let placed = match guest.policy {
        MemoryPolicy::Strict => host_nodes(&cell.nodes) + ",policy=bind",
        MemoryPolicy::Preferred => {
            host_nodes(&NodeSet::from([guest.primary])) + ",policy=preferred"
        }
        MemoryPolicy::PreferredMany => {
            notes.push("QEMU before version 8.0 prefers only the first of these nodes".into());
            host_nodes(&cell.nodes) + ",policy=preferred"
        }
        MemoryPolicy::Interleave => host_nodes(&cell.nodes) + ",policy=interleave",
        MemoryPolicy::WeightedInterleave => {
            notes.push(lacking("QEMU", guest.policy, "this uses plain interleave"));
            host_nodes(&cell.nodes) + ",policy=interleave"
        }
        MemoryPolicy::Restrictive => {
            notes.push(lacking("QEMU", guest.policy, "start it in a cpuset, as nearside run does"));
            String::new()
        }
        MemoryPolicy::Local => String::new(),
    };
    format!("-object {kind},id=ram{id},size={}K{placed}", kib(cell.memory_bytes))
}

// QEMU accepts one range or number for each occurrence of the option.
fn host_nodes(nodes: &NodeSet) -> String {
    nodes.to_string().split(',').map(|range| format!(",host-nodes={range}")).collect()
}

// Distances between cells with one node each.
fn distances<'a>(guest: &'a Guest, topology: &'a Topology) -> impl Iterator<Item = String> + 'a {
    let cells =
        || guest.cells.iter().enumerate().filter_map(|(id, cell)| Some((id, cell.nodes.first()?)));
    let pairs = cells().flat_map(move |from| cells().map(move |to| (from, to)));
    pairs.filter(|(from, to)| from.0 != to.0).map(|((src, from), (dst, to))| {
        // Linux takes no distance of 10 between two nodes.
        let distance = topology.distances.get(from, to).max(Distances::LOCAL + 1);
        format!("-numa dist,src={src},dst={dst},val={distance}")
    })
}
