//! The contract of actuators: the changes that an owner is asked for.

use crate::{
    cgroup::{Cgroup, Tree},
    error::Error,
};
use nearside_policy::{CellId, Limits};
use nearside_topology::{CpuSet, NodeSet};
use std::fmt::Debug;

/// The cgroup below which domains live if systemd does not own the tree.
pub(crate) const PARENT: &str = "/nearside";

/// The threads of a cgroup that a change of CPUs is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartThreads<'a> {
    /// The cell whose vCPUs they are; all threads of the group if there is none.
    pub(crate) cell: Option<CellId>,
    /// The CPUs of Nearside's former bindings. Others are another program's, or an operator's.
    pub(crate) own: &'a [&'a CpuSet],
    /// The threads of the guest that belong to no cell.
    pub(crate) shared: SharedThreads<'a>,
}

/// The threads of a guest that serve all its cells, such as the emulator. They may run on the CPUs
/// of all cells once each cell is bound.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SharedThreads<'a> {
    /// The CPUs of all cells before the change; none if a cell was not bound.
    pub(crate) before: Option<&'a CpuSet>,
    /// The CPUs of all cells after it; none if a cell is not bound.
    pub(crate) after: Option<&'a CpuSet>,
}

/// Asks the owner of a cgroup for changes.
pub(crate) trait Actuator: Debug {
    /// Creates the cgroup of a new domain with its limits, and moves this process into it.
    fn create(&self, tree: &Tree, domain: &str, limits: Limits) -> Result<Cgroup, Error>;

    /// Checks that the owner lets Nearside confine this cgroup.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason and the place where the owner is to be asked.
    fn may_bind(&self, group: &Cgroup) -> Result<(), Error>;

    /// Allows the threads these CPUs only. False if the cgroup has no cpuset.
    ///
    /// # Errors
    /// [`Error::Unchanged`] if nothing was changed, and so nothing is to be taken back.
    fn set_cpus(
        &self,
        group: &Cgroup,
        threads: PartThreads<'_>,
        cpus: &CpuSet,
    ) -> Result<bool, Error>;

    /// Allows the threads all CPUs that the cgroup's parent may use. False if it has no cpuset.
    ///
    /// # Errors
    /// As [`set_cpus`](Self::set_cpus).
    fn clear_cpus(&self, group: &Cgroup, threads: PartThreads<'_>) -> Result<bool, Error>;

    /// Allows the cgroup memory on these nodes only; on all that its parent may use if the set is
    /// empty. False if it has no cpuset.
    fn set_memory_nodes(&self, group: &Cgroup, nodes: &NodeSet) -> Result<bool, Error>;
}

/// An owner that lets Nearside change nothing: every change is refused with its reason.
pub(super) trait Refusing: Debug {
    /// The reason, with the place where the owner is to be asked.
    fn reason(&self, path: &str) -> String;
}

impl<T: Refusing> Actuator for T {
    fn create(&self, _: &Tree, domain: &str, _: Limits) -> Result<Cgroup, Error> {
        Err(Error::Refused(format!("only Nearside creates the cgroup of {domain}")))
    }

    fn may_bind(&self, group: &Cgroup) -> Result<(), Error> {
        Err(Error::Refused(self.reason(group.path())))
    }

    fn set_cpus(&self, group: &Cgroup, _: PartThreads<'_>, _: &CpuSet) -> Result<bool, Error> {
        self.may_bind(group).map(|()| false)
    }

    fn clear_cpus(&self, group: &Cgroup, _: PartThreads<'_>) -> Result<bool, Error> {
        self.may_bind(group).map(|()| false)
    }

    fn set_memory_nodes(&self, group: &Cgroup, _: &NodeSet) -> Result<bool, Error> {
        self.may_bind(group).map(|()| false)
    }
}
