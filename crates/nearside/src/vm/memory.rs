//! The memory that a cell claims, its devices' included: one computation for the XML of libvirt and
//! for command lines.
//!
//! - pc-dimm and cxl-type3: all of it, since the guest may touch it from the start on.
//! - virtio-mem: what is requested at the start. The guest takes no more until it is asked to;
//!   libvirt writes `<requested>` as `requested-size=` (`qemuBuildMemoryDeviceProps`).
//! - nvdimm and virtio-pmem: all of it, in ordinary pages. libvirt gives QEMU the file as
//!   `mem-path=`, whatever pages the cell has (`qemuBuildMemoryBackendProps`), and the guest fills
//!   the page cache.
//! - ivshmem: all of it. It is a file in /dev/shm, whose pages count for the guest that touches
//!   them first.
//! - Memory of an enclave: none, since it lies where the firmware has set it apart.
//!
//! A device of no cell counts for cell 0: QEMU plugs it in there without `node=`. CXL and PCI
//! devices are in no cell, but all memory needs a home. A device with other pages than its cell's
//! is not claimed, with a note: a claim is of one size. A device with host nodes of its own
//! (`host-nodes=`, which libvirt writes for `<nodemask>`) is claimed with its cell, whose home
//! should have these nodes.

use nearside_policy::PageSize;
use nearside_topology::NodeSet;

/// The memory of a device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMemory {
    /// Its name in notes.
    pub(crate) name: String,
    /// The bytes that the guest may take from the start on.
    pub(crate) bytes: u64,
    pub(crate) page_size: PageSize,
    /// The host's nodes that the operator binds it to.
    pub(crate) nodes: Option<NodeSet>,
}

/// The memory that a cell claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellMemory {
    pub(crate) bytes: u64,
    pub(crate) page_size: PageSize,
    /// Memory that is not claimed, for the operator.
    pub(crate) notes: Vec<String>,
}

impl CellMemory {
    /// The memory of cell `id`, which has `bytes` of its own in pages of `page_size`.
    pub(crate) fn of(id: u32, bytes: u64, page_size: PageSize, devices: &[DeviceMemory]) -> Self {
        let (same, other): (Vec<_>, Vec<_>) =
            devices.iter().partition(|device| device.page_size == page_size);
        let not_claimed = |device: &DeviceMemory| {
            let name = &device.name;
            format!("cell {id}: {name} has pages of another size, and is not claimed")
        };
        Self {
            bytes: same.iter().fold(bytes, |sum, device| sum.saturating_add(device.bytes)),
            page_size,
            notes: other.into_iter().map(not_claimed).collect(),
        }
    }
}

/// The nodes that the operator binds memory of devices to.
pub(crate) fn nodes_of_devices(devices: &[DeviceMemory]) -> NodeSet {
    let bound = devices.iter().filter_map(|device| device.nodes.as_ref());
    bound.fold(NodeSet::new(), |all, nodes| all.union(nodes))
}
