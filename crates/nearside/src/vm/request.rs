//! The request for homes that the XML of a domain makes.
//!
//! | request | from the XML |
//! |---|---|
//! | cells | those of `<cpu><numa>`; a domain without them is one cell |
//! | vCPUs | those that are plugged in at the start; none for a cell of memory alone |
//! | memory | the cell's, and its devices' ([`memory`](super::memory)) |
//! | pages | `<hugepages>` of the cell |
//! | distances | the guest's, if any are written |
//! | devices | every cell should be near the host devices, so the nearest ones get their nodes |
//! | memory devices | a cell should be near the nodes that they are bound to, if any |
//! | policy | the mode of `<numatune><memory>`, else the operator's choice, else *strict* |
//! | bounds | the operator's bindings: nodes of memory, and of the CPUs that vCPUs are bound to |

use super::memory::{CellMemory, DeviceMemory, nodes_of_devices};
use nearside_libvirt::{Cell, CellId, Domain, MemoryMode, MemoryModel, VcpuBindings, VcpuSet};
use nearside_policy::{CellRequest, CellsRequest, MemoryPolicy, PageSize};
use nearside_topology::{CpuSet, NodeId, NodeSet, Topology};

/// The size of huge pages where neither the XML nor the host's pools tell one: that of x86.
const USUAL_HUGE_PAGE_BYTES: u64 = 2 << 20;
/// No machine has smaller pages.
const SMALLEST_PAGE_BYTES: u64 = 4096;

/// A request, and the nodes that single cells are bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmRequest {
    pub(crate) cells: CellsRequest,
    /// By cell; none where the operator bound nothing.
    pub(crate) bounds: Vec<Option<NodeSet>>,
    /// The mode of all memory.
    pub(crate) mode: MemoryMode,
    /// Assumptions, for the operator.
    pub(crate) notes: Vec<String>,
}

/// The request of `domain` on this machine. `mode` is the operator's choice for memory that the XML
/// gives no mode, `nodes` the nodes that all cells may have.
pub(crate) fn request(
    domain: &Domain,
    mode: Option<MemoryMode>,
    nodes: Option<NodeSet>,
    host: &Topology,
) -> VmRequest {
    let mut notes = Vec::new();
    let written = domain.written_mode();
    let in_force = domain.completed_mode(mode.unwrap_or_default());
    if let (Some(written), Some(asked)) = (written, mode)
        && written != asked
    {
        notes.push(format!("the XML has the mode '{written}' for all memory, which stays"));
    }
    let near = near(domain, host);
    let parts: Vec<Part<'_>> = match domain.cells.is_empty() {
        true => vec![Part { id: CellId(0), cell: None, vcpus: domain.vcpus.all() }],
        false => domain.cells.iter().map(|cell| Part::of(domain, cell)).collect(),
    };
    let online = domain.vcpus.online();
    let devices: Vec<Vec<DeviceMemory>> =
        parts.iter().map(|part| part.devices(domain, host, &mut notes)).collect();
    let cells = parts.iter().zip(&devices).map(|(part, devices)| {
        let vcpus = part.vcpus.intersection(&online).len() as u32;
        let memory = part.memory(domain, devices, host, &mut notes);
        notes.extend(memory.notes);
        let near = match nodes_of_devices(devices).intersection(&host.node_set()) {
            nodes if nodes.is_empty() => near.clone(),
            nodes => nodes.iter().collect(),
        };
        let (memory_bytes, page_size) = (memory.bytes, memory.page_size);
        CellRequest { vcpus, memory_bytes, page_size, near }
    });
    let cells: Vec<CellRequest> = cells.collect();
    let bindings = domain.vcpu_bindings();
    let each = parts.iter().zip(&cells);
    let bound = |(part, cell): (&Part<'_>, &CellRequest)| {
        part.bound(cell.vcpus > 0, domain, &bindings, host)
    };
    let bounds = each.map(bound).collect();
    let cells =
        CellsRequest { cells, distances: domain.distances(), policy: policy(in_force), nodes };
    VmRequest { cells, bounds, mode: in_force, notes }
}

/// The policy of a mode of libvirt's.
pub(crate) fn policy(mode: MemoryMode) -> MemoryPolicy {
    match mode {
        MemoryMode::Strict => MemoryPolicy::Strict,
        MemoryMode::Preferred => MemoryPolicy::Preferred,
        MemoryMode::Interleave => MemoryPolicy::Interleave,
        MemoryMode::Restrictive => MemoryPolicy::Restrictive,
    }
}

/// libvirt's mode for a policy; none for those that neither libvirt nor QEMU knows.
pub(crate) fn mode(policy: MemoryPolicy) -> Option<MemoryMode> {
    MemoryMode::ALL.into_iter().find(|&mode| self::policy(mode) == policy)
}

/// The nodes of the host devices that the host knows.
fn near(domain: &Domain, host: &Topology) -> Vec<NodeId> {
    let nodes = domain.host_devices.iter().filter_map(|device| device.node(host));
    let nodes: NodeSet = nodes.map(|(_, node)| node).collect();
    nodes.iter().filter(|&node| host.node(node).is_some()).collect()
}

/// A cell, or all of a domain without cells.
struct Part<'a> {
    id: CellId,
    cell: Option<&'a Cell>,
    vcpus: VcpuSet,
}

impl<'a> Part<'a> {
    fn of(domain: &Domain, cell: &'a Cell) -> Self {
        let vcpus = domain.vcpus_of(cell).intersection(&domain.vcpus.all());
        Self { id: cell.id, cell: Some(cell), vcpus }
    }

