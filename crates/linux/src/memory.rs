//! The memory of a group: as the kernel charges it (`memory.numa_stat`), or as processes map it.

pub use crate::mappings::{
    Kind, Mapping, MemoryByKind, mapped, mapped_by, numa_maps, numa_stat, sum,
};

use crate::{
    cgroup::Cgroup,
    huge::{self, HugePages},
};
use nearside_policy::ByNode;
use nearside_topology::NodeId;
use std::path::Path;

/// Reads the memory of groups, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'p> {
    proc: &'p Path,
    has_huge_pages: bool,
}

impl<'p> Reader<'p> {
    /// Looks whether the machine has huge pages, once for all groups.
    pub(crate) fn new(proc: &'p Path) -> Self {
        Self { proc, has_huge_pages: huge::host_has_any(proc) }
    }

    /// As the function [`of_group`].
    pub(crate) fn of_group(self, group: &Cgroup) -> MemoryByKind {
        self.charged(group).unwrap_or_else(|| mapped_by(group, self.proc))
    }

    fn charged(self, group: &Cgroup) -> Option<MemoryByKind> {
        let text = group.read("memory.numa_stat").ok()??;
        let huge = match self.has_huge_pages {
            true => huge::of_group(group, self.proc),
            false => HugePages::new(),
        };
        Some(charged_by(&text, huge))
    }
}

/// The memory of a group: as the kernel charges it or, without that, as its processes map it.
pub fn of_group(group: &Cgroup, proc: &Path) -> MemoryByKind {
    Reader::new(proc).of_group(group)
}

/// The memory charged to a group and those below it; none without the memory controller.
///
/// The kernel charges a page to the group that touched it first, and its figures may lag by some
/// pages for each CPU.
pub fn charged(group: &Cgroup, proc: &Path) -> Option<MemoryByKind> {
    Reader::new(proc).charged(group)
}

/// The statistics that [`charged_by`] needs of the 27 or more in `memory.numa_stat`.
const COUNTED: [&str; 8] = [
    "anon",
    "file",
    "shmem",
    "file_mapped",
    "kernel_stack",
    "pagetables",
    "sec_pagetables",
    "slab_unreclaimable",
];

/// As [`charged`], from the text of `memory.numa_stat`.
pub(crate) fn charged_by(text: &str, huge: HugePages) -> MemoryByKind {
    let stat = numa_stat(text, &COUNTED);
    let of = |names: &[&str]| sum(names.iter().filter_map(|&name| stat.get(name)));
    let (files, shared) = (of(&["file"]), of(&["shmem"]));
    let without = |all: &ByNode, part: &ByNode| -> ByNode {
        all.iter().map(|(&node, &bytes)| (node, bytes.saturating_sub(on(part, node)))).collect()
    };
    // The kernel counts shared memory among the files.
    let file = without(&files, &shared);
    // All mapped file bytes could be shared memory. Shared memory beyond them is unmapped.
    let unmapped =
        stat.get("file_mapped").map_or_else(ByNode::new, |mapped| without(&shared, mapped));
    MemoryByKind {
        anonymous: of(&["anon"]),
        shared,
        file,
        kernel: of(&["kernel_stack", "pagetables", "sec_pagetables", "slab_unreclaimable"]),
        huge,
        unmapped,
    }
}

fn on(by_node: &ByNode, node: NodeId) -> u64 {
    by_node.get(&node).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::{Claim, PageSize};

    fn by_node(amounts: &[u64]) -> ByNode {
        let numbered =
            amounts.iter().enumerate().map(|(node, &amount)| (NodeId(node as u32), amount));
        numbered.filter(|(_, amount)| *amount > 0).collect()
    }

    #[test]
    fn a_group_is_charged_by_kind() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cgroup.controllers"), "memory").unwrap();
        let numa = "anon N0=100 N1=7\nfile N0=50 N1=0\nshmem N0=20 N1=0\nkernel_stack N0=1 N1=1\n\
                    pagetables N0=2 N1=0\n";
        std::fs::write(folder.path().join("memory.numa_stat"), numa).unwrap();
        std::fs::write(folder.path().join("meminfo"), "Hugetlb: 4194304 kB\n").unwrap();
        for (size, bytes) in [("2MB", 2 << 20), ("1GB", 1 << 30)] {
            let text = format!("total={bytes} N1={bytes}\nhugetlb=0 N1=0\n");
            std::fs::write(folder.path().join(format!("hugetlb.{size}.numa_stat")), text).unwrap();
            std::fs::write(
                folder.path().join(format!("hugetlb.{size}.current")),
                bytes.to_string(),
            )
            .unwrap();
        }
        let group = crate::cgroup::Tree::at(folder.path()).unwrap().group("/").unwrap();
        let memory = charged(&group, folder.path()).unwrap();
        assert_eq!(memory.own(), by_node(&[120, 7 + (2 << 20) + (1 << 30)]));
        assert_eq!(on(&memory.file, NodeId(0)), 30);
        assert_eq!(memory.resident(PageSize::Base), by_node(&[123, 8]));
        assert_eq!(memory.resident(PageSize::Huge(2 << 20)), by_node(&[0, 2 << 20]));
    }

    #[test]
    fn shared_memory_beyond_all_mapped_files_is_unmapped() {
        let unmapped = |text: &str| charged_by(text, HugePages::new()).unmapped_by_any(None);
        let cases: [(&str, &[u64]); 4] = [
            ("file N0=90 N1=9\nshmem N0=50 N1=9\nfile_mapped N0=20 N1=0", &[30, 9]),
            // The mapped bytes may belong to this file or to other files.
            ("file N0=90 N1=9\nshmem N0=50 N1=9\nfile_mapped N0=60 N1=9", &[]),
            ("file N0=90\nshmem N0=0\nfile_mapped N0=0", &[]),
            ("file N0=90\nshmem N0=50", &[]),
        ];
        for (text, expected) in cases {
            let found =
                unmapped(text).into_iter().filter(|(_, bytes)| *bytes > 0).collect::<ByNode>();
            assert_eq!(found, by_node(expected), "{text}");
        }
        let huge = Claim { page_size: PageSize::Huge(2 << 20), ..Claim::default() };
        let memory = charged_by(cases[0].0, HugePages::new());
        assert_eq!(memory.unmapped_by_any(Some(&huge)), ByNode::new());
    }
}
