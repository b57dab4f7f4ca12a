//! The counters of the page allocator on each node since boot
//! (`/sys/devices/system/node/nodeN/numastat`).

use nearside_topology::NodeId;
use serde::Serialize;
use std::{fs, path::Path};

/// One node's counters, in base pages (Linux, `Documentation/admin-guide/numastat.rst`).
///
/// All stay 0 while `/proc/sys/vm/numa_stat` is 0. Explicit huge pages are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// `numa_hit`: pages allocated here and wanted here.
    pub hit_pages: u64,
    /// `numa_miss`: pages allocated here although wanted on another node.
    pub miss_pages: u64,
    /// `numa_foreign`: pages wanted here and allocated on another node, where each is a miss.
    pub foreign_pages: u64,
    /// `interleave_hit`: pages allocated here as an interleaving policy wanted.
    pub interleave_hit_pages: u64,
    /// `local_node`: pages allocated here by a CPU of this node.
    pub local_node_pages: u64,
    /// `other_node`: pages allocated here by a CPU of another node.
    pub other_node_pages: u64,
}

impl Counters {
    /// The counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            hit_pages: self.hit_pages.saturating_sub(earlier.hit_pages),
            miss_pages: self.miss_pages.saturating_sub(earlier.miss_pages),
            foreign_pages: self.foreign_pages.saturating_sub(earlier.foreign_pages),
            interleave_hit_pages: self
                .interleave_hit_pages
                .saturating_sub(earlier.interleave_hit_pages),
            local_node_pages: self.local_node_pages.saturating_sub(earlier.local_node_pages),
            other_node_pages: self.other_node_pages.saturating_sub(earlier.other_node_pages),
        }
    }
}

/// The counters of a node; none on a kernel built without `CONFIG_NUMA`.
pub fn counters(root: &Path, node: NodeId) -> Option<Counters> {
    let file = root.join(format!("sys/devices/system/node/node{node}/numastat"));
    Some(parse(&fs::read_to_string(file).ok()?))
}

/// Lines such as `numa_hit 76557759`; a missing counter is 0.
fn parse(text: &str) -> Counters {
    let mut counters = Counters::default();
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        let pages = value.trim().parse().unwrap_or(0);
        match name {
            "numa_hit" => counters.hit_pages = pages,
            "numa_miss" => counters.miss_pages = pages,
            "numa_foreign" => counters.foreign_pages = pages,
            "interleave_hit" => counters.interleave_hit_pages = pages,
            "local_node" => counters.local_node_pages = pages,
            "other_node" => counters.other_node_pages = pages,
            _ => {}
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("sys/devices/system/node/node3");
        fs::create_dir_all(&node).unwrap();
        let text = "numa_hit 10\nnuma_miss 2\nnuma_foreign 3\ninterleave_hit 4\nlocal_node 5\n\
                    other_node 7\nnew 1\n";
        fs::write(node.join("numastat"), text).unwrap();
        let read = counters(folder.path(), NodeId(3)).unwrap();
        let expected = Counters {
            hit_pages: 10,
            miss_pages: 2,
            foreign_pages: 3,
            interleave_hit_pages: 4,
            local_node_pages: 5,
            other_node_pages: 7,
        };
        assert_eq!(read, expected);
        assert_eq!(counters(folder.path(), NodeId(0)), None);
        assert_eq!(read.since(&Counters { hit_pages: 9, ..Counters::default() }).hit_pages, 1);
    }
}
