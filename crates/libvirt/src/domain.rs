//! The model of a domain: the CPUs, memory and devices in its XML.
//!
//! Absent elements are absent here; libvirt's defaults are methods. Spans point into the text that
//! was read.

use crate::{
    id::{CellId, IothreadId, VcpuId, VcpuSet},
    memory::{Backing, Choice, MemoryDevice, Numatune, SharedMemory},
    position::{Lines, Located, Position, Span},
};
use nearside_topology::{CpuSet, DeviceKind, Id, IdSet, NodeId, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// A libvirt domain as its XML describes it. [`Domain::read`](crate::Domain::read) makes one.
#[derive(Debug, Clone)]
pub struct Domain {
    pub(crate) text: String,
    pub(crate) lines: Lines,
    /// The start tag of `<domain>`.
    pub span: Span,
    /// The kind of hypervisor: `kvm`, `qemu`, ...
    pub kind: Option<Located<String>>,
    /// The domain's name.
    pub name: Option<Located<String>>,
    /// The guest's architecture, `x86_64` or `ppc64`; none if libvirt chooses that of the host.
    pub architecture: Option<Located<String>>,
    /// Its vCPUs.
    pub vcpus: Vcpus,
    /// `<memory>` in bytes.
    pub memory: Option<Located<u64>>,
    /// `<currentMemory>` in bytes.
    pub current_memory: Option<Located<u64>>,
    /// `<maxMemory>`: the bound for hot-plugged memory.
    pub max_memory: Option<MaxMemory>,
    /// `<cpu><topology>`.
    pub cpu_topology: Option<CpuTopology>,
    /// The cells, by rising number and without a gap.
    pub cells: Vec<Cell>,
    /// `<memoryBacking>`.
    pub backing: Backing,
    /// `<numatune>`.
    pub numatune: Option<Numatune>,
    /// `<cputune>`, as far as it names threads.
    pub pins: Pins,
    /// The threads for block devices.
    pub iothreads: Iothreads,
    /// Host devices, those of interfaces included.
    pub host_devices: Vec<HostDevice>,
    /// Memory devices.
    pub memory_devices: Vec<MemoryDevice>,
    /// Memory that guests share through files.
    pub shared_memory: Vec<SharedMemory>,
    /// The cells that PCI controllers are near to.
    pub controller_cells: Vec<Located<CellId>>,
    /// Devices whose other end is a process that maps the guest's memory.
    pub memory_sharers: Vec<Located<&'static str>>,
    /// `<launchSecurity type=...>`.
    pub launch_security: Option<Located<String>>,
}

impl Domain {
    /// The text that was read.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The position of a byte of the text.
    pub fn position(&self, byte: usize) -> Position {
        self.lines.position(&self.text, byte)
    }

    /// Whether memory can be plugged into a guest without cells: on POWER alone
    /// (`qemuDomainDefValidateMemoryHotplug`, `src/qemu/qemu_validate.c`).
    pub(crate) fn plugs_memory_without_cells(&self) -> bool {
        let architecture = self.architecture.as_ref().map(|it| it.value.as_str());
        matches!(architecture, Some("ppc64" | "ppc64le"))
    }

    /// Whether libvirt asks `numad` for the domain's nodes
    /// (`qemuProcessPrepareDomainNUMAPlacement`, `src/qemu/qemu_process.c`).
    pub fn asks_numad(&self) -> bool {
        let binding = self.numatune.as_ref().and_then(|numatune| numatune.memory.as_ref());
        let placement = binding.and_then(|binding| binding.placement.as_ref());
        self.vcpus.is_auto() || placement.is_some_and(|placement| placement.value == Choice::Auto)
    }

    /// The cell with this number.
    pub fn cell(&self, id: CellId) -> Option<&Cell> {
        self.cells.get(id.0 as usize)
    }

    /// The vCPUs of a cell. libvirt gives vCPUs that no cell names to cell 0
    /// (`qemuDomainDefNumaCPUsRectify`, `src/qemu/qemu_domain.c`).
    pub fn vcpus_of(&self, cell: &Cell) -> VcpuSet {
        let own = cell.cpus.as_ref().map(|cpus| cpus.value.clone()).unwrap_or_default();
        match cell.id {
            CellId(0) => own.union(&self.vcpus_of_no_cell()),
            _ => own,
        }
    }

    /// The vCPUs that no cell names; none if there are no cells.
    pub fn vcpus_of_no_cell(&self) -> VcpuSet {
        if self.cells.is_empty() {
            return VcpuSet::new();
        }
        let named = self.cells.iter().filter_map(|cell| cell.cpus.as_ref());
        let named = named.fold(VcpuSet::new(), |all, cpus| all.union(&cpus.value));
        self.vcpus.all().difference(&named)
    }

    /// The memory that the guest starts with, in bytes, memory devices included. libvirt takes the
    /// sum of the cells for `<memory>` (`virDomainDefPostParseMemory`, `src/conf/domain_conf.c`).
    pub fn memory_bytes(&self) -> u64 {
        if self.cells.is_empty() {
            return self.memory.as_ref().map_or(0, |memory| memory.value);
        }
        let cells = self.cells.iter().map(|cell| cell.memory_bytes.value);
        let devices = self.memory_devices.iter().filter_map(MemoryDevice::ram_bytes);
        cells.chain(devices).fold(0, u64::saturating_add)
    }

    /// The CPUs that the emulator's threads may run on; none if nothing binds them.
    pub fn emulator_cpus(&self) -> Option<&Located<CpuSet>> {
        self.pins.emulator.as_ref().or_else(|| self.vcpus.bound_cpus())
    }

    /// The CPUs that each vCPU may run on.
    pub fn vcpu_bindings(&self) -> VcpuBindings<'_> {
        let own = self.pins.vcpus.iter().map(|pin| (pin.id.value, &pin.cpus));
        VcpuBindings { own: own.collect(), all: self.vcpus.bound_cpus() }
    }
}

