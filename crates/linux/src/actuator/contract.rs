//! The contract of actuators: the changes that an owner is asked for.

use crate::{
    cgroup::{Cgroup, Tree},
    error::Error,
};
use nearside_policy::Limits;
use nearside_topology::{CpuSet, NodeSet};
use std::fmt::Debug;

/// The cgroup below which domains live if systemd does not own the tree.
pub(crate) const PARENT: &str = "/nearside";

/// Asks the owner of a cgroup for changes.
pub(crate) trait Actuator: Debug {
    /// Creates the cgroup of a new domain with its limits, and moves this process into it.
    fn create(&self, tree: &Tree, domain: &str, limits: Limits) -> Result<Cgroup, Error>;

    /// Checks that the owner lets Nearside confine this cgroup.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason and the place where the owner is to be asked.
    fn may_bind(&self, group: &Cgroup) -> Result<(), Error>;

    /// Allows the cgroup these CPUs only. False if it has no cpuset.
    fn set_cpus(&self, group: &Cgroup, cpus: &CpuSet) -> Result<bool, Error>;

    /// Allows the cgroup all CPUs that its parent may use. False if it has no cpuset.
    fn clear_cpus(&self, group: &Cgroup) -> Result<bool, Error>;

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

    fn set_cpus(&self, group: &Cgroup, _: &CpuSet) -> Result<bool, Error> {
        self.may_bind(group).map(|()| false)
    }

    fn clear_cpus(&self, group: &Cgroup) -> Result<bool, Error> {
        self.may_bind(group).map(|()| false)
    }

    fn set_memory_nodes(&self, group: &Cgroup, _: &NodeSet) -> Result<bool, Error> {
        self.may_bind(group).map(|()| false)
    }
}
