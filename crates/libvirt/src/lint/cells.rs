//! The guest's own topology: cells, vCPUs, sockets, distances.

use super::checker::Checker;
use crate::{
    domain::{Cell, Domain},
    id::{CellId, CellSet, VcpuSet},
    rule::Rule,
    size::shown,
};

pub(super) fn check(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    if domain.cells.is_empty() && domain.memory_bytes() == 0 {
        let (span, message) = match &domain.memory {
            None => {
                (domain.span, "neither <memory> nor a cell states how much memory the guest has")
            }
            Some(memory) => (memory.span, "<memory> is 0, and the guest has no cells"),
        };
        checker.report(Rule::MemoryMissing, span, message);
    }
    check_topology(checker);
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
    check_empty(checker);
    check_memory(checker);
    check_distances(checker);
}

fn check_vcpus(checker: &mut Checker<'_>, cell: &Cell, all: &VcpuSet) {
    let Some(cpus) = &cell.cpus else { return };
    let missing = cpus.value.difference(all);
    let (id, has) = (cell.id, cpus.value.named());
    if !missing.is_empty() {
        let (missing, all) = (missing.named(), all.named());
        let message = format!("cell {id} has {missing}; the guest has {all}");
        checker.report(Rule::CellsExceedVcpus, cpus.span, message);
    } else if cpus.value.intersection(&checker.domain.vcpus.online()).is_empty() {
        let message = format!("cell {id} has {has} alone, which the guest starts without");
        checker.report(Rule::CellWithoutOnlineVcpu, cpus.span, message);
    }
}

/// The sockets against the vCPUs (`qemuValidateDomainDef`, `src/qemu/qemu_validate.c`).
fn check_topology(checker: &mut Checker<'_>) {
    let maximum = checker.domain.vcpus.maximum.value;
    let Some(topology) = checker.domain.cpu_topology else { return };
    if topology.vcpus() != u64::from(maximum) {
        let message = format!(
            "<topology> makes {} vCPUs, the maximum of <vcpu> is {maximum}",
            topology.vcpus()
        );
        checker.report(Rule::TopologyUnlikeVcpus, topology.span, message);
    }
}

/// QEMU numbers vCPUs socket by socket and die by die. The last-level cache is a die's
/// (`encode_cache_cpuid4` and its callers, `target/i386/cpu.c`).
fn check_sockets(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let Some(topology) = domain.cpu_topology else { return };
    let maximum = domain.vcpus.maximum.value;
    if topology.vcpus() != u64::from(maximum) || domain.cells.len() < 2 {
        return;
    }
    let mut cell_of = vec![None; maximum as usize];
    for cell in &domain.cells {
        for vcpu in domain.vcpus_of(cell).iter() {
            if let Some(place) = cell_of.get_mut(vcpu.0 as usize) {
                *place = Some(cell.id);
            }
        }
    }
    // No die has more vCPUs than the guest.
    let dies = cell_of.chunks((topology.vcpus_per_die() as usize).max(1));
    let cells = dies.map(|vcpus| vcpus.iter().copied().flatten().collect::<CellSet>());
    if let Some((die, cells)) = (0..).zip(cells).find(|(_, cells): &(u32, _)| cells.len() > 1) {
        let socket = die / topology.dies;
        let of = match topology.dies {
            1 => format!("socket {socket}"),
            dies => format!("die {} of socket {socket}", die % dies),
        };
        let message = format!("the vCPUs of {of} are in {}", cells.named());
        checker.report(Rule::SocketSpansCells, topology.span, message);
    }
}

/// Cells without memory, and a guest that starts in them alone.
fn check_empty(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let empty: Vec<_> = domain.cells.iter().filter(|cell| cell.memory_bytes.value == 0).collect();
    for cell in &empty {
        let message = format!("cell {} has no memory", cell.id);
        checker.report(Rule::CellWithoutMemory, cell.memory_bytes.span, message);
    }
    let vcpus = empty.iter().fold(VcpuSet::new(), |all, cell| all.union(&domain.vcpus_of(cell)));
    let online = domain.vcpus.online();
    let first = empty.iter().find(|cell| !domain.vcpus_of(cell).is_empty());
    if let Some(first) = first.filter(|_| online.is_subset(&vcpus)) {
        let cells = empty.iter().map(|cell| cell.id).collect::<CellSet>().named();
        let message =
            format!("the guest starts with {} alone, in {cells}, without memory", online.named());
        checker.report(Rule::VcpusWithoutMemory, first.span, message);
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
            let to = distance.to.value;
            let message = format!("this is a distance to cell {to}, which the guest does not have");
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
