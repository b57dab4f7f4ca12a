//! How the owner of a cgroup is asked for a change.
//!
//! Each cgroup has one owner: Nearside itself, systemd, libvirt, kubelet or another program. The
//! owner rewrites the settings of its cgroups as it sees fit, so a change is made through the
//! owner or not at all. One [`Actuator`] stands for each owner; [`Actuators`] chooses by the
//! cgroup's path.

mod contract;
mod direct;
mod kubelet;
mod libvirt;
mod other;
mod owner;
mod systemd;

pub(crate) use contract::{Actuator, PARENT, PartThreads, SharedThreads};
pub(crate) use owner::owner;

use crate::{cgroup::Cgroup, error::Error, systemd::Systemd};
use direct::Direct;
use kubelet::Kubelet;
#[cfg(test)]
pub(crate) use libvirt::tests::Daemon as FakeLibvirt;
use libvirt::{Libvirt, LibvirtState};
use nearside_libvirt::Domain;
use nearside_policy::Owner;
use other::{Other, SystemdUnit};
use std::{path::PathBuf, sync::Arc};

/// The actuators of a host.
#[derive(Debug)]
pub(crate) struct Actuators {
    root: PathBuf,
    booted_with_systemd: bool,
    /// Connected when it is first needed.
    systemd: Option<Arc<Systemd>>,
    /// The known state of libvirt's daemon.
    libvirt: Arc<LibvirtState>,
}

impl Actuators {
    pub(crate) fn new(root: PathBuf, booted_with_systemd: bool) -> Self {
        let libvirt = Arc::new(LibvirtState::of(&root));
        Self { root, booted_with_systemd, systemd: None, libvirt }
    }

    /// Whether systemd owns the tree.
    pub(crate) fn booted_with_systemd(&self) -> bool {
        self.booted_with_systemd
    }

    /// The cgroup below which Nearside creates domains itself; none if systemd creates them.
    pub(crate) fn parent(&self) -> Option<&'static str> {
        (!self.booted_with_systemd).then_some(PARENT)
    }

    /// The actuator for a domain that Nearside starts.
    pub(crate) fn for_new(&mut self) -> Result<Box<dyn Actuator>, Error> {
        match self.booted_with_systemd {
            true => Ok(Box::new(systemd::Scope::new(self.systemd()?, self.root.clone()))),
            false => Ok(Box::new(Direct::new(self.root.clone()))),
        }
    }

    /// The actuator for the cgroup at `path`.
    pub(crate) fn for_group(&mut self, path: &str) -> Result<Box<dyn Actuator>, Error> {
        Ok(match owner(path, self.booted_with_systemd) {
            Owner::Nearside => return self.for_new(),
            Owner::Systemd => Box::new(systemd::Scope::new(self.systemd()?, self.root.clone())),
            Owner::SystemdUnit => Box::new(SystemdUnit),
            Owner::Libvirt => Box::new(self.libvirt()),
            Owner::Kubelet => Box::new(Kubelet),
            Owner::Foreign => Box::new(Other),
        })
    }

    /// Whether libvirt owns the cgroup at `path`: it binds single threads, and needs no
    /// cpuset. Connects to nothing.
    pub(crate) fn is_libvirts(&self, path: &str) -> bool {
        owner(path, self.booted_with_systemd) == Owner::Libvirt
    }

    /// Checks that the owner of the cgroup at `path` lets Nearside confine it. Unlike
    /// [`for_group`](Self::for_group) this connects to nothing.
    ///
    /// # Errors
    /// As [`Actuator::may_bind`].
    pub(crate) fn may_bind(&self, group: &Cgroup) -> Result<(), Error> {
        match owner(group.path(), self.booted_with_systemd) {
            Owner::Nearside | Owner::Systemd => Ok(()),
            Owner::SystemdUnit => SystemdUnit.may_bind(group),
            Owner::Libvirt => self.libvirt().may_bind(group),
            Owner::Kubelet => Kubelet.may_bind(group),
            Owner::Foreign => Other.may_bind(group),
        }
    }

    /// Checks that Nearside may bind single threads of a group whatever its owner sets. A pod's
    /// launcher has bound them already.
    ///
    /// # Errors
    /// As [`Actuator::may_bind`].
    pub(crate) fn may_bind_threads(&self, group: &Cgroup) -> Result<(), Error> {
        match owner(group.path(), self.booted_with_systemd).lets_bind_cells() {
            true => Ok(()),
            false => self.may_bind(group),
        }
    }

    /// The libvirt domain of a group, as it runs now.
    ///
    /// # Errors
    /// With the reason, if libvirt cannot be asked.
    pub(crate) fn libvirt_domain(&self, group: &Cgroup) -> Result<Domain, String> {
        self.libvirt().domain(group)
    }

    /// The domain that libvirt knows by this name.
    ///
    /// # Errors
    /// With the reason, if libvirt cannot be asked.
    pub(crate) fn libvirt_domain_named(&self, name: &str) -> Result<Domain, String> {
        self.libvirt().domain_named(name)
    }

    fn libvirt(&self) -> Libvirt {
        Libvirt::new(Arc::clone(&self.libvirt), self.root.clone())
    }

    fn systemd(&mut self) -> Result<Arc<Systemd>, Error> {
        if let Some(connected) = &self.systemd {
            return Ok(Arc::clone(connected));
        }
        let connected = Arc::new(Systemd::connect()?);
        self.systemd = Some(Arc::clone(&connected));
        Ok(connected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Tree;
    use nearside_policy::Limits;
    use nearside_topology::{CpuSet, NodeSet};

    #[test]
    fn owners_that_rewrite_their_cgroups_refuse_every_change_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cgroup.controllers"), "cpuset").unwrap();
        let tree = Tree::at(folder.path()).unwrap();
        let mut actuators = Actuators::new(folder.path().into(), true);
        for (path, owner) in [
            ("/kubepods.slice/pod1.slice", "kubelet"),
            ("/machine.slice/machine-lxc\\x2d1\\x2dbox.scope", "libvirt"),
            ("/a.service/payload", "another program"),
            ("/system.slice/cron.service", "systemctl set-property"),
        ] {
            let group = tree.group(path).unwrap();
            let actuator = actuators.for_group(path).unwrap();
            let cpus: CpuSet = "0".parse().unwrap();
            let all = PartThreads { cell: None, own: &[], shared: SharedThreads::default() };
            let refusals = [
                actuator.may_bind(&group),
                actuators.may_bind(&group),
                actuator.set_cpus(&group, all, &cpus).map(drop),
                actuator.clear_cpus(&group, all).map(drop),
                actuator.set_memory_nodes(&group, &NodeSet::new()).map(drop),
                actuator.create(&tree, "db", Limits::default()).map(drop),
            ];
            for (number, refusal) in refusals.into_iter().enumerate() {
                let why = refusal.unwrap_err().to_string();
                assert!(number == 5 || why.contains(owner), "{path}: {why}");
            }
        }
    }
}
