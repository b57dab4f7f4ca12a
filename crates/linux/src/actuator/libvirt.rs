//! Cgroups of libvirt, which rewrites them when a virtual machine changes: QEMU's threads are bound
//! through libvirt's own calls, so that libvirt never takes them back.
//!
//! libvirt may hang or be gone while its guests run on. Each change has a bound in time, and after
//! a time-out libvirt is not asked again for a while: the lock is held meanwhile.

mod nodeset;
mod pins;
mod state;

use super::contract::{Actuator, PartThreads};
use crate::{
    cgroup::{Cgroup, Tree},
    confine::possible_cpus,
    disks::resolve_disks,
    error::Error,
    vm::QemuMachine,
};
use nearside_libvirt::Domain;
use nearside_libvirt_rpc::{Connection, DomainHandle};
use nearside_policy::Limits;
use nearside_topology::{CpuSet, NodeSet, sysfs};
use pins::{HostCpus, Pin, Pinned, Thread};
pub(super) use state::LibvirtState;
use std::{path::PathBuf, sync::Arc};

/// libvirt.
#[derive(Debug)]
pub(super) struct Libvirt {
    state: Arc<LibvirtState>,
    root: PathBuf,
}

/// A running domain, and the connection to libvirt over which it was found.
struct Found {
    connection: Connection,
    handle: DomainHandle,
    domain: Domain,
}

impl Libvirt {
    pub(super) fn new(state: Arc<LibvirtState>, root: PathBuf) -> Self {
        Self { state, root }
    }

    fn machine(group: &Cgroup) -> Result<QemuMachine, Error> {
        QemuMachine::of_group(group.path()).ok_or_else(|| {
            Error::Unchanged(format!(
                "{} is a cgroup of libvirt, but none of a QEMU domain: set its CPUs and nodes \
                 there",
                group.path()
            ))
        })
    }

    /// The domain of a group, as it runs now.
    pub(super) fn domain(&self, group: &Cgroup) -> Result<Domain, String> {
        let machine = Self::machine(group).map_err(|error| error.to_string())?;
        Ok(self.find(&machine)?.domain)
    }

    /// The running domain with this name.
    pub(super) fn domain_named(&self, name: &str) -> Result<Domain, String> {
        let mut connection = self.state.connect()?;
        let asked = connection.domain_by_name(name).and_then(|handle| connection.xml(&handle));
        read(&asked.map_err(|error| self.state.failed(&error))?)
    }

    fn find(&self, machine: &QemuMachine) -> Result<Found, String> {
        let mut connection = self.state.connect()?;
        let asked = connection.domain_by_id(machine.id);
        let handle = asked.map_err(|error| self.state.failed(&error))?;
        if !machine.may_be(&handle.name) {
            return Err(format!("libvirt's domain {} is {} now", machine.id, handle.name));
        }
        let xml = connection.xml(&handle).map_err(|error| self.state.failed(&error))?;
        let mut domain = read(&xml)?;
        resolve_disks(&mut domain.iothreads, &self.root);
        Ok(Found { connection, handle, domain })
    }

    fn pinned(&self, found: &mut Found) -> Result<Pinned, String> {
        let Found { connection, handle, domain } = found;
        let mut pinned = || -> Result<_, nearside_libvirt_rpc::Error> {
            Ok(Pinned {
                vcpus: connection.vcpu_pins(handle, domain.vcpus.maximum.value)?,
                emulator: connection.emulator_pin(handle)?,
                iothreads: connection.iothread_pins(handle)?,
            })
        };
        pinned().map_err(|error| self.state.failed(&error))
    }

    fn host_cpus(&self, domain: &Domain) -> Result<HostCpus, String> {
        let file = self.root.join("sys/devices/system/cpu/online");
        let online = crate::read::text(&file).map_err(|error| error.to_string())?;
        let online = online.trim().parse().map_err(|error| format!("{}: {error}", file.display()));
        let possible = possible_cpus(&self.root).map_err(|error| error.to_string());
        // On a large machine, reading it takes thousands of files.
        let serves_disks = !domain.iothreads.disks.is_empty();
        let topology = serves_disks.then(|| Some(sysfs::read(&self.root).ok()?.0)).flatten();
        Ok(HostCpus { online: online?, possible: possible?, topology })
    }

