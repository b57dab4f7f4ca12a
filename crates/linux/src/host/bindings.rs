//! The bindings of a domain: its cgroup's cpuset, or the CPU affinity of its threads.

use super::handle::Host;
use crate::{
    actuator::{Actuator, PartThreads, SharedThreads},
    cgroup::Cgroup,
    confine::{CPUS, MEMORY_NODES, bind, bind_each, cpus_of_others, wait_for_starts},
    error::Error,
    store::{CpuBinding, Part, Record},
    sys,
};
use nearside_policy::{Action, CpuReason, MemoryPolicy, PartId};
use nearside_topology::{CpuSet, NodeSet, Topology};

/// Notice if threads started faster than they could be bound.
const ESCAPED: &str = "threads started faster than they could be bound: some may run on other CPUs";

impl Host {
    /// Takes the effect of a step on the part `id` that confines memory, or binds or unbinds CPUs.
    ///
    /// # Errors
    /// If the owner of the cgroup, the kernel or systemd refuses.
    pub(super) fn take_binding(
        &mut self,
        action: &Action,
        id: &PartId,
        before: &Record,
        after: &Record,
    ) -> Result<(), Error> {
        let group = self.tree.group(&after.cgroup)?;
        let (was, will_be) = (part(before, id)?, part(after, id)?);
        self.may_bind(after)?;
        let cell = will_be.cell;
        let cpus_of_all = [before, after].map(cpus_of_all);
        let [cpus_before, cpus_after] = cpus_of_all.each_ref().map(Option::as_ref);
        let shared = SharedThreads { before: cpus_before, after: cpus_after };
        if self.binds_by_thread(group.path(), cell) {
            let own: Vec<_> = was.cpus.iter().map(|binding| &binding.cpus).collect();
            let threads = PartThreads { cell, own: &own, shared };
            return match action {
                Action::BindCpus { cpus, .. } => self.bind_cell(id, &group, threads, Some(cpus)),
                Action::UnbindCpus { .. } => self.bind_cell(id, &group, threads, None),
                Action::ConfineMemory { .. } => Err(Error::Refused(format!(
                    "{id}: its cgroup has one set of nodes for all cells"
                ))),
                _ => Ok(()),
            };
        }
        match action {
            Action::ConfineMemory { nodes, .. } => {
                self.confine_memory(&group, nodes, will_be.home.policy)
            }
            Action::BindCpus { cpus, on_behalf: CpuReason::Operator, .. } => {
                let own: Vec<_> = was.cpus.iter().map(|binding| &binding.cpus).collect();
                self.bind_for_operator(&group, PartThreads { cell, own: &own, shared }, cpus)
            }
            Action::BindCpus { cpus, .. } => {
                let own: Vec<_> = was.cpus.iter().map(|binding| &binding.cpus).collect();
                refuse_cpus_of_others(&group, &own)?;
                self.bind_free_threads(&group, PartThreads { cell, own: &own, shared }, cpus)
            }
            Action::UnbindCpus { .. } => match &was.cpus {
                Some(own) => self.unbind(&group, PartThreads { cell, own: &[&own.cpus], shared }),
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
        let (was, is) = (part(before, id)?, part(after, id)?);
        // Nearside has never bound a group that its owner keeps to itself.
        if !group.populated() || self.may_bind(after).is_err() {
            return Ok(());
        }
        // A failure of one must not keep the other from being restored.
        let cpus = match was.cpus == is.cpus {
            true => Ok(()),
            false => self.restore_cpus(id, &group, (before, was), (after, is)),
        };
        let memory = match was.memory_nodes == is.memory_nodes {
            true => Ok(()),
            false => {
                let nodes = was.memory_nodes.clone().unwrap_or_default();
                self.set_memory_nodes(&group, &nodes).map(drop)
            }
        };
        let (cpus_before, nodes_before) = (was.cpus.as_ref().map(|it| &it.cpus), &was.memory_nodes);
        let cpus = cpus.or_else(|error| is_set(&group, CPUS.file, cpus_before, error));
        let memory =
            memory.or_else(|error| is_set(&group, MEMORY_NODES.file, nodes_before.as_ref(), error));
        for unchanged in [&cpus, &memory] {
            if let Err(Error::Unchanged(why)) = unchanged {
                self.notice(&format!("{id}: its former binding could not be restored: {why}"));
            }
        }
        is_restored(cpus).and(is_restored(memory))
    }

    fn restore_cpus(
        &mut self,
        id: &PartId,
        group: &Cgroup,
        (before, was): (&Record, &Part),
        (after, is): (&Record, &Part),
    ) -> Result<(), Error> {
        let cpus_of_all = [after, before].map(cpus_of_all);
        let [cpus_before, cpus_after] = cpus_of_all.each_ref().map(Option::as_ref);
        let shared = SharedThreads { before: cpus_before, after: cpus_after };
        let both = was.cpus.iter().chain(&is.cpus);
        let own: Vec<_> = both.map(|binding| &binding.cpus).collect();
        let threads = PartThreads { cell: was.cell, own: &own, shared };
        if self.binds_by_thread(group.path(), was.cell) {
            return self.bind_cell(id, group, threads, was.cpus.as_ref().map(|it| &it.cpus));
        }
        // Another program's binding came in between: it stays.
        if cpus_of_others(group, &own)?.is_some() {
            return Ok(());
        }
        match &was.cpus {
            Some(CpuBinding { cpus, on_behalf: CpuReason::Operator }) => {
                self.bind_for_operator(group, threads, cpus)
            }
            Some(CpuBinding { cpus, .. }) => self.bind_free_threads(group, threads, cpus),
            None => self.unbind(group, threads),
        }
    }

    fn confine_memory(
        &mut self,
        group: &Cgroup,
        nodes: &NodeSet,
        policy: MemoryPolicy,
    ) -> Result<(), Error> {
        match self.set_memory_nodes(group, nodes)? {
            true => Ok(()),
            false => self.go_without_cpuset(Some(policy)),
        }
    }

    /// The actuator for a group, if it can do anything: most need a cpuset.
    fn able_actuator(&mut self, group: &Cgroup) -> Result<Option<Box<dyn Actuator>>, Error> {
        let has_cpuset = self.tree.has("cpuset");
        // systemd is asked for nothing that cannot be done.
        if !has_cpuset && !self.actuators.is_libvirts(group.path()) {
            return Ok(None);
        }
        self.actuators.for_group(group.path()).map(Some)
    }

    fn set_memory_nodes(&mut self, group: &Cgroup, nodes: &NodeSet) -> Result<bool, Error> {
        let actuator = self.able_actuator(group)?;
        actuator.map_or(Ok(false), |actuator| actuator.set_memory_nodes(group, nodes))
    }

    fn set_cpus(
        &mut self,
        group: &Cgroup,
        threads: PartThreads<'_>,
        cpus: &CpuSet,
    ) -> Result<bool, Error> {
        let actuator = self.able_actuator(group)?;
        actuator.map_or(Ok(false), |actuator| actuator.set_cpus(group, threads, cpus))
    }

    fn bind_for_operator(
        &mut self,
        group: &Cgroup,
        threads: PartThreads<'_>,
        cpus: &CpuSet,
    ) -> Result<(), Error> {
        if self.set_cpus(group, threads, cpus)? {
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

    /// Binds a group, or those of its threads that no other program has bound.
    fn bind_free_threads(
        &mut self,
        group: &Cgroup,
        threads: PartThreads<'_>,
        cpus: &CpuSet,
    ) -> Result<(), Error> {
        if self.set_cpus(group, threads, cpus)? {
            return Ok(());
        }
        let own = threads.own;
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
    fn unbind(&mut self, group: &Cgroup, threads: PartThreads<'_>) -> Result<(), Error> {
        let own = threads.own;
        if cpus_of_others(group, own)?.is_some() {
            return Ok(());
        }
        let actuator = self.able_actuator(group)?;
        if actuator.map_or(Ok(false), |actuator| actuator.clear_cpus(group, threads))? {
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
    pub(super) fn online_and_ordinary_cpus(&self) -> Result<(CpuSet, CpuSet), Error> {
        let topology = self.topology()?;
        let online = |topology: &Topology| {
            topology.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect()
        };
        Ok((online(&topology), online(&topology.clone().offered(None))))
    }
}

/// The CPUs that a guest's cells are bound to; none if a cell is not bound.
fn cpus_of_all(record: &Record) -> Option<CpuSet> {
    let mut parts = record.parts();
    parts.try_fold(CpuSet::new(), |all, part| Some(all.union(&part.cpus.as_ref()?.cpus)))
}

/// A part of a record.
pub(super) fn part<'a>(record: &'a Record, id: &PartId) -> Result<&'a Part, Error> {
    record.part_of(id).ok_or_else(|| Error::Refused(format!("{id} has no record")))
}

/// Whether a group's file has the former value, so that its refused write changes nothing. A change
/// that was refused in the first place leaves such a file.
fn is_set(
    group: &Cgroup,
    file: &str,
    before: Option<&impl ToString>,
    error: Error,
) -> Result<(), Error> {
    let before = before.map(ToString::to_string).unwrap_or_default();
    match group.read(file) {
        Ok(Some(present)) if present.trim() == before => Ok(()),
        _ => Err(error),
    }
}

/// A former binding is restored once it is written: the groups above may have changed since, and
/// may keep it from being in force. An owner that does not answer keeps the later one, rather than
/// every other domain from starting.
fn is_restored(restored: Result<(), Error>) -> Result<(), Error> {
    match restored {
        Err(Error::NotInForce(_) | Error::Unchanged(_)) => Ok(()),
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
