//! The guest's own topology: cells, vCPUs, sockets, distances.

use super::checker::Checker;
use crate::{
    domain::{Cell, Domain},
    id::{CellId, CellSet, VcpuId, VcpuSet},
    rule::Rule,
    size::shown,
};
use nearside_topology::Id;

pub(super) fn check(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let Some(first) = domain.cells.first() else { return };
    let all = domain.vcpus.all();
    for cell in &domain.cells {
        check_vcpus(checker, cell, &all);
    }
    let outside = domain.vcpus_of_no_cell();
    if !outside.is_empty() {
        let (of, none) = (outside.named(), if outside.len() == 1 { "is" } else { "are" });
        let message = format!("{of} {none} in no cell");
        checker.report(Rule::VcpusOutsideCells, first.span, message);
    }
    check_sockets(checker);
    check_memory(checker);
    check_distances(checker);
}

fn check_vcpus(checker: &mut Checker<'_>, cell: &Cell, all: &VcpuSet) {
    let Some(cpus) = &cell.cpus else { return };
    let missing = cpus.value.difference(all);
    if !missing.is_empty() {
        let message =
            format!("cell {} has {}; the guest has {}", { cell.id }, missing.named(), all.named());
        checker.report(Rule::CellsExceedVcpus, cpus.span, message);
    } else if cpus.value.intersection(&checker.domain.vcpus.online()).is_empty() {
        let message = format!(
            "cell {} has {} alone, which the guest starts without",
            { cell.id },
            cpus.value.named()
        );
        checker.report(Rule::CellWithoutOnlineVcpu, cpus.span, message);
    }
}

/// QEMU numbers vCPUs socket by socket.
fn check_sockets(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let Some(topology) = domain.cpu_topology else { return };
    let all = topology.sockets.checked_mul(topology.vcpus_per_socket);
    if all != Some(domain.vcpus.maximum.value) || domain.cells.len() < 2 {
        return;
    }
    let sets: Vec<VcpuSet> = domain.cells.iter().map(|cell| domain.vcpus_of(cell)).collect();
    let cells_of = |socket: u32| -> CellSet {
        let first = socket * topology.vcpus_per_socket;
        let vcpus: VcpuSet = (first..first + topology.vcpus_per_socket).map(VcpuId::new).collect();
        let on = sets.iter().zip(0..).filter(|(set, _)| !set.intersection(&vcpus).is_empty());
        on.map(|(_, cell)| CellId(cell)).collect()
    };
    let split = (0..topology.sockets).map(|socket| (socket, cells_of(socket)));
    if let Some((socket, cells)) = split.into_iter().find(|(_, cells)| cells.len() > 1) {
        let message = format!("the vCPUs of socket {socket} are in {}", cells.named());
        checker.report(Rule::SocketSpansCells, topology.span, message);
    }
}

fn check_memory(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let Some(memory) = &domain.memory else { return };
    let cells = domain.cells.iter().map(|cell| cell.memory_bytes.value);
    let cells = cells.fold(0, u64::saturating_add);
    let all = domain.memory_bytes();
    // libvirt rounds up to whole MiB. Tools write the sum with or without memory devices.
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    if ![mib(cells), mib(all)].contains(&mib(memory.value)) {
        let message = format!(
            "<memory> says {}, but the cells and memory devices have {}",
            shown(memory.value),
            shown(all)
        );
        checker.report(Rule::MemoryUnlikeCells, memory.span, message);
    }
}

fn check_distances(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let written = domain.cells.iter().flat_map(|cell| &cell.distances);
    let mut any = None;
    for distance in written {
        any = any.or(Some(distance.to.span));
        if domain.cell(distance.to.value).is_none() {
            let message =
                format!("this is a distance to cell {}, which the guest does not have", {
                    distance.to.value
                });
            checker.report(Rule::DistanceToMissingCell, distance.to.span, message);
        }
    }
    let Some(span) = any else { return };
    if let Some((from, to)) = missing_pair(domain) {
        let message = format!("the distance between cells {from} and {to} is not written");
        let span = domain.cell(from).map_or(span, |cell| cell.span);
        checker.report(Rule::DistancesIncomplete, span, message);
    }
}

/// The first pair of cells without a distance in either direction. libvirt takes the one for the
/// other.
fn missing_pair(domain: &Domain) -> Option<(CellId, CellId)> {
    let mut known: Vec<CellSet> = vec![CellSet::new(); domain.cells.len()];
    for cell in &domain.cells {
        for to in cell.distances.iter().map(|distance| distance.to.value) {
            if let Some(set) = known.get_mut(cell.id.0 as usize) {
                set.insert(to);
            }
            if let Some(set) = known.get_mut(to.0 as usize) {
                set.insert(cell.id);
            }
        }
    }
    known.iter().zip(0..).find_map(|(set, from)| {
        let count = domain.cells.len() as u32;
        let to = (from + 1..count).map(CellId).find(|to| !set.contains(*to))?;
        Some((CellId(from), to))
    })
}
