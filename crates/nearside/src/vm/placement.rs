//! The homes of a domain's cells as bindings of its XML.

use nearside_libvirt::{CellPlacement, Domain, IothreadId, MemoryMode, Placement};
use nearside_policy::{CellsDecision, PlacedCell};
use nearside_topology::{CpuSet, NodeId, NodeSet, Topology};
use std::{cmp::Reverse, collections::BTreeMap};

/// The placement that `decision` means for `domain` on this machine.
pub(crate) fn placement(
    domain: &Domain,
    decision: &CellsDecision,
    mode: MemoryMode,
    pins_vcpus: bool,
    host: &Topology,
) -> Placement {
    let all_cpus = host.cpus_of_nodes(&all_homes(decision));
    let cell = |placed: &PlacedCell| {
        let cpus = host.cpus_of_nodes(&placed.home.nodes);
        // A vCPU that is plugged into a cell of memory alone later needs some CPU (ADR 21).
        let cpus = if cpus.is_empty() { all_cpus.clone() } else { cpus };
        CellPlacement { nodes: memory_nodes(placed, mode, host), cpus }
    };
    let cells: Vec<CellPlacement> = decision.cells.iter().map(cell).collect();
    let memory = cells.iter().fold(NodeSet::new(), |all, cell| all.union(&cell.nodes));
    Placement {
        mode,
        emulator_cpus: host.cpus_of_nodes(&memory),
        cells,
        pins_vcpus,
        iothreads: iothreads(domain, &all_cpus, host),
        distances: Some(host.distances.clone()),
    }
}

/// The nodes of a home that a cell's memory is bound to.
fn memory_nodes(placed: &PlacedCell, mode: MemoryMode, host: &Topology) -> NodeSet {
    let claim = &placed.home.claim;
    let with_memory = host.nodes_that_may_have_memory();
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

/// The nodes of all homes.
fn all_homes(decision: &CellsDecision) -> NodeSet {
    let homes = decision.cells.iter().map(|placed| &placed.home.nodes);
    homes.fold(NodeSet::new(), |all, nodes| all.union(nodes))
}

/// The CPUs of each iothread: those of the homes near the disks that it serves.
fn iothreads(domain: &Domain, homes: &CpuSet, host: &Topology) -> BTreeMap<IothreadId, CpuSet> {
    let cpus = |id| domain.iothreads.cpus_near_disks(id, homes, host);
    domain.iothreads.all().into_iter().map(|id| (id, cpus(id))).collect()
}
