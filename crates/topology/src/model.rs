//! The machine itself.

use crate::{
    distance::Distances,
    id::{CpuId, CpuSet, NodeId, NodeSet, Pxm},
    tiers::MemoryTiers,
};
use alloc::{collections::BTreeSet, string::String, vec::Vec};

/// A NUMA machine: its parts and the distances between them.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Topology {
    /// The source it was read from, for messages: a path, a table, "fake=4 over ...".
    pub source: String,
    /// The nodes in rising order of their numbers, which may have gaps.
    pub nodes: Vec<Node>,
    /// The CPUs in rising order, offline ones included.
    pub cpus: Vec<Cpu>,
    /// The distances between the nodes.
    pub distances: Distances,
    /// Latency and bandwidth between nodes, as far as firmware gives them (HMAT).
    pub performance: Vec<Performance>,
    /// The classes of memory by speed.
    #[cfg_attr(feature = "serde", serde(default))]
    pub memory_tiers: MemoryTiers,
    /// Devices with the node that they are near.
    pub devices: Vec<Device>,
    /// Explicit huge pages that are reserved and not touched yet, by rising page size.
    pub reserved_huge_pages: Vec<ReservedHugePages>,
    /// CPUs that the kernel's scheduler leaves to threads bound to them (`isolcpus=`, isolated
    /// cpusets).
    pub isolated_cpus: CpuSet,
    /// The path of the isolated partition that all domains are in; none if they are in none.
    #[cfg_attr(feature = "serde", serde(default))]
    pub isolated_partition: Option<String>,
    /// The part that domains may not use.
    pub withheld: Withheld,
}

/// A NUMA node: CPUs, memory, both, or neither.
#[derive(Debug, Clone, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Node {
    /// The operating system's number.
    pub id: NodeId,
    /// Firmware's number; none if unknown.
    pub pxm: Option<Pxm>,
    /// Memory in bytes; 0 for a memoryless node, and if it is unknown.
    pub memory_bytes: u64,
    /// True if the amount of memory is unknown: the node may have any, and none can be claimed.
    pub memory_is_unknown: bool,
    /// The present use of the memory; none if only firmware's tables were read.
    pub state: Option<MemoryState>,
    /// The zones of the node's memory.
    pub zones: Vec<Zone>,
    /// Pools of explicit huge pages, by rising page size.
    pub huge_pages: Vec<HugePagePool>,
    /// Physical address ranges (SRAT).
    pub ranges: Vec<MemoryRange>,
}

/// The present use of a node's memory, in bytes (`/sys/devices/system/node/nodeN/meminfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryState {
    /// `MemFree`: memory in no use.
    pub free_bytes: u64,
    /// `Active(file)`: page cache in use.
    pub active_file_bytes: u64,
    /// `Inactive(file)`: page cache that would be reclaimed first.
    pub inactive_file_bytes: u64,
    /// `SReclaimable`: kernel caches that shrink under pressure.
    pub slab_reclaimable_bytes: u64,
}

/// A zone of a node (`/proc/zoneinfo`, `/proc/buddyinfo`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Zone {
    /// `DMA`, `DMA32`, `Normal`, `Movable`, `Device`.
    pub name: String,
    /// Memory that the page allocator manages, in bytes.
    pub managed_bytes: u64,
    /// Free memory in bytes.
    pub free_bytes: u64,
    /// Below this many free bytes `kswapd` starts to reclaim.
    pub low_watermark_bytes: u64,
    /// Up to this many free bytes `kswapd` reclaims.
    pub high_watermark_bytes: u64,
    /// The part of the free memory that is kept for allocations which cannot use the node's higher
    /// zones (`lowmem_reserve`).
    #[cfg_attr(feature = "serde", serde(default))]
    pub reserved_bytes: u64,
    /// Free blocks by order: entry `k` counts blocks of 2^k base pages.
    pub free_blocks: Vec<u64>,
}

/// A pool of explicit huge pages of one size on one node (`nodeN/hugepages/hugepages-*kB`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HugePagePool {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Pages in the pool, surplus ones included.
    pub total_pages: u64,
    /// Pages in no use.
    pub free_pages: u64,
    /// Pages beyond the configured number, given back when freed.
    pub surplus_pages: u64,
}

/// Explicit huge pages that were mapped and not touched yet (`resv_hugepages` in
/// `/sys/kernel/mm/hugepages`).
///
/// They still count as free in the nodes' pools. The node of each page is unknown until it is
/// touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReservedHugePages {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Their number on all nodes together.
    pub pages: u64,
}