/// The CPUs that vCPUs may run on, for the look-up of thousands.
#[derive(Debug, Clone)]
pub struct VcpuBindings<'a> {
    own: BTreeMap<VcpuId, &'a Located<CpuSet>>,
    all: Option<&'a Located<CpuSet>>,
}

impl<'a> VcpuBindings<'a> {
    /// The CPUs that a vCPU may run on; none if nothing binds it.
    pub fn of(&self, vcpu: VcpuId) -> Option<&'a Located<CpuSet>> {
        self.own.get(&vcpu).copied().or(self.all)
    }
}

/// `<vcpu>` and `<vcpus>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vcpus {
    /// The start tag of `<vcpu>`, or of `<domain>` if there is none.
    pub span: Span,
    /// The number of vCPUs, those that are not plugged in included. It is 1 without `<vcpu>`.
    pub maximum: Located<u32>,
    /// The number of vCPUs at the start.
    pub current: Option<Located<u32>>,
    /// `placement=`.
    pub placement: Option<Located<Choice>>,
    /// `cpuset=`: the CPUs for threads without a binding of their own.
    pub cpuset: Option<Located<CpuSet>>,
    /// `<vcpus>`: each vCPU listed there, and whether it is enabled.
    pub listed: Vec<(VcpuId, bool)>,
}

impl Vcpus {
    /// All vCPUs.
    pub fn all(&self) -> VcpuSet {
        (0..self.maximum.value).map(VcpuId::new).collect()
    }

    /// The vCPUs that the guest starts with.
    pub fn online(&self) -> VcpuSet {
        if !self.listed.is_empty() {
            let enabled = self.listed.iter().filter(|(_, enabled)| *enabled);
            return enabled.map(|&(id, _)| id).collect();
        }
        let count = self.current.as_ref().map_or(self.maximum.value, |current| current.value);
        (0..count).map(VcpuId::new).collect()
    }

    /// Whether libvirt asks `numad` for the CPUs.
    pub fn is_auto(&self) -> bool {
        self.placement.as_ref().is_some_and(|placement| placement.value == Choice::Auto)
    }

    /// The CPUs that `cpuset=` binds threads to. libvirt ignores it under `placement='auto'`.
    pub fn bound_cpus(&self) -> Option<&Located<CpuSet>> {
        self.cpuset.as_ref().filter(|_| !self.is_auto())
    }
}

/// `<maxMemory>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaxMemory {
    /// The bound in bytes.
    pub bytes: Located<u64>,
    /// The number of slots for memory devices.
    pub slots: Option<Located<u32>>,
}

/// `<cpu><topology>`: the guest's sockets, dies, clusters, cores and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTopology {
    /// The start tag.
    pub span: Span,
    /// Sockets.
    pub sockets: u32,
    /// Dies of a socket.
    pub dies: u32,
    /// Clusters of a die.
    pub clusters: u32,
    /// Cores of a cluster.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
}

impl CpuTopology {
    /// All vCPUs, plugged in or not.
    pub fn vcpus(&self) -> u64 {
        self.vcpus_per_die().saturating_mul(u64::from(self.sockets) * u64::from(self.dies))
    }

    /// The vCPUs of a die.
    pub fn vcpus_per_die(&self) -> u64 {
        let clusters = u64::from(self.clusters) * u64::from(self.cores);
        clusters.saturating_mul(u64::from(self.threads))
    }
}

