//! Domains that have ended, as they were in the end.

use crate::oom::OomKills;
use nearside_topology::NodeSet;

/// A domain that has ended since the observation before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Kills in it for lack of memory since its cgroup was made. None if the cgroup was gone, or
    /// has no memory controller.
    pub oom_kills: Option<OomKills>,
    /// The nodes that its memory could not leave; none if it was bound to none.
    pub bound_memory_nodes: Option<NodeSet>,
    /// Whether a pattern had found it, so that it may be older than the watcher.
    pub was_found: bool,
}
