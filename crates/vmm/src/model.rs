//! A virtual machine as its command line describes it.

use nearside_topology::{Distance, Id, IdSet, NodeSet};
use std::{collections::BTreeMap, fmt};

/// A vCPU by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VcpuId(pub u32);

impl Id for VcpuId {
    const WHAT: &'static str = "vCPU";
    fn new(number: u32) -> Self {
        Self(number)
    }
    fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for VcpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for VcpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vCPU {}", self.0)
    }
}

/// A set of vCPUs.
pub type VcpuSet = IdSet<VcpuId>;

/// The pages of a cell's memory on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PageSize {
    /// Base pages.
    #[default]
    Base,
    /// Pages of a pool, of this many bytes.
    Huge(u64),
    /// Pages of a pool, of the host's default size.
    DefaultHuge,
    /// The pages of the file system with this path.
    Path(String),
}

/// A cell: a node of the guest's own topology.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    /// Its vCPUs; those that can be plugged in later included.
    pub vcpus: VcpuSet,
    /// Its memory in bytes.
    pub bytes: u64,
    /// The pages of that memory.
    pub page_size: PageSize,
    /// The names of the memory backend (QEMU), or of the memory zones (cloud-hypervisor).
    pub backends: Vec<String>,
    /// The host's nodes that the operator binds its memory to.
    pub host_nodes: Option<NodeSet>,
    /// The memory of devices that belong to it.
    pub devices: Vec<DeviceMemory>,
}

/// Memory that a device brings, beside the memory of its cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The name of the memory backend (QEMU), or of the memory zone (cloud-hypervisor).
    pub backend: String,
    /// The bytes that the guest has of it from the start on.
    pub bytes: u64,
    /// Its pages.
    pub page_size: PageSize,
    /// The host's nodes that the operator binds it to.
    pub host_nodes: Option<NodeSet>,
}

/// A binding of memory that the operator states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The cell that has the memory.
    pub cell: usize,
    /// The argument that states it. The program is argument 0.
    pub argument: usize,
    /// The memory's kind and name.
    pub memory: String,
    /// The host's nodes.
    pub nodes: NodeSet,
}

/// Texts of files that a command line names (`-readconfig`), by the path that it states.
pub type ConfigFiles = BTreeMap<String, String>;

/// A virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vm {
    /// Its name.
    pub name: Option<String>,
    /// The number of vCPUs that it starts with.
    pub vcpus: u32,
    /// The largest number of vCPUs that it may have.
    pub max_vcpus: u32,
    /// Its memory in bytes.
    pub bytes: u64,
    /// Its cells by number. A virtual machine whose command line states none has one.
    pub cells: Vec<Cell>,
    /// The names of its memory backends, in the order of their creation; QEMU's alone.
    pub backends: Vec<String>,
    /// Whether the command line states the cells.
    pub states_cells: bool,
    /// The guest's distances as stated, by the cells from and to.
    pub distances: BTreeMap<(u32, u32), Distance>,
    /// The names of its I/O threads.
    pub iothreads: Vec<String>,
    /// The host's devices that it is given: PCI addresses, or paths below /sys.
    pub host_devices: Vec<String>,
    /// The paths of QMP's sockets.
    pub qmp_sockets: Vec<String>,
    /// Whether it touches all its memory at its start.
    pub preallocates: bool,
    /// Whether it locks its memory.
    pub locks_memory: bool,
}

impl Vm {
    /// The vCPUs of a cell that are plugged in at the start: monitors plug in the lowest numbers
    /// first (QEMU, `hw/i386/x86.c`: `x86_cpus_init`; cloud-hypervisor, `vmm/src/cpu.rs`:
    /// `create_boot_vcpus`).
    pub fn vcpus_at_start(&self, cell: &Cell) -> VcpuSet {
        cell.vcpus.iter().filter(|vcpu| vcpu.0 < self.vcpus).collect()
    }
}