    fn memory(
        &self,
        domain: &Domain,
        devices: &[DeviceMemory],
        host: &Topology,
        notes: &mut Vec<String>,
    ) -> CellMemory {
        // Without cells, <memory> has the memory devices that libvirt counts.
        let bytes = self.cell.map_or_else(|| domain.memory_bytes(), |it| it.memory_bytes.value);
        CellMemory::of(self.id.0, bytes, self.page_size(domain, host, notes), devices)
    }

    fn page_size(&self, domain: &Domain, host: &Topology, notes: &mut Vec<String>) -> PageSize {
        let pages = domain.backing.huge_pages.as_ref();
        let page_bytes = pages.map(|pages| match pages.of(self.id).map(|page| page.bytes.value) {
            Some(bytes) => bytes,
            None => usual_huge_page(host, notes),
        });
        page_bytes.map_or(PageSize::Base, page_size)
    }

    /// The memory of its devices, as QEMU gets it from libvirt.
    fn devices(
        &self,
        domain: &Domain,
        host: &Topology,
        notes: &mut Vec<String>,
    ) -> Vec<DeviceMemory> {
        let of_cell = self.page_size(domain, host, notes);
        let at = |start| domain.position(start);
        let memory = domain.memory_devices.iter().filter_map(|device| {
            let bytes = device.bytes.as_ref().map_or(0, |bytes| bytes.value);
            let is_counted = self.cell.is_none() && device.ram_bytes().is_some();
            let is_here = device.cell.as_ref().map_or(CellId(0), |cell| cell.value) == self.id;
            let is_here = self.cell.is_none() || is_here;
            let is_ram = device.model.value != MemoryModel::SgxEpc;
            if is_counted || !is_here || !is_ram {
                return None;
            }
            let requested = device.requested_bytes.as_ref().map_or(0, |bytes| bytes.value);
            Some(DeviceMemory {
                name: format!("the memory device at {}", at(device.span.start)),
                bytes: match device.model.value {
                    MemoryModel::VirtioMem => requested.min(bytes),
                    _ => bytes,
                },
                page_size: match (device.model.value, &device.page_bytes) {
                    (MemoryModel::Nvdimm | MemoryModel::VirtioPmem, _) => PageSize::Base,
                    (_, Some(own)) => page_size(own.value),
                    (_, None) => of_cell,
                },
                nodes: device.nodes.as_ref().map(|nodes| nodes.value.clone()),
            })
        });
        let shared = domain.shared_memory.iter().filter(|_| self.id == CellId(0));
        let shared = shared.map(|shared| DeviceMemory {
            name: format!("the shared memory at {}", at(shared.span.start)),
            bytes: shared.value,
            page_size: PageSize::Base,
            nodes: None,
        });
        memory.chain(shared).collect()
    }

    /// The nodes that the operator's bindings leave the cell: those of its memory that its vCPUs
    /// may run on, or those of its memory if there is none. A cell whose vCPUs run needs a CPU.
    fn bound(
        &self,
        needs_cpu: bool,
        domain: &Domain,
        bindings: &VcpuBindings<'_>,
        host: &Topology,
    ) -> Option<NodeSet> {
        let has_cpu = |nodes: &NodeSet| nodes.iter().any(|node| !host.cpus_of(node).is_empty());
        let memory = domain
            .memory_nodes(self.cell)
            .map(|nodes| nodes.intersection(&host.node_set()))
            .filter(|nodes| if needs_cpu { has_cpu(nodes) } else { !nodes.is_empty() });
        let cpus = self.bound_cpus(bindings);
        let of_cpus: Option<NodeSet> = cpus.map(|cpus| {
            let named = host.cpus.iter().filter(|cpu| cpus.contains(cpu.id));
            named.filter_map(|cpu| cpu.node).collect()
        });
        let of_cpus = of_cpus.filter(has_cpu);
        match (memory, of_cpus) {
            (Some(memory), Some(of_cpus)) => {
                let both = memory.intersection(&of_cpus);
                Some(if both.is_empty() { memory } else { both })
            }
            (memory, of_cpus) => memory.or(of_cpus),
        }
    }

    /// The CPUs of all its vCPUs that are bound; none if none is.
    fn bound_cpus(&self, bindings: &VcpuBindings<'_>) -> Option<CpuSet> {
        let bound = self.vcpus.iter().filter_map(|vcpu| bindings.of(vcpu));
        bound.map(|cpus| cpus.value.clone()).reduce(|all, cpus| all.union(&cpus))
    }
}

/// libvirt takes the size of ordinary pages for no huge pages.
fn page_size(bytes: u64) -> PageSize {
    if bytes > SMALLEST_PAGE_BYTES { PageSize::Huge(bytes) } else { PageSize::Base }
}

/// The size of huge pages that `<hugepages>` without a size means on this host.
fn usual_huge_page(host: &Topology, notes: &mut Vec<String>) -> u64 {
    let pools = host.nodes.iter().flat_map(|node| &node.huge_pages);
    let mut sizes: Vec<u64> = pools.map(|pool| pool.page_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let bytes = match sizes[..] {
        [only] => only,
        _ => USUAL_HUGE_PAGE_BYTES,
    };
    let note = format!(
        "<hugepages> names no size: pages of {} are assumed",
        nearside_policy::Bytes(bytes)
    );
    if !notes.contains(&note) {
        notes.push(note);
    }
    bytes
}
