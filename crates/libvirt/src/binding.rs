//! The nodes that bind a domain's memory, as libvirt understands its XML.

use crate::{
    domain::{Cell, Domain},
    memory::{Choice, MemoryMode, Numatune, WrittenMode},
    position::Located,
};
use nearside_topology::NodeSet;

/// A binding of memory to nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binding<'a> {
    /// The mode; none if libvirt does not know it.
    pub(crate) mode: Option<MemoryMode>,
    /// The host's nodes.
    pub(crate) nodes: &'a Located<NodeSet>,
}

/// The mode in force where `mode` is written; none if libvirt does not know it.
pub(crate) fn in_force(mode: Option<&Located<WrittenMode>>) -> Option<MemoryMode> {
    mode.map_or(Some(MemoryMode::default()), |mode| mode.value.known())
}

/// Whether numad chooses the nodes. Without `<memory>` the vCPUs' placement counts for memory, too
/// (`virDomainNumatuneParseXML` and its caller, `src/conf/numa_conf.c`).
pub(crate) fn is_auto(domain: &Domain) -> bool {
    let memory = domain.numatune.as_ref().and_then(|numatune| numatune.memory.as_ref());
    match memory {
        None => domain.vcpus.is_auto(),
        Some(memory) => match &memory.placement {
            Some(placement) => placement.value == Choice::Auto,
            None => memory.nodeset.is_none() && domain.vcpus.is_auto(),
        },
    }
}

/// The binding of all memory by `<numatune><memory>`.
pub(crate) fn of_domain(domain: &Domain) -> Option<Binding<'_>> {
    let memory = domain.numatune.as_ref()?.memory.as_ref().filter(|_| !is_auto(domain))?;
    Some(Binding { mode: in_force(memory.mode.as_ref()), nodes: memory.nodeset.as_ref()? })
}

/// The binding of a cell: its `<memnode>`, or that of all memory.
pub(crate) fn of_cell<'a>(domain: &'a Domain, cell: &Cell) -> Option<Binding<'a>> {
    let memnodes = domain.numatune.iter().flat_map(|numatune: &Numatune| &numatune.memnodes);
    let own = memnodes.into_iter().find(|memnode| memnode.cell.value == cell.id);
    let own = own
        .map(|memnode| Binding { mode: in_force(memnode.mode.as_ref()), nodes: &memnode.nodeset });
    own.or_else(|| of_domain(domain))
}

impl Domain {
    /// The mode that the XML gives all memory; none if it has no `<numatune><memory>`, or a mode
    /// that libvirt does not know.
    pub fn written_mode(&self) -> Option<MemoryMode> {
        let memory = self.numatune.as_ref()?.memory.as_ref()?;
        in_force(memory.mode.as_ref())
    }

    /// The mode of all memory once the domain is completed with `asked`. libvirt rejects the mode
    /// restrictive beside another one, so a `<memnode>` may leave no choice.
    pub fn completed_mode(&self, asked: MemoryMode) -> MemoryMode {
        let numatune = self.numatune.as_ref().filter(|numatune| numatune.memory.is_none());
        let of_cell = numatune.and_then(|numatune| numatune.memnodes.first());
        let restricts =
            of_cell.map(|memnode| in_force(memnode.mode.as_ref()) == Some(MemoryMode::Restrictive));
        match (self.written_mode(), restricts) {
            (Some(written), _) => written,
            (None, Some(true)) => MemoryMode::Restrictive,
            (None, Some(false)) if asked == MemoryMode::Restrictive => MemoryMode::Strict,
            (None, _) => asked,
        }
    }

    /// The nodes that the memory of a cell, or of a domain without cells, is bound to; none if
    /// nothing binds it.
    pub fn memory_nodes(&self, cell: Option<&Cell>) -> Option<&NodeSet> {
        let binding = match cell {
            Some(cell) => of_cell(self, cell),
            None => of_domain(self),
        };
        binding.map(|binding| &binding.nodes.value)
    }
}

/// Memory with one binding: a cell, a memory device, or a whole domain without cells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    /// Bytes.
    pub(crate) bytes: u64,
    /// The size of its huge pages if that is written; 0 stands for the host's default size.
    pub(crate) huge_page_bytes: Option<u64>,
    /// Its binding.
    pub(crate) binding: Option<Binding<'a>>,
}

/// libvirt takes the size of ordinary pages for no huge pages, and no machine's are smaller than
/// these. 0 stands for the host's default size of huge pages.
fn is_huge(page_bytes: &u64) -> bool {
    *page_bytes == 0 || *page_bytes > 4096
}

/// All memory of a domain.
pub(crate) fn blocks(domain: &Domain) -> Vec<Block<'_>> {
    let pages = domain.backing.huge_pages.as_ref();
    let page_bytes = |cell| {
        let bytes = pages.map(|pages| pages.of(cell).map_or(0, |page| page.bytes.value));
        bytes.filter(is_huge)
    };
    if domain.cells.is_empty() {
        let Some(memory) = &domain.memory else { return Vec::new() };
        return vec![Block {
            bytes: memory.value,
            huge_page_bytes: page_bytes(crate::CellId(0)),
            binding: of_domain(domain),
        }];
    }
    let cells = domain.cells.iter().map(|cell| Block {
        bytes: cell.memory_bytes.value,
        huge_page_bytes: page_bytes(cell.id),
        binding: of_cell(domain, cell),
    });
    let devices = domain.memory_devices.iter().filter_map(|device| {
        let cell = domain.cell(device.cell.as_ref()?.value)?;
        let of_cell = of_cell(domain, cell);
        let binding = match &device.nodes {
            Some(nodes) => Some(Binding { mode: Some(MemoryMode::Strict), nodes }),
            None => of_cell,
        };
        let own = device.page_bytes.as_ref().map(|bytes| bytes.value);
        Some(Block {
            bytes: device.ram_bytes()?,
            huge_page_bytes: own
                .map_or_else(|| page_bytes(cell.id), |own| Some(own).filter(is_huge)),
            binding,
        })
    });
    cells.chain(devices).collect()
}
