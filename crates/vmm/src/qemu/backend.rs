//! Memory backends (QEMU, `qapi/qom.json`: `MemoryBackendProperties`).

use crate::{
    grammar::{Keys, set},
    model::PageSize,
};
use nearside_topology::{NodeId, NodeSet};

/// A memory backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    /// Its argument.
    pub(crate) at: usize,
    pub(crate) bytes: u64,
    pub(crate) page_size: PageSize,
    pub(crate) host_nodes: Option<NodeSet>,
    pub(crate) preallocates: bool,
    pub(crate) has_context: bool,
}

impl Backend {
    /// Reads the keys of the argument `number`.
    pub(super) fn read(number: usize, keys: &Keys) -> Result<Self, String> {
        let bytes = keys.size("size", 1)?.filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or("a memory backend needs size=, above 0")?;
        let page_size = match (keys.get("mem-path"), keys.is_on("hugetlb")) {
            (Some(path), _) => PageSize::Path(path.into()),
            (None, true) => {
                keys.size("hugetlbsize", 1)?.map_or(PageSize::DefaultHuge, PageSize::Huge)
            }
            (None, false) => PageSize::Base,
        };
        let mut host_nodes = NodeSet::new();
        for list in keys.all("host-nodes") {
            host_nodes = host_nodes.union(&set::<NodeId>(list)?);
        }
        Ok(Self {
            at: number,
            bytes,
            page_size,
            host_nodes: (!host_nodes.is_empty()).then_some(host_nodes),
            preallocates: keys.is_on("prealloc"),
            has_context: keys.get("prealloc-context").is_some(),
        })
    }
}
