//! `<numatune>`: modes, placement, cells.

use super::checker::Checker;
use crate::{
    binding::{in_force, is_auto, of_cell},
    id::CellSet,
    memory::{Choice, MemoryBinding, MemoryMode, Numatune, WrittenMode},
    position::Located,
    rule::Rule,
};
use nearside_topology::NodeSet;

pub(super) fn check(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    if let Some(numatune) = &domain.numatune {
        if let Some(memory) = &numatune.memory {
            check_memory(checker, memory);
        }
        for memnode in &numatune.memnodes {
            check_mode(checker, memnode.mode.as_ref(), Some(&memnode.nodeset));
            if domain.cell(memnode.cell.value).is_none() {
                let cells = domain.cells.iter().map(|cell| cell.id).collect::<CellSet>().named();
                let message =
                    format!("<memnode> binds cell {}; the guest has {cells}", memnode.cell.value);
                checker.report(Rule::MemnodeForMissingCell, memnode.cell.span, message);
            }
        }
        check_memnodes(checker, numatune);
    }
    check_auto(checker);
    check_cells(checker);
}

fn check_memory(checker: &mut Checker<'_>, memory: &MemoryBinding) {
    check_mode(checker, memory.mode.as_ref(), memory.nodeset.as_ref());
    let is_auto = is_auto(checker.domain);
    if let (Some(mode), true) = (&memory.mode, is_auto)
        && mode.value.known() == Some(MemoryMode::Preferred)
    {
        let message = "the mode 'preferred' takes one node, and numad may answer several";
        checker.report(Rule::PreferredSeveralNodes, mode.span, message);
    }
    // An element without any of the three says nothing (`virDomainNumatuneSet`,
    // `src/conf/numa_conf.c`).
    let says = memory.mode.is_some() || memory.placement.is_some();
    match &memory.nodeset {
        None if says && !is_auto => {
            let message = "the memory's placement is static, but <memory> names no node";
            checker.report(Rule::StaticWithoutNodeset, memory.span, message);
        }
        Some(nodeset) if is_auto => {
            let nodes = nodeset.value.named();
            let message = format!("placement='auto' overrides {nodes} of this nodeset");
            checker.report(Rule::AutoWithNodeset, nodeset.span, message);
        }
        _ => {}
    }
}

/// numad learns the sizes of the guest, not the CPUs that its threads are bound to
/// (`virNumaGetAutoPlacementAdvice`, `src/util/virnuma.c`).
fn check_auto(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    if !is_auto(domain) || checker.has_one_node() {
        return;
    }
    let pin = domain.pins.vcpus.first().map(|pin| ("<vcpupin>", &pin.cpus));
    let bound = pin.or_else(|| domain.vcpus.bound_cpus().map(|cpus| ("cpuset=", cpus)));
    if let Some((what, cpus)) = bound {
        let cpus_named = cpus.value.named();
        let message =
            format!("numad chooses the memory's nodes, but {what} binds vCPUs to {cpus_named}");
        checker.report(Rule::AutoMemoryWithPins, cpus.span, message);
    }
}

fn check_mode(
    checker: &mut Checker<'_>,
    mode: Option<&Located<WrittenMode>>,
    nodes: Option<&Located<NodeSet>>,
) {
    if let Some(Located { value: WrittenMode::Foreign(name), span }) = mode {
        let message = format!("the mode '{name}' is known neither to libvirt nor to QEMU");
        checker.report(Rule::ModeUnknownToQemu, *span, message);
    }
    let several = nodes.filter(|nodes| nodes.value.len() > 1);
    if let (Some(MemoryMode::Preferred), Some(nodes)) = (in_force(mode), several) {
        let message = format!("the mode 'preferred' names {}", nodes.value.named());
        checker.report(Rule::PreferredSeveralNodes, nodes.span, message);
    }
}

fn check_memnodes(checker: &mut Checker<'_>, numatune: &Numatune) {
    let Some(first) = numatune.memnodes.first() else { return };
    let memory = numatune.memory.as_ref();
    if is_auto(checker.domain) {
        let by = match memory.and_then(|memory| memory.placement.as_ref()) {
            Some(Located { value: Choice::Auto, .. }) => "<memory>",
            _ => "<vcpu>",
        };
        let message = format!(
            "<memnode> binds cells, but placement='auto' of {by} leaves \
                               the choice of nodes to numad"
        );
        checker.report(Rule::MemnodeWithAuto, first.span, message);
    }
    let is_restrictive = |mode| in_force(mode) == Some(MemoryMode::Restrictive);
    let all = memory.is_some_and(|memory| is_restrictive(memory.mode.as_ref()));
    let mut memnodes = numatune.memnodes.iter();
    if let Some(memnode) = memnodes.find(|memnode| is_restrictive(memnode.mode.as_ref()) != all) {
        let message = match all {
            true => "<memory> is restrictive, this <memnode> is not",
            false => "this <memnode> is restrictive, <memory> is not",
        };
        let span = memnode.mode.as_ref().map_or(memnode.span, |mode| mode.span);
        checker.report(Rule::MixedRestrictive, span, message);
        return;
    }
    let other = numatune.memnodes.iter().find(|it| it.nodeset.value != first.nodeset.value);
    if let (true, Some(other)) = (is_restrictive(first.mode.as_ref()), other) {
        let message = format!(
            "cells {} and {} are restricted to different nodes ({} and {})",
            first.cell.value, other.cell.value, first.nodeset.value, other.nodeset.value
        );
        checker.report(Rule::RestrictiveCollapsesCells, first.span, message);
    }
}

/// Cells that share one set of several nodes, or have none.
fn check_cells(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let [first, _, ..] = domain.cells.as_slice() else { return };
    if checker.has_one_node() {
        return;
    }
    let memnodes: CellSet = domain
        .numatune
        .iter()
        .flat_map(|numatune| &numatune.memnodes)
        .map(|memnode| memnode.cell.value)
        .collect();
    // On one node each cell is where it has to be.
    let is_free = |cell: &&crate::Cell| {
        of_cell(domain, cell).is_none_or(|binding| binding.nodes.value.len() > 1)
    };
    let without = domain.cells.iter().filter(|cell| !memnodes.contains(cell.id)).filter(is_free);
    let without: CellSet = without.map(|cell| cell.id).collect();
    if let Some(cell) = without.first() {
        let span = domain.cell(cell).map_or(first.span, |cell| cell.span);
        let message = format!("no <memnode> binds {}", without.named());
        checker.report(Rule::CellsWithoutMemnode, span, message);
    }
}
