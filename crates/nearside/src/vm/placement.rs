//! The homes of a domain's cells as bindings of its XML.

use nearside_libvirt::{CellPlacement, Domain, IothreadId, MemoryMode, Placement};
use nearside_policy::{CellsDecision, PlacedCell};
use nearside_topology::{CpuSet, DeviceKind, NodeId, NodeSet, Topology};
use std::{cmp::Reverse, collections::BTreeMap};

/// The placement that `decision` means for `domain` on this machine.
pub(crate) fn placement(
    domain: &Domain,
    decision: &CellsDecision,
    mode: MemoryMode,
    pins_vcpus: bool,
    host: &Topology,
) -> Placement {
    let cell = |placed: &PlacedCell| CellPlacement {
        nodes: memory_nodes(placed, mode, host),
        // All of the home: the emulator allocates memory on each of its nodes.
        cpus: host.cpus_of_nodes(&placed.home.nodes),
    };
    Placement {
        mode,
        cells: decision.cells.iter().map(cell).collect(),
        pins_vcpus,
        iothreads: iothreads(domain, decision, host),
        distances: Some(host.distances.clone()),
    }
}

/// The nodes of a home that a cell's memory is bound to.
fn memory_nodes(placed: &PlacedCell, mode: MemoryMode, host: &Topology) -> NodeSet {
    let claim = &placed.home.claim;
    let with_memory = host.memory_nodes().union(&host.nodes_of_unknown_memory());
    let mut nodes = placed.home.nodes.intersection(&with_memory);
    if nodes.is_empty() {
        nodes = claim.bytes.keys().copied().collect();
    }
    // libvirt takes one preferred node: that of most of the memory.
    if mode == MemoryMode::Preferred {
        let bytes = |node: &NodeId| claim.bytes.get(node).copied().unwrap_or(0);
        let most = nodes.iter().max_by_key(|node| (bytes(node), Reverse(*node)));
        return most.into_iter().collect();
    }
    nodes
}

/// The CPUs of each iothread: those of the home's node nearest to the disk that it serves. The
/// memory that it reads and writes is the guest's, so it stays at home. A thread whose disk has no
/// node that the host knows may run on all of the home.
fn iothreads(
    domain: &Domain,
    decision: &CellsDecision,
    host: &Topology,
) -> BTreeMap<IothreadId, CpuSet> {
    let homes = decision.cells.iter().map(|placed| &placed.home.nodes);
    let home = homes.fold(NodeSet::new(), |all, nodes| all.union(nodes));
    let with_cpus = || home.iter().filter(|&node| !host.cpus_of(node).is_empty());
    let cpus = |thread: &IothreadId| {
        let disks = domain.iothreads.disks.iter().filter(|(id, _)| id == thread);
        let near = disks.filter_map(|(_, disk)| {
            let is_disk = |name: &str| disk == name || is_partition(disk, name);
            let mut known = host.devices.iter().filter(|it| it.kind == DeviceKind::Block);
            let device = known.find(|device| is_disk(&device.name))?.node?;
            with_cpus().min_by_key(|&node| (host.distances.get(device, node), node))
        });
        let near: NodeSet = near.collect();
        host.cpus_of_nodes(if near.is_empty() { &home } else { &near })
    };
    domain.iothreads.all().into_iter().map(|id| (id, cpus(&id))).collect()
}

/// `sda1` is a partition of `sda`, `nvme0n1p2` one of `nvme0n1`.
fn is_partition(partition: &str, disk: &str) -> bool {
    let Some(rest) = partition.strip_prefix(disk) else { return false };
    let digits = match disk.ends_with(|c: char| c.is_ascii_digit()) {
        true => rest.strip_prefix('p').unwrap_or_default(),
        false => rest,
    };
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_belong_to_their_disk() {
        for (partition, disk, expected) in [
            ("sda1", "sda", true),
            ("sdab1", "sda", false),
            ("nvme0n1p2", "nvme0n1", true),
            ("nvme0n12", "nvme0n1", false),
            ("sda", "sda", false),
        ] {
            assert_eq!(is_partition(partition, disk), expected, "{partition} {disk}");
        }
    }
}
