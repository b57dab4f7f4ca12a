//! The bindings of a domain: its cgroup's cpuset, or the CPU affinity of its threads.

use super::handle::Host;
use crate::{
    actuator::Actuator,
    cgroup::Cgroup,
    confine::{CPUS, bind, bind_each, cpus_of_others, wait_for_starts},
    error::Error,
    store::{CpuBinding, Part, Record},
    sys,
};
use nearside_policy::{Action, CpuReason, MemoryPolicy, PartId};
use nearside_topology::{CpuSet, NodeSet, Topology};

/// Notice if threads started faster than they could be bound.
const ESCAPED: &str = "threads started faster than they could be bound: some may run on other CPUs";

impl Host {
    /// Takes the effect of a step that confines memory, or binds or unbinds CPUs.
    ///
    /// # Errors
    /// If the owner of the cgroup, the kernel or systemd refuses.
    pub(super) fn take_binding(
        &mut self,
        action: &Action,
        before: &Record,
        after: &Record,
    ) -> Result<(), Error> {
        let group = self.tree.group(&after.cgroup)?;
        let (was, will_be) = (part(before, action.part())?, part(after, action.part())?);
        self.may_bind(after)?;
        match action {
            Action::ConfineMemory { nodes, .. } => {
                self.confine_memory(&group, nodes, will_be.home.policy)
            }
            Action::BindCpus { cpus, on_behalf: CpuReason::Operator, .. } => {
                self.bind_for_operator(&group, cpus)
            }
            Action::BindCpus { cpus, .. } => {
                let own: Vec<_> = was.cpus.iter().map(|binding| &binding.cpus).collect();
                refuse_cpus_of_others(&group, &own)?;
                self.bind_free_threads(&group, cpus, &own)
            }
            Action::UnbindCpus { .. } => match &was.cpus {
                Some(own) => self.unbind(&group, &[&own.cpus]),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Gives a part the bindings of `before`, from those of `after` or from any step in between.
    ///
    /// # Errors
    /// As [`take_binding`](Self::take_binding).
    pub(super) fn restore_bindings(
        &mut self,
        before: &Record,
        after: &Record,
        id: &PartId,
    ) -> Result<(), Error> {
        let group = self.tree.group(&after.cgroup)?;
        // Nearside has never bound a group that its owner keeps to itself.
        if !group.populated() || self.may_bind(after).is_err() {
            return Ok(());
        }
        let (was, is) = (part(before, id)?, part(after, id)?);
        // A failure of one must not keep the other from being restored.
        let cpus = match was.cpus == is.cpus {
            true => Ok(()),
            false => self.restore_cpus(&group, was, is),
        };
        let memory = match was.memory_nodes == is.memory_nodes || !self.tree.has("cpuset") {
            true => Ok(()),
            false => {
                let nodes = was.memory_nodes.clone().unwrap_or_default();
                self.actuator(&group)
                    .and_then(|actuator| actuator.set_memory_nodes(&group, &nodes).map(drop))
            }
        };
        is_written(cpus).and(is_written(memory))
    }

    fn restore_cpus(&mut self, group: &Cgroup, was: &Part, is: &Part) -> Result<(), Error> {
        let both = was.cpus.iter().chain(&is.cpus);
        let own: Vec<_> = both.map(|binding| &binding.cpus).collect();
        // Another program's binding came in between: it stays.
        if cpus_of_others(group, &own)?.is_some() {
            return Ok(());
        }
        match &was.cpus {
            Some(CpuBinding { cpus, on_behalf: CpuReason::Operator }) => {
                self.bind_for_operator(group, cpus)
            }
            Some(CpuBinding { cpus, .. }) => self.bind_free_threads(group, cpus, &own),
            None => self.unbind(group, &own),
        }
    }

    fn actuator(&mut self, group: &Cgroup) -> Result<Box<dyn Actuator>, Error> {
        self.actuators.for_group(group.path())
    }

    fn confine_memory(
        &mut self,
        group: &Cgroup,
        nodes: &NodeSet,
        policy: MemoryPolicy,
    ) -> Result<(), Error> {
        let is_confined =
            self.tree.has("cpuset") && self.actuator(group)?.set_memory_nodes(group, nodes)?;
        if is_confined { Ok(()) } else { self.go_without_cpuset(Some(policy)) }
    }

    fn set_cpus(&mut self, group: &Cgroup, cpus: &CpuSet) -> Result<bool, Error> {
        Ok(self.tree.has("cpuset") && self.actuator(group)?.set_cpus(group, cpus)?)
    }

    fn bind_for_operator(&mut self, group: &Cgroup, cpus: &CpuSet) -> Result<(), Error> {
        if self.set_cpus(group, cpus)? {
            return Ok(());
        }
        self.notice(
            "the domain's cgroup has no cpuset controller: hard affinity is that of its \
             processes, which they may change",
        );
        if !bind_each(|| group.all_threads(), |thread| bind(thread, cpus), wait_for_starts)? {
            self.notice(ESCAPED);
        }
        Ok(())
    }

    /// Binds a group, or those of its threads that no other program has bound. `own` are the
    /// CPUs of Nearside's former bindings.
    fn bind_free_threads(
        &mut self,
        group: &Cgroup,
        cpus: &CpuSet,
        own: &[&CpuSet],
    ) -> Result<(), Error> {
        if self.set_cpus(group, cpus)? {
            return Ok(());
        }
        let (online, ordinary) = self.online_and_ordinary_cpus()?;
        // This process becomes the domain. The affinity it was started with is not a choice of the
        // command.
        let this = std::process::id().cast_signed();
        let is_free = |thread| match sys::cpu_affinity(thread) {
            Ok(now) => thread == this || ordinary.is_subset(&now) || is_own(&now, own, &online),
            // The thread has ended, and may have started another.
            Err(_) => true,
        };
        let bind_free = |thread| if is_free(thread) { bind(thread, cpus) } else { Ok(false) };
        if !bind_each(|| group.all_threads(), bind_free, wait_for_starts)? {
            self.notice(ESCAPED);
        }
        Ok(())
    }

    /// Lifts Nearside's binding of a group: its threads may run wherever its parent allows.
    fn unbind(&mut self, group: &Cgroup, own: &[&CpuSet]) -> Result<(), Error> {
        if cpus_of_others(group, own)?.is_some() {
            return Ok(());
        }
        if self.tree.has("cpuset") && self.actuator(group)?.clear_cpus(group)? {
            return Ok(());
        }
        let (online, ordinary) = self.online_and_ordinary_cpus()?;
        let release = |thread| match sys::cpu_affinity(thread) {
            Ok(now) if !is_own(&now, own, &online) => Ok(false),
            _ => bind(thread, &ordinary),
        };
        if !bind_each(|| group.all_threads(), release, wait_for_starts)? {
            self.notice(
                "threads started faster than they could be unbound: some may stay on the CPUs of \
                 their home",
            );
        }
        Ok(())
    }

    /// The online CPUs, and those of them that are not isolated. A thread that no program bound may
    /// run on the latter.
    fn online_and_ordinary_cpus(&self) -> Result<(CpuSet, CpuSet), Error> {
        let topology = self.topology()?;
        let online = |topology: &Topology| {
            topology.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect()
        };
        Ok((online(&topology), online(&topology.clone().offered(None))))
    }
}

fn part<'a>(record: &'a Record, id: &PartId) -> Result<&'a Part, Error> {
    let part = record.parts().find(|part| part.cell == id.cell());
    part.ok_or_else(|| Error::Refused(format!("{id} has no record")))
}

/// A former binding is restored once it is written: the groups above may have changed since, and
/// may keep it from being in force.
fn is_written(restored: Result<(), Error>) -> Result<(), Error> {
    match restored {
        Err(Error::NotInForce(_)) => Ok(()),
        restored => restored,
    }
}

fn refuse_cpus_of_others(group: &Cgroup, own: &[&CpuSet]) -> Result<(), Error> {
    match cpus_of_others(group, own)? {
        None => Ok(()),
        Some(others) => Err(Error::Refused(format!(
            "another program binds {} to CPUs {others} ({}): change the binding there",
            group.path(),
            CPUS.file
        ))),
    }
}

/// True if a thread's CPUs are those of one of Nearside's bindings, as far as they are online.
fn is_own(now: &CpuSet, own: &[&CpuSet], online: &CpuSet) -> bool {
    own.iter().any(|bound| bound.intersection(online) == *now)
}
