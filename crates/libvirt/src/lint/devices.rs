//! Memory devices, and PCI controllers of a cell.

use super::checker::Checker;
use crate::{binding::of_cell, id::CellSet, memory::MemoryModel, rule::Rule, size::shown};

pub(super) fn check(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let cells: CellSet = domain.cells.iter().map(|cell| cell.id).collect();
    let maximum = domain.max_memory.as_ref().filter(|_| domain.cells.is_empty());
    if let Some(maximum) = maximum.filter(|_| !domain.plugs_memory_without_cells()) {
        let message = "memory can be plugged into cells alone, and the guest has none";
        checker.report(Rule::MaximumMemoryWithoutCells, maximum.bytes.span, message);
    }
    let all = domain.memory_bytes();
    // libvirt counts in KiB, rounded up.
    let kib = |bytes: u64| bytes.div_ceil(1024);
    if let Some(maximum) = domain.max_memory.as_ref().filter(|it| kib(it.bytes.value) < kib(all)) {
        let message = format!(
            "<maxMemory> says {}, the guest starts with {}",
            shown(maximum.bytes.value),
            shown(all)
        );
        checker.report(Rule::MaximumMemoryBelowMemory, maximum.bytes.span, message);
    }
    for cell in domain.controller_cells.iter().filter(|cell| !cells.contains(cell.value)) {
        let message = format!(
            "this PCI controller is near cell {}; the guest has {}",
            cell.value,
            cells.named()
        );
        checker.report(Rule::ControllerNearMissingCell, cell.span, message);
    }
    for device in &domain.memory_devices {
        let is_module = matches!(
            device.model.value,
            MemoryModel::Dimm | MemoryModel::Nvdimm | MemoryModel::VirtioMem
        );
        if is_module && domain.max_memory.is_none() {
            let message = "this memory device needs <maxMemory>, which the domain does not have";
            checker.report(Rule::MemoryDeviceWithoutMaximum, device.span, message);
        }
        match &device.cell {
            Some(cell) if !cells.contains(cell.value) => {
                let message = format!(
                    "this memory device belongs to cell {}; the guest has {}",
                    cell.value,
                    cells.named()
                );
                checker.report(Rule::MemoryDeviceWithoutCell, cell.span, message);
            }
            None if is_module && !domain.plugs_memory_without_cells() => {
                let message = "this memory device belongs to no cell";
                checker.report(Rule::MemoryDeviceWithoutCell, device.span, message);
            }
            _ => {}
        }
        let cell = device.cell.as_ref().and_then(|cell| domain.cell(cell.value));
        let binding = cell.and_then(|cell| of_cell(domain, cell));
        if let (Some(binding), Some(nodes), Some(cell)) = (binding, &device.nodes, cell)
            && !nodes.value.is_subset(&binding.nodes.value)
        {
            let message = format!(
                "this memory device is bound to {}, its cell {} to {}",
                nodes.value.named(),
                cell.id,
                binding.nodes.value.named()
            );
            checker.report(Rule::MemoryDeviceOffCell, nodes.span, message);
        }
    }
}
