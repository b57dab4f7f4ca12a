//! The part of the model that says where a domain's memory lies and in which pages.

use crate::{
    id::{CellId, CellSet},
    position::{Located, Span},
};
use nearside_topology::NodeSet;
use std::fmt;

/// The modes of `<numatune>`. Default is libvirt's own default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryMode {
    /// Only from the node set.
    #[default]
    Strict,
    /// From the node set; if that is full, from other nodes.
    Preferred,
    /// From the nodes of the set in turn.
    Interleave,
    /// As far as the cgroup's `cpuset.mems` confines it; QEMU gets no policy.
    Restrictive,
}

impl MemoryMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Strict, Self::Preferred, Self::Interleave, Self::Restrictive];

    /// The word in XML.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Preferred => "preferred",
            Self::Interleave => "interleave",
            Self::Restrictive => "restrictive",
        }
    }
}

impl fmt::Display for MemoryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The source of a binding (`placement=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The XML states it.
    Static,
    /// libvirt asks `numad` at each start.
    Auto,
}

/// A mode as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenMode {
    /// A mode of libvirt.
    Known(MemoryMode),
    /// A policy of Linux or another program that neither libvirt nor QEMU's memory backends know.
    Foreign(&'static str),
}

impl WrittenMode {
    /// Policies of Linux (`mm/mempolicy.c`), and of Nearside, that libvirt has no word for.
    pub const FOREIGN: [&'static str; 5] =
        ["preferred-many", "weighted-interleave", "local", "bind", "default"];

    /// The mode if libvirt knows it.
    pub fn known(self) -> Option<MemoryMode> {
        match self {
            Self::Known(mode) => Some(mode),
            Self::Foreign(_) => None,
        }
    }
}

/// `<numatune>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numatune {
    /// The start tag.
    pub span: Span,
    /// `<memory>`: the binding of all memory.
    pub memory: Option<MemoryBinding>,
    /// `<memnode>`: the bindings of single cells.
    pub memnodes: Vec<Memnode>,
}

/// `<numatune><memory>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBinding {
    /// The start tag.
    pub span: Span,
    /// `mode=`.
    pub mode: Option<Located<WrittenMode>>,
    /// `placement=`.
    pub placement: Option<Located<Choice>>,
    /// `nodeset=`.
    pub nodeset: Option<Located<NodeSet>>,
}

/// `<numatune><memnode>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memnode {
    /// The start tag.
    pub span: Span,
    /// The cell.
    pub cell: Located<CellId>,
    /// `mode=`.
    pub mode: Option<Located<WrittenMode>>,
    /// The host's nodes.
    pub nodeset: Located<NodeSet>,
}

/// `<memoryBacking>`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backing {
    /// `<hugepages>`.
    pub huge_pages: Option<HugePages>,
    /// `<locked>`: the memory is locked, and so touched, at the start.
    pub locked: Option<Span>,
    /// `<nosharepages>`: the kernel merges no equal pages.
    pub no_merging: Option<Span>,
    /// `<source type=...>`.
    pub source: Option<Located<BackingSource>>,
    /// `<allocation mode=...>`.
    pub allocation: Option<Located<Allocation>>,
    /// `<access mode=...>`: true if other processes share the memory.
    pub is_shared: Option<Located<bool>>,
}

/// The kind of memory behind the guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackingSource {
    /// Memory of the process.
    Anonymous,
    /// A file in a folder.
    File,
    /// A file without a name, which other processes can map.
    Memfd,
}

/// The time at which memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// All of it before the guest starts.
    Immediate,
    /// When the guest touches it.
    OnDemand,
}

/// `<hugepages>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugePages {
    /// The start tag.
    pub span: Span,
    /// The sizes; with none, the host's default size serves all memory.
    pub pages: Vec<HugePage>,
}

/// `<hugepages><page>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugePage {
    /// The start tag.
    pub span: Span,
    /// The size of a page in bytes.
    pub bytes: Located<u64>,
    /// The cells whose memory has this size; none means every other cell.
    pub cells: Option<Located<CellSet>>,
}

impl HugePages {
    /// The page that serves a cell, if its size is written.
    pub fn of(&self, cell: CellId) -> Option<&HugePage> {
        let named =
            |page: &&HugePage| page.cells.as_ref().is_some_and(|cells| cells.value.contains(cell));
        let rest = || self.pages.iter().find(|page| page.cells.is_none());
        self.pages.iter().find(named).or_else(rest)
    }
}

/// The kinds of memory devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryModel {
    /// A memory module that can be plugged in.
    Dimm,
    /// Memory that keeps its content.
    Nvdimm,
    /// Memory that the guest returns and gets in blocks.
    VirtioMem,
    /// A file as memory that keeps its content.
    VirtioPmem,
    /// Memory of an enclave.
    SgxEpc,
}

/// `<devices><memory>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryDevice {
    /// The start tag.
    pub span: Span,
    /// `model=`.
    pub model: Located<MemoryModel>,
    /// `<target><size>` in bytes.
    pub bytes: Option<Located<u64>>,
    /// `<target><requested>` in bytes: the part of virtio-mem that the guest shall take.
    pub requested_bytes: Option<Located<u64>>,
    /// `<target><node>`: the cell.
    pub cell: Option<Located<CellId>>,
    /// `<source><nodemask>`: the host's nodes.
    pub nodes: Option<Located<NodeSet>>,
    /// `<source><pagesize>` in bytes.
    pub page_bytes: Option<Located<u64>>,
}

/// `<devices><shmem>`: memory that guests share, of the size in bytes.
pub type SharedMemory = Located<u64>;

impl MemoryDevice {
    /// Its size if libvirt counts it as memory of the domain. Memory for files and enclaves is not
    /// counted.
    pub fn ram_bytes(&self) -> Option<u64> {
        match self.model.value {
            MemoryModel::Dimm | MemoryModel::Nvdimm | MemoryModel::VirtioMem => {
                self.bytes.as_ref().map(|bytes| bytes.value)
            }
            MemoryModel::VirtioPmem | MemoryModel::SgxEpc => None,
        }
    }
}
