//! Memory that `-device` gives the guest.

use super::backend::Backend;
use crate::{
    grammar::Keys,
    model::{Cell, DeviceMemory},
};
use std::collections::BTreeMap;

/// The keys of devices that name a memory backend: of pc-dimm, nvdimm, virtio-mem, virtio-pmem,
/// ivshmem-plain and cxl-type3 (QEMU, `hw/mem/`, `hw/virtio/`, `hw/misc/ivshmem.c`).
const BACKEND_KEYS: [&str; 4] = ["memdev", "volatile-memdev", "persistent-memdev", "lsa"];

/// Whether a device has memory of a backend.
pub(super) fn has_memory(keys: &Keys) -> bool {
    BACKEND_KEYS.iter().any(|key| keys.get(key).is_some())
}

/// Gives the memory of a device to the cell that it names. QEMU plugs memory into node 0 without
/// `node=`. That of devices without such a key (CXL, PCI) belongs to no cell of the guest, but all
/// memory needs a home, so cell 0 has it, too.
pub(super) fn add(
    keys: &Keys,
    backends: &BTreeMap<String, Backend>,
    cells: &mut [Cell],
    states_cells: bool,
) -> Result<(), String> {
    // Without cells, node= is one of those that --cells will add, or QEMU refuses it.
    let id = keys.number("node")?.filter(|_| states_cells).unwrap_or(0);
    let cell = usize::try_from(id).ok().and_then(|at| cells.get_mut(at));
    let cell = cell.ok_or_else(|| format!("node={id}: there is no cell {id}"))?;
    // virtio-mem begins with what the host asks the guest to take, and may grow to its backend.
    let is_virtio_mem = keys.get("driver").is_some_and(|name| name.starts_with("virtio-mem"));
    let requested = keys.size("requested-size", 1)?.unwrap_or(0);
    for name in BACKEND_KEYS.iter().filter_map(|key| keys.get(key)) {
        let backend = backends.get(name);
        let backend = backend.ok_or_else(|| format!("there is no memory backend {name}"))?;
        cell.devices.push(DeviceMemory {
            backend: name.into(),
            bytes: if is_virtio_mem { requested.min(backend.bytes) } else { backend.bytes },
            page_size: backend.page_size.clone(),
            host_nodes: backend.host_nodes.clone(),
        });
    }
    Ok(())
}