/// CPUs and nodes that a cgroup above all domains allows them (`cpuset.cpus.effective`,
/// `cpuset.mems.effective`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// CPUs.
    pub cpus: CpuSet,
    /// Nodes on which they may have memory.
    pub memory_nodes: NodeSet,
    /// CPUs in isolated partitions anywhere (`cpuset.cpus.isolated` of the root).
    pub isolated_cpus: CpuSet,
    /// The path of the cgroup.
    pub by: String,
    /// The path of the isolated partition that this cgroup is or lies in; none if it does not.
    pub isolated_partition: Option<String>,
}

/// Parts of the machine that domains may not use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Withheld {
    /// Online CPUs that a cgroup above all domains does not allow.
    pub cpus: CpuSet,
    /// Nodes with memory that it does not allow.
    pub memory_nodes: NodeSet,
    /// The path of that cgroup.
    pub by: String,
}

/// A range of physical addresses (SRAT memory affinity structure).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryRange {
    /// First byte.
    pub start: u64,
    /// Bytes in the range.
    pub length_bytes: u64,
    /// True if memory may be added or removed here while the machine runs.
    pub hot_pluggable: bool,
    /// True if the memory keeps its content without power.
    pub non_volatile: bool,
}

/// A logical CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cpu {
    /// The operating system's number.
    pub id: CpuId,
    /// Its node; none if unknown, as for a CPU that was never online.
    pub node: Option<NodeId>,
    /// True if it is online now, or if no file has its state.
    pub online: bool,
    /// The socket; none if unknown.
    pub package: Option<u32>,
    /// The core, named by its lowest CPU: CPUs with the same value are SMT siblings.
    pub core: CpuId,
    /// The last-level cache, named by the lowest CPU that shares it; none if unknown.
    pub last_level_cache: Option<CpuId>,
    /// Firmware's number of the CPU: (x2)APIC id, or ACPI processor UID on Arm and RISC-V.
    pub firmware_id: Option<u32>,
}

impl Cpu {
    /// An online CPU that shares neither its core nor a known cache with another.
    pub fn new(id: CpuId, node: NodeId) -> Self {
        Self {
            id,
            node: Some(node),
            online: true,
            package: None,
            core: id,
            last_level_cache: None,
            firmware_id: None,
        }
    }
}

/// The class of initiators of a figure (`accessN` of a node in sysfs; Linux,
/// `Documentation/admin-guide/mm/numaperf.rst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Access {
    /// The nearest initiator of any kind, CPUs and devices such as GPUs or NICs.
    Access0,
    /// The nearest initiator that has CPUs.
    Access1,
}

/// Measured or promised performance of memory on `target` for an initiator on `initiator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Performance {
    /// The class of initiators.
    pub access: Access,
    /// The node of the CPU (or device).
    pub initiator: NodeId,
    /// The node of the memory.
    pub target: NodeId,
    /// Read latency in nanoseconds.
    pub read_latency_ns: Option<u64>,
    /// Write latency in nanoseconds.
    pub write_latency_ns: Option<u64>,
    /// Read bandwidth in MB/s (10^6 bytes).
    pub read_bandwidth_mb_s: Option<u64>,
    /// Write bandwidth in MB/s (10^6 bytes).
    pub write_bandwidth_mb_s: Option<u64>,
}

/// A device near a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Device {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Its name: `0000:3b:00.0`, `eth0`, `nvme0n1`.
    pub name: String,
    /// Its node; none if the system does not know it (-1 in sysfs).
    pub node: Option<NodeId>,
    /// PCI class code (`0x020000`); none for other devices.
    pub class: Option<u32>,
}

/// The kinds of devices that a request can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum DeviceKind {
    /// A PCI function.
    Pci,
    /// A network interface.
    Netdev,
    /// A block device.
    Block,
}

impl Zone {
    /// Free memory that an allocation from any zone (movable pages, for example) can take before a
    /// watermark is reached, in millionths of that watermark (`__zone_watermark_ok` in Linux,
    /// `mm/page_alloc.c`).
    fn fill_ppm(&self, watermark_bytes: u64) -> u64 {
        let usable_bytes = self.free_bytes.saturating_sub(self.reserved_bytes);
        let ppm = u128::from(usable_bytes) * 1_000_000 / u128::from(watermark_bytes.max(1));
        u64::try_from(ppm).unwrap_or(u64::MAX)
    }
}

