//! A made-up host of two nodes.

mod made;

pub(crate) use made::Made;

use nearside_linux::{Host, Paths};
use nearside_policy::{Affinity, Home, MemoryPolicy, Origin};
use nearside_topology::NodeId;

impl Made {
    /// One whose cgroup tree has these controllers.
    pub(crate) fn new(controllers: &str) -> Self {
        Self::of(controllers, 2, 4096, 1024)
    }
}

/// A home that placement chose.
pub(crate) fn home(on: &[u32]) -> Home {
    let nodes = on.iter().map(|&node| NodeId(node)).collect();
    Home { nodes, origin: Origin::Auto, affinity: Affinity::Soft, policy: MemoryPolicy::Local }
}
