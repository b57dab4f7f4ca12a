//! Scopes of systemd. A setting made through its bus interface survives a `daemon-reload`, and
//! ends with the scope.

use super::contract::{Actuator, PartThreads};
use crate::{
    cgroup::{Cgroup, Tree},
    confine::{CPUS, Cpuset, MEMORY_NODES, confines_nothing, is_in_force, possible_cpus},
    error::Error,
    systemd::Systemd,
};
use nearside_policy::Limits;
use nearside_topology::{CpuSet, Id, IdSet, NodeSet};
use std::{path::PathBuf, sync::Arc};

/// systemd, for its scopes.
#[derive(Debug)]
pub(super) struct Scope {
    systemd: Arc<Systemd>,
    root: PathBuf,
}

impl Scope {
    pub(super) fn new(systemd: Arc<Systemd>, root: PathBuf) -> Self {
        Self { systemd, root }
    }

    // systemd enables the controller when it is first needed.
    fn set<T: Id>(&self, group: &Cgroup, set: Cpuset, wanted: &IdSet<T>) -> Result<bool, Error> {
        let is_set = self.systemd.set(unit(group)?, set.property, wanted)?;
        Ok(is_set && is_in_force(group, set, wanted)?)
    }
}

impl Actuator for Scope {
    fn create(&self, tree: &Tree, domain: &str, limits: Limits) -> Result<Cgroup, Error> {
        self.systemd.start_scope(domain, limits)?;
        tree.group_of(&self.root.join("proc/self/cgroup"))
    }

    fn may_bind(&self, _: &Cgroup) -> Result<(), Error> {
        Ok(())
    }

    fn set_cpus(&self, group: &Cgroup, _: PartThreads<'_>, cpus: &CpuSet) -> Result<bool, Error> {
        self.set(group, CPUS, cpus)
    }

    fn clear_cpus(&self, group: &Cgroup, _: PartThreads<'_>) -> Result<bool, Error> {
        if !group.has(CPUS.file) {
            return Ok(false);
        }
        let is_set = self.systemd.set(unit(group)?, CPUS.property, &CpuSet::new())?;
        // Older kernels refuse an empty set for a group with processes.
        match is_set && !confines_nothing(group, CPUS)? {
            true => self.systemd.set(unit(group)?, CPUS.property, &possible_cpus(&self.root)?),
            false => Ok(is_set),
        }
    }

    fn set_memory_nodes(&self, group: &Cgroup, nodes: &NodeSet) -> Result<bool, Error> {
        match nodes.is_empty() {
            true => self.systemd.set(unit(group)?, MEMORY_NODES.property, nodes),
            false => self.set(group, MEMORY_NODES, nodes),
        }
    }
}

/// The unit that a group belongs to: its last component. Names of units are ASCII.
fn unit(group: &Cgroup) -> Result<&str, Error> {
    let name = group.directory().file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| Error::Unchanged(format!("{} is no unit of systemd", group.path())))
}