/// `<cpu><numa><cell>`: a node of the guest's own topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Its number: written, or its place in the list.
    pub id: CellId,
    /// The start tag.
    pub span: Span,
    /// Its vCPUs; none for a cell of memory alone.
    pub cpus: Option<Located<VcpuSet>>,
    /// Its memory in bytes.
    pub memory_bytes: Located<u64>,
    /// `memAccess=`: true if other processes share the memory.
    pub is_shared: Option<Located<bool>>,
    /// `discard=`: true if libvirt throws the memory's content away at the end.
    pub discard: Option<Located<bool>>,
    /// Its distances to cells, as far as they are written.
    pub distances: Vec<CellDistance>,
}

/// `<sibling>`: the distance from one cell to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellDistance {
    /// The other cell.
    pub to: Located<CellId>,
    /// The distance: 10 is local, 255 unreachable.
    pub value: Located<u8>,
}

/// The bindings and shares of `<cputune>`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pins {
    /// `<vcpupin>`.
    pub vcpus: Vec<Pin<VcpuId>>,
    /// `<emulatorpin>`.
    pub emulator: Option<Located<CpuSet>>,
    /// `<iothreadpin>`.
    pub iothreads: Vec<Pin<IothreadId>>,
    /// The vCPUs of each `<vcpusched>`.
    pub scheduled_vcpus: Vec<Located<VcpuSet>>,
    /// The iothreads of each `<iothreadsched>`.
    pub scheduled_iothreads: Vec<Located<IdSet<IothreadId>>>,
    /// `<cachetune>` and `<memorytune>`.
    pub shares: Vec<Share>,
}

/// vCPUs with a share of a cache or of the memory's bandwidth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The element's name.
    pub element: &'static str,
    /// Its vCPUs.
    pub vcpus: Located<VcpuSet>,
    /// Whether it names no cache, monitor or node. libvirt then drops it.
    pub is_empty: bool,
}

/// One thread and the CPUs that it may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin<T> {
    /// The start tag.
    pub span: Span,
    /// The thread.
    pub id: Located<T>,
    /// The host's CPUs.
    pub cpus: Located<CpuSet>,
}

/// `<iothreads>` and `<iothreadids>`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Iothreads {
    /// `<iothreads>`: their number.
    pub count: Option<Located<u32>>,
    /// `<iothreadids>`: numbers that are written.
    pub ids: Vec<Located<IothreadId>>,
    /// The threads that disks and controllers name.
    pub used: Vec<Located<IothreadId>>,
    /// The block devices of the host that threads serve: `nvme0n1` for `/dev/nvme0n1`.
    pub disks: Vec<(IothreadId, String)>,
}

impl Iothreads {
    /// The numbers of all iothreads. libvirt gives threads without a number the lowest free ones,
    /// from 1 (`virDomainDefIOThreadsAutoFill`).
    pub fn all(&self) -> BTreeSet<IothreadId> {
        let mut all: BTreeSet<_> = self.ids.iter().map(|id| id.value).collect();
        let count = self.count.as_ref().map_or(0, |count| count.value as usize);
        let missing = count.saturating_sub(all.len());
        let free: Vec<_> =
            (1..).map(IothreadId).filter(|id| !all.contains(id)).take(missing).collect();
        all.extend(free);
        all
    }
}

/// A device of the host that the guest uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDevice {
    /// The start tag of its element.
    pub span: Span,
    /// The kind of device, with its name on the host.
    pub kind: HostDeviceKind,
}

/// The kinds of host devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostDeviceKind {
    /// A PCI function (`0000:3b:00.0`), given to the guest by VFIO.
    Pci(String),
    /// A part of a device that its driver divides (`mdev`), given by VFIO.
    Mediated,
    /// A vhost-vdpa device.
    Vdpa(String),
    /// A network interface of the host below the guest's (`type='direct'`).
    Netdev(String),
}

impl HostDevice {
    /// The device's name and its node, if the host knows both.
    pub fn node<'a>(&'a self, host: &Topology) -> Option<(&'a str, NodeId)> {
        let (kind, name) = match &self.kind {
            HostDeviceKind::Pci(name) => (DeviceKind::Pci, name),
            HostDeviceKind::Netdev(name) => (DeviceKind::Netdev, name),
            HostDeviceKind::Mediated | HostDeviceKind::Vdpa(_) => return None,
        };
        let known = host.devices.iter().find(|known| known.kind == kind && known.name == *name)?;
        Some((name, known.node?))
    }

    /// Whether the device's driver pins all memory of the guest, so that no page can move.
    pub fn pins_memory(&self) -> bool {
        !matches!(self.kind, HostDeviceKind::Netdev(_))
    }
}
