//! The request for the cells of a command line: vCPUs that are plugged in at the start, and the
//! memory that the guest has from then on, that of devices included.

use crate::{
    failure::Failure,
    vm::memory::{CellMemory, DeviceMemory},
};
use nearside_linux::sys;
use nearside_policy::{CellRequest, PageSize};
use nearside_topology::{NodeId, NodeSet};
use nearside_vmm::{Cell, Vm};

/// The requests for all cells, and notes for the operator. `asked` is `--page-size`.
pub(super) fn request_cells(
    vm: &Vm,
    near: &[NodeId],
    asked: Option<u64>,
) -> Result<(Vec<CellRequest>, Vec<String>), Failure> {
    let (mut cells, mut notes) = (Vec::with_capacity(vm.cells.len()), Vec::new());
    for (id, cell) in (0..).zip(&vm.cells) {
        let fault = |why: &str| Failure::usage(format_args!("cell {id}: {why}"));
        let of_first = cells.first().map(|first: &CellRequest| first.page_size);
        let (memory, pages) = match memory(id, cell, asked).map_err(fault)? {
            Some(memory) => memory,
            // No node is no home: such a cell claims a page, as one of memory that comes later.
            None => {
                let pages = of_first.and_then(huge_bytes).or(asked);
                (CellMemory::of(id, 0, page_size(pages), &[]), pages)
            }
        };
        if asked.is_some() && asked != pages {
            return Err(fault("--page-size is not the size of its pages on the command line"));
        }
        let page_size = memory.page_size;
        if of_first.is_some_and(|first| first != page_size) {
            return Err(fault("its pages have another size than those of cell 0"));
        }
        notes.extend(memory.notes);
        let memory_bytes = memory.bytes.max(sys::page_bytes());
        let vcpus = vm.vcpus_at_start(cell).len() as u32;
        let near = match bound_nodes(cell) {
            nodes if nodes.is_empty() => near.to_vec(),
            nodes => nodes.iter().collect(),
        };
        cells.push(CellRequest { vcpus, memory_bytes, page_size, near });
    }
    Ok((cells, notes))
}

/// The nodes that the operator binds memory of a cell to.
fn bound_nodes(cell: &Cell) -> NodeSet {
    let of_devices = cell.devices.iter().filter_map(|device| device.host_nodes.as_ref());
    let all = cell.host_nodes.iter().chain(of_devices);
    all.fold(NodeSet::new(), |all, nodes| all.union(nodes))
}

/// The nodes that the operator binds all memory of a cell to; none if he leaves any open.
pub(super) fn bound(cell: &Cell) -> Option<NodeSet> {
    cell.host_nodes.as_ref()?;
    cell.devices.iter().all(|device| device.host_nodes.is_some()).then(|| bound_nodes(cell))
}

/// The nodes that the operator binds the memory of all cells to; none if he leaves any open.
pub(super) fn nodes_of_operator(vm: &Vm) -> Option<NodeSet> {
    let bounds: Option<Vec<NodeSet>> = vm.cells.iter().map(bound).collect();
    bounds.map(|sets| sets.iter().fold(NodeSet::new(), |all, nodes| all.union(nodes)))
}

/// The size of huge pages; none for ordinary ones.
fn page_bytes(
    size: &nearside_vmm::PageSize,
    asked: Option<u64>,
) -> Result<Option<u64>, &'static str> {
    Ok(match size {
        nearside_vmm::PageSize::Base => None,
        nearside_vmm::PageSize::Huge(bytes) => Some(*bytes),
        nearside_vmm::PageSize::Path(path) if path.starts_with("/dev/shm") => None,
        nearside_vmm::PageSize::DefaultHuge | nearside_vmm::PageSize::Path(_) => {
            let why = "the command line does not tell the size of its pages: add --page-size";
            Some(asked.ok_or(why)?)
        }
    })
}

fn page_size(bytes: Option<u64>) -> PageSize {
    let huge = bytes.filter(|bytes| *bytes != sys::page_bytes());
    huge.map_or(PageSize::Base, PageSize::Huge)
}

fn huge_bytes(size: PageSize) -> Option<u64> {
    match size {
        PageSize::Base => None,
        PageSize::Huge(bytes) => Some(bytes),
    }
}

/// The memory of devices of cell `id`; `size` and `pages` are the pages of the cell.
fn devices(
    cell: &Cell,
    size: &nearside_vmm::PageSize,
    pages: Option<u64>,
    asked: Option<u64>,
) -> Result<Vec<DeviceMemory>, &'static str> {
    let device = |device: &nearside_vmm::DeviceMemory| {
        let own = match &device.page_size {
            same if same == size => pages,
            // Devices have files of disks, too, and mounts of huge pages are named so.
            nearside_vmm::PageSize::Path(path) if !path.contains("huge") => None,
            size => page_bytes(size, asked)?,
        };
        Ok(DeviceMemory {
            name: format!("memory {} of a device", device.backend),
            bytes: device.bytes,
            page_size: page_size(own),
            nodes: device.host_nodes.clone(),
        })
    };
    cell.devices.iter().map(device).collect()
}

/// The memory that cell `id` claims, and the stated size of its pages; none if it has no memory.
fn memory(
    id: u32,
    cell: &Cell,
    asked: Option<u64>,
) -> Result<Option<(CellMemory, Option<u64>)>, &'static str> {
    let of_device = cell.devices.first().map(|device| &device.page_size);
    let size = if cell.bytes > 0 { Some(&cell.page_size) } else { of_device };
    let Some(size) = size else { return Ok(None) };
    let pages = page_bytes(size, asked)?;
    let devices = devices(cell, size, pages, asked)?;
    Ok(Some((CellMemory::of(id, cell.bytes, page_size(pages), &devices), pages)))
}