    /// Changes pins, all or none.
    fn pin(&self, found: &mut Found, pins: &[Pin]) -> Result<(), Error> {
        for (at, pin) in pins.iter().enumerate() {
            let Err(error) = set(found, pin.thread, &pin.to) else { continue };
            let why = self.state.failed(&error);
            let mut is_back = true;
            // The connection is closed after a time-out; then nothing can be taken back.
            for pin in pins.get(..at).unwrap_or_default().iter().rev() {
                is_back &= set(found, pin.thread, &pin.from).is_ok();
            }
            let why = format!("{}: {}: {why}", found.handle.name, pin.thread);
            // A call that timed out may have taken effect.
            return match is_back && matches!(error, nearside_libvirt_rpc::Error::Refused { .. }) {
                true => Err(Error::Unchanged(why)),
                false => Err(Error::Refused(why)),
            };
        }
        Ok(())
    }

    /// Plans pins by the domain as it is now, and sets them.
    fn change(
        &self,
        group: &Cgroup,
        plan: impl FnOnce(&Domain, &Pinned, &HostCpus) -> Result<Vec<Pin>, String>,
    ) -> Result<bool, Error> {
        let machine = Self::machine(group)?;
        let planned = || -> Result<_, String> {
            let mut found = self.find(&machine)?;
            let now = self.pinned(&mut found)?;
            let pins = plan(&found.domain, &now, &self.host_cpus(&found.domain)?)?;
            Ok((found, pins))
        };
        let (mut found, pins) = planned().map_err(|why| unchanged(group, &why))?;
        self.pin(&mut found, &pins).map(|()| true)
    }

    fn set_node_set(&self, machine: &QemuMachine, wanted: &NodeSet) -> Result<(), String> {
        let Found { mut connection, handle, domain } = self.find(machine)?;
        let failed = |error| self.state.failed(&error);
        let configured = match connection.is_persistent(&handle).map_err(failed)? {
            true => Some(read(&connection.configured_xml(&handle).map_err(failed)?)?),
            false => None,
        };
        let nodes = nodeset::node_set(&domain, configured.as_ref(), wanted)?;
        connection.set_numa_nodeset(&handle, &nodes.to_string()).map_err(failed)
    }
}

impl Actuator for Libvirt {
    fn create(&self, _: &Tree, domain: &str, _: Limits) -> Result<Cgroup, Error> {
        Err(Error::Refused(format!("only Nearside creates the cgroup of {domain}")))
    }

    fn may_bind(&self, group: &Cgroup) -> Result<(), Error> {
        Self::machine(group).map(drop)
    }

    fn set_cpus(
        &self,
        group: &Cgroup,
        threads: PartThreads<'_>,
        cpus: &CpuSet,
    ) -> Result<bool, Error> {
        self.state.unless_refused((group.path(), threads.cell), cpus, || {
            self.change(group, |domain, now, host| pins::bind(domain, now, threads, cpus, host))
        })
    }

    fn clear_cpus(&self, group: &Cgroup, threads: PartThreads<'_>) -> Result<bool, Error> {
        self.change(group, |domain, now, host| pins::free(domain, now, threads, host))
    }

    fn set_memory_nodes(&self, group: &Cgroup, nodes: &NodeSet) -> Result<bool, Error> {
        let machine = Self::machine(group)?;
        let set = self.set_node_set(&machine, nodes);
        set.map(|()| true).map_err(|why| unchanged(group, &why))
    }
}

fn set(
    found: &mut Found,
    thread: Thread,
    cpus: &CpuSet,
) -> Result<(), nearside_libvirt_rpc::Error> {
    let Found { connection, handle, .. } = found;
    match thread {
        Thread::Vcpu(vcpu) => connection.pin_vcpu(handle, vcpu, cpus),
        Thread::Emulator => connection.pin_emulator(handle, cpus),
        Thread::Iothread(iothread) => connection.pin_iothread(handle, iothread, cpus),
    }
}

fn read(xml: &str) -> Result<Domain, String> {
    Domain::read(xml).map_err(|error| format!("its XML cannot be read: {error}"))
}

fn unchanged(group: &Cgroup, why: &str) -> Error {
    Error::Unchanged(format!("libvirt's domain {}: {why}", group.path()))
}

#[cfg(test)]
pub(crate) mod tests;