impl Node {
    /// The largest ratio of a zone's free memory to its watermark, in millionths: while one zone is
    /// above its watermark, the kernel does not reclaim (`pgdat_balanced` in Linux, `mm/vmscan.c`).
    /// A sum over zones would count the reserves of the lower ones. None if the zones are unknown.
    pub fn fill_ppm(&self, watermark_bytes: impl Fn(&Zone) -> u64) -> Option<u64> {
        let zones = self.zones.iter().filter(|zone| zone.name != "Device");
        zones.map(|zone| zone.fill_ppm(watermark_bytes(zone))).max()
    }

    /// Its memory in bytes; none if unknown.
    pub fn known_memory_bytes(&self) -> Option<u64> {
        (!self.memory_is_unknown).then_some(self.memory_bytes)
    }
}

impl Topology {
    /// The node with this number.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        let at = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        self.nodes.get(at)
    }

    /// The CPU with this number.
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        let at = self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        self.cpus.get(at)
    }

    /// The machine as domains may use it: CPUs that are isolated or not allowed count as offline,
    /// and nodes whose memory is not allowed as nodes without memory.
    #[must_use]
    pub fn offered(mut self, allowed: Option<&Allowed>) -> Self {
        for cpu in self.cpus.iter_mut().filter(|cpu| cpu.online) {
            if allowed.is_some_and(|allowed| allowed.isolated_cpus.contains(cpu.id)) {
                self.isolated_cpus.insert(cpu.id);
            }
            if allowed.is_some_and(|allowed| !allowed.cpus.contains(cpu.id)) {
                self.withheld.cpus.insert(cpu.id);
            }
            cpu.online =
                !self.withheld.cpus.contains(cpu.id) && !self.isolated_cpus.contains(cpu.id);
        }
        if let Some(allowed) = allowed {
            let may_have_memory = |node: &Node| node.known_memory_bytes() != Some(0);
            let is_withheld =
                |node: &&mut Node| may_have_memory(node) && !allowed.memory_nodes.contains(node.id);
            for node in self.nodes.iter_mut().filter(is_withheld) {
                self.withheld.memory_nodes.insert(node.id);
                *node = Node { id: node.id, pxm: node.pxm, ..Node::default() };
            }
            self.withheld.by.clone_from(&allowed.by);
            self.isolated_partition.clone_from(&allowed.isolated_partition);
        }
        self
    }

    /// The nodes of each memory tier that is slower than those of all nodes with CPUs, the fastest
    /// first.
    pub fn lower_memory_tiers(&self) -> Vec<&NodeSet> {
        self.memory_tiers.below(&self.cpus.iter().filter_map(|cpu| cpu.node).collect())
    }

    /// Isolated CPUs of these nodes that are not offered, but could be.
    pub fn isolated_of(&self, nodes: &NodeSet) -> CpuSet {
        let is_isolated = |cpu: &&Cpu| {
            self.isolated_cpus.contains(cpu.id) && !self.withheld.cpus.contains(cpu.id)
        };
        let on = |cpu: &&Cpu| cpu.node.is_some_and(|node| nodes.contains(node));
        self.cpus.iter().filter(is_isolated).filter(on).map(|cpu| cpu.id).collect()
    }

    /// The machine for a request that names these nodes, which offers their isolated CPUs, too.
    #[must_use]
    pub fn with_isolated_of(mut self, nodes: &NodeSet) -> Self {
        let named = self.isolated_of(nodes);
        self.cpus.iter_mut().filter(|cpu| named.contains(cpu.id)).for_each(|cpu| cpu.online = true);
        self
    }

    /// The numbers of all nodes.
    pub fn node_set(&self) -> NodeSet {
        self.nodes.iter().map(|node| node.id).collect()
    }

    /// The numbers of the nodes with memory.
    pub fn memory_nodes(&self) -> NodeSet {
        self.nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id).collect()
    }

    /// The numbers of the nodes whose amount of memory is unknown.
    pub fn nodes_of_unknown_memory(&self) -> NodeSet {
        self.nodes.iter().filter(|node| node.memory_is_unknown).map(|node| node.id).collect()
    }

    /// The nodes with memory, and those of which it is unknown.
    pub fn nodes_that_may_have_memory(&self) -> NodeSet {
        self.memory_nodes().union(&self.nodes_of_unknown_memory())
    }

    /// The online CPUs of a node.
    pub fn cpus_of(&self, node: NodeId) -> CpuSet {
        self.cpus
            .iter()
            .filter(|cpu| cpu.online && cpu.node == Some(node))
            .map(|cpu| cpu.id)
            .collect()
    }

    /// The online CPUs of several nodes.
    pub fn cpus_of_nodes(&self, nodes: &NodeSet) -> CpuSet {
        let on = |cpu: &&Cpu| cpu.online && cpu.node.is_some_and(|node| nodes.contains(node));
        self.cpus.iter().filter(on).map(|cpu| cpu.id).collect()
    }

    /// The number of a node's cores with an online CPU.
    pub fn cores_of(&self, node: NodeId) -> usize {
        let on = self.cpus.iter().filter(|cpu| cpu.online && cpu.node == Some(node));
        on.map(|cpu| cpu.core).collect::<BTreeSet<_>>().len()
    }

    /// Memory of the whole machine in bytes, without nodes whose amount is unknown.
    pub fn memory_bytes(&self) -> u64 {
        self.nodes.iter().map(|node| node.memory_bytes).fold(0, u64::saturating_add)
    }

    /// Bytes in huge pages of this size that were reserved and not touched yet.
    pub fn reserved_huge_bytes(&self, page_bytes: u64) -> u64 {
        let of_size =
            self.reserved_huge_pages.iter().filter(|reserved| reserved.page_bytes == page_bytes);
        of_size
            .map(|reserved| reserved.pages.saturating_mul(page_bytes))
            .fold(0, u64::saturating_add)
    }

    /// Performance of memory on `target` seen from CPUs on `initiator`; none if firmware does not
    /// give it.
    pub fn performance(&self, initiator: NodeId, target: NodeId) -> Option<&Performance> {
        let of_pair =
            self.performance.iter().filter(|p| p.initiator == initiator && p.target == target);
        // access1 is about CPUs alone, so it is the better figure for a vCPU.
        of_pair.max_by_key(|p| p.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn offline_cpus_count_neither_as_cpus_nor_as_cores() {
        let cpu =
            |id, core, online| Cpu { core: CpuId(core), online, ..Cpu::new(CpuId(id), NodeId(0)) };
        let machine = Topology {
            nodes: vec![Node::default()],
            cpus: vec![cpu(0, 0, true), cpu(1, 1, false), cpu(2, 0, true)],
            ..Topology::default()
        };
        assert_eq!(machine.cpus_of(NodeId(0)), CpuSet::from([CpuId(0), CpuId(2)]));
        assert_eq!(machine.cores_of(NodeId(0)), 1);
    }

    #[test]
    fn isolated_and_forbidden_cpus_are_not_offered() {
        let node = |id| Node { id: NodeId(id), memory_bytes: 1 << 30, ..Node::default() };
        let machine = Topology {
            nodes: (0..3).map(node).collect(),
            cpus: (0..6).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            isolated_cpus: CpuSet::from([CpuId(1), CpuId(4), CpuId(5)]),
            ..Topology::default()
        };
        let cpus = |machine: &Topology| format!("{}", machine.cpus_of_nodes(&machine.node_set()));
        let offered = machine.clone().offered(None);
        assert_eq!((cpus(&offered).as_str(), offered.memory_nodes().len()), ("0,2-3", 3));

        let set = |list: &str| list.parse().unwrap_or_default();
        let (allowed_cpus, memory_nodes) = ("0-2,4".parse().unwrap_or_default(), set("0,2"));
        let allowed = Allowed {
            cpus: allowed_cpus,
            memory_nodes,
            isolated_cpus: CpuSet::from([CpuId(2)]),
            by: "/x".into(),
            isolated_partition: None,
        };
        let unknown = Node { id: NodeId(1), memory_is_unknown: true, ..Node::default() };
        let with_unknown = Topology { nodes: vec![node(0), unknown, node(2)], ..machine.clone() };
        let withheld = with_unknown.offered(Some(&allowed));
        assert_eq!(
            (withheld.nodes_of_unknown_memory(), withheld.withheld.memory_nodes),
            (set(""), set("1"))
        );
        let offered = machine.offered(Some(&allowed));
        assert_eq!((cpus(&offered).as_str(), offered.memory_nodes()), ("0", set("0,2")));
        let withheld = &offered.withheld;
        assert_eq!(
            (format!("{}", withheld.cpus), &withheld.memory_nodes),
            ("3,5".into(), &set("1"))
        );
        // A request that names node 2 gets its isolated CPUs, but none that is not allowed.
        assert_eq!(cpus(&offered.clone().with_isolated_of(&set("2"))), "0,4");
        assert_eq!(cpus(&offered.with_isolated_of(&set("0-1"))), "0-2");
    }
}
