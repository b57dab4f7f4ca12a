//! Cgroups that Nearside owns: it writes the kernel's files itself.

use super::contract::{Actuator, PARENT, PartThreads};
use crate::{
    cgroup::{Cgroup, Tree},
    confine::{CPUS, Cpuset, MEMORY_NODES, is_in_force, nodes_with_memory, possible_cpus},
    error::Error,
};
use nearside_policy::Limits;
use nearside_topology::{CpuSet, Id, IdSet, NodeSet};
use std::path::PathBuf;

/// The controllers that domains get if the tree has them.
const CONTROLLERS: [&str; 4] = ["cpuset", "cpu", "memory", "hugetlb"];

/// The period of `cpu.max`, in microseconds (the kernel's default).
const CPU_PERIOD_US: u64 = 100_000;

/// Nearside, without systemd.
#[derive(Debug)]
pub(super) struct Direct {
    root: PathBuf,
}

impl Direct {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Empties a set. Older kernels (6.16 is one) let no group with processes have an empty one
    /// (`validate_change` in `kernel/cgroup/cpuset.c`): it gets `all` that may ever be there.
    fn clear(
        group: &Cgroup,
        file: &'static str,
        all: impl FnOnce() -> Result<String, Error>,
    ) -> Result<bool, Error> {
        // An empty line: a write of no bytes never reaches the kernel's function.
        match group.write(file, "\n") {
            Err(Error::Write { source, .. }) if source.raw_os_error() == Some(libc::ENOSPC) => {
                group.write(file, &all()?).map(|()| true)
            }
            written => written.map(|()| true),
        }
    }

    fn set<T: Id>(group: &Cgroup, set: Cpuset, wanted: &IdSet<T>) -> Result<bool, Error> {
        if !group.has(set.file) {
            return Ok(false);
        }
        group.write(set.file, &wanted.to_string())?;
        is_in_force(group, set, wanted)
    }
}

impl Actuator for Direct {
    fn create(&self, tree: &Tree, domain: &str, limits: Limits) -> Result<Cgroup, Error> {
        let (root, parent) = (tree.group("/")?, tree.group(PARENT)?);
        let group = tree.group(&format!("{PARENT}/{domain}"))?;
        if !parent.exists() {
            parent.create()?;
        }
        // A controller that cannot be enabled is missing in the domain, and the step that needs it
        // reports that.
        for above in [&root, &parent] {
            CONTROLLERS.iter().for_each(|controller| drop(above.enable_below(&[controller])));
        }
        group.create()?;
        if let Err(error) = limit_and_enter(&group, limits) {
            // The group is still empty. If it cannot be removed, the next sweep removes it.
            let _ = group.remove();
            return Err(error);
        }
        Ok(group)
    }

    fn may_bind(&self, _: &Cgroup) -> Result<(), Error> {
        Ok(())
    }

    fn set_cpus(&self, group: &Cgroup, _: PartThreads<'_>, cpus: &CpuSet) -> Result<bool, Error> {
        Self::set(group, CPUS, cpus)
    }

    fn clear_cpus(&self, group: &Cgroup, _: PartThreads<'_>) -> Result<bool, Error> {
        if !group.has(CPUS.file) {
            return Ok(false);
        }
        Self::clear(group, CPUS.file, || possible_cpus(&self.root).map(|all| all.to_string()))
    }

    fn set_memory_nodes(&self, group: &Cgroup, nodes: &NodeSet) -> Result<bool, Error> {
        if nodes.is_empty() && group.has(MEMORY_NODES.file) {
            let all = || nodes_with_memory(&self.root).map(|all| all.to_string());
            return Self::clear(group, MEMORY_NODES.file, all);
        }
        Self::set(group, MEMORY_NODES, nodes)
    }
}

fn limit_and_enter(group: &Cgroup, limits: Limits) -> Result<(), Error> {
    for (file, asked) in
        [("cpu.max", limits.cpus.is_some()), ("memory.max", limits.memory_bytes.is_some())]
    {
        if asked && !group.has(file) {
            return Err(Error::Refused(format!(
                "{} has no {file}: its controller cannot be enabled here",
                group.path()
            )));
        }
    }
    if let Some(cpus) = limits.cpus {
        let quota_us = (cpus * CPU_PERIOD_US as f64) as u64;
        group.write("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"))?;
    }
    if let Some(bytes) = limits.memory_bytes {
        group.write("memory.max", &bytes.to_string())?;
    }
    group.enter(std::process::id())
}
