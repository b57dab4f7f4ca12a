//! A machine as one JSON object (docs/formats.md).

use super::topology_text::{free_bytes, memory_bytes};
use nearside_topology::{
    Cpu, CpuId, Device, DeviceKind, Distance, HugePagePool, MemoryRange, MemoryTier, Node, NodeId,
    Performance, Pxm, ReservedHugePages, Topology, Zone, machine_file::Costs,
};
use serde::Serialize;

/// The whole report.
#[derive(Serialize)]
pub(crate) struct Machine<'a> {
    source: &'a str,
    nodes_count: usize,
    cpus: usize,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    nodes: Vec<NodeReport<'a>>,
    cpu_list: Vec<CpuReport>,
    performance: &'a [Performance],
    memory_tiers: Vec<TierReport>,
    demotion_enabled: Option<bool>,
    devices: Vec<DeviceReport<'a>>,
    reserved_huge_pages: &'a [ReservedHugePages],
    isolated_cpus: Vec<CpuId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    machine_file: Option<&'a Costs>,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(topology: &'a Topology) -> Self {
        Self::with_costs(topology, None)
    }

    /// The report on a machine that a machine file describes.
    pub(crate) fn with_costs(topology: &'a Topology, costs: Option<&'a Costs>) -> Self {
        Self {
            source: &topology.source,
            nodes_count: topology.nodes.len(),
            cpus: topology.cpus.iter().filter(|cpu| cpu.online).count(),
            memory_bytes: memory_bytes(topology),
            free_bytes: free_bytes(topology),
            nodes: topology.nodes.iter().map(|node| NodeReport::new(topology, node)).collect(),
            cpu_list: topology.cpus.iter().map(CpuReport::new).collect(),
            performance: &topology.performance,
            memory_tiers: topology.memory_tiers.tiers.iter().map(TierReport::new).collect(),
            demotion_enabled: topology.memory_tiers.demotion_enabled,
            devices: topology.devices.iter().map(DeviceReport::new).collect(),
            reserved_huge_pages: &topology.reserved_huge_pages,
            isolated_cpus: topology.isolated_cpus.iter().collect(),
            machine_file: costs,
        }
    }
}

#[derive(Serialize)]
struct TierReport {
    tier: u32,
    nodes: Vec<NodeId>,
}

impl TierReport {
    fn new(tier: &MemoryTier) -> Self {
        Self { tier: tier.number, nodes: tier.nodes.iter().collect() }
    }
}

#[derive(Serialize)]
struct NodeReport<'a> {
    node: NodeId,
    pxm: Option<Pxm>,
    cpus: Vec<CpuId>,
    cores: usize,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    active_file_bytes: Option<u64>,
    inactive_file_bytes: Option<u64>,
    slab_reclaimable_bytes: Option<u64>,
    distances: Vec<Distance>,
    zones: &'a [Zone],
    huge_pages: &'a [HugePagePool],
    ranges: &'a [MemoryRange],
}

impl<'a> NodeReport<'a> {
    fn new(topology: &'a Topology, node: &'a Node) -> Self {
        let state = node.state;
        Self {
            node: node.id,
            pxm: node.pxm,
            cpus: topology.cpus_of(node.id).iter().collect(),
            cores: topology.cores_of(node.id),
            memory_bytes: node.known_memory_bytes(),
            free_bytes: state.map(|state| state.free_bytes),
            active_file_bytes: state.map(|state| state.active_file_bytes),
            inactive_file_bytes: state.map(|state| state.inactive_file_bytes),
            slab_reclaimable_bytes: state.map(|state| state.slab_reclaimable_bytes),
            distances: topology
                .nodes
                .iter()
                .map(|to| topology.distances.get(node.id, to.id))
                .collect(),
            zones: &node.zones,
            huge_pages: &node.huge_pages,
            ranges: &node.ranges,
        }
    }
}

#[derive(Serialize)]
struct CpuReport {
    cpu: CpuId,
    node: Option<NodeId>,
    online: bool,
    package: Option<u32>,
    core: CpuId,
    last_level_cache: Option<CpuId>,
    firmware_id: Option<u32>,
}

impl CpuReport {
    fn new(cpu: &Cpu) -> Self {
        let &Cpu { id, node, online, package, core, last_level_cache, firmware_id } = cpu;
        Self { cpu: id, node, online, package, core, last_level_cache, firmware_id }
    }
}

#[derive(Serialize)]
struct DeviceReport<'a> {
    kind: DeviceKind,
    name: &'a str,
    node: Option<NodeId>,
    class: Option<String>,
}

impl<'a> DeviceReport<'a> {
    fn new(device: &'a Device) -> Self {
        // The format of sysfs and lspci.
        let class = device.class.map(|class| format!("{class:#08x}"));
        Self { kind: device.kind, name: &device.name, node: device.node, class }
    }
}
