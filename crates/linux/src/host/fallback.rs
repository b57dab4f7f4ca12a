//! Nearside's own bindings of CPUs, which stand in for node affinity: lifted while a scheduler that knows it is attached, and
//! there again before that is detached.

use super::{CPUS, ESCAPED, Host, bind, bind_each, wait_for_starts};
use crate::{
    cgroup::Cgroup,
    confine::{confines_nothing, cpus_of_others},
    error::Error,
    store::{CpuBinding, Record},
    sys,
};
use nearside_policy::{Affinity, CpuReason};
use nearside_topology::{CpuSet, NodeSet, Topology};

impl Host {
    /// Lifts Nearside's own binding of a domain's CPUs, never an operator's. Whether there was one.
    ///
    /// The lock is taken for as long as this takes, unless it is held already: for many domains, take it once.
    ///
    /// # Errors
    /// Where the kernel or systemd does not let it happen; the binding stands then, and its record.
    pub fn lift_fallback(&mut self, domain: &str) -> Result<bool, Error> {
        self.changing(domain, Self::lift)
    }

    /// Binds a domain that prefers its home to the CPUs there, as long as nothing else keeps it at home. Whether it was
    /// not bound before.
    ///
    /// # Errors
    /// As [`lift_fallback`](Self::lift_fallback), and where the cgroup's owner would take the binding back; then there is
    /// none, and none is recorded.
    pub fn restore_fallback(&mut self, domain: &str) -> Result<bool, Error> {
        self.changing(domain, Self::restore)
    }

    /// Forgets a domain that was found, as if it never had been. Whether it was known.
    ///
    /// # Errors
    /// As [`lift_fallback`](Self::lift_fallback).
    pub fn forget_found(&mut self, domain: &str) -> Result<bool, Error> {
        self.changing(domain, |host, record| {
            if record.found_by.is_none() {
                return Ok(false);
            }
            host.lift(record)?;
            host.lock.as_ref().map_or(Ok(()), |lock| lock.remove(&record.name))?;
            Ok(true)
        })
    }

    fn changing(
        &mut self,
        domain: &str,
        change: fn(&mut Self, &Record) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let was_locked = self.lock.is_some();
        self.lock()?;
        let changed = match self.store.living(domain, &self.tree) {
            Ok(Some(record)) => {
                self.edit(record.clone());
                change(self, &record)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        self.current = None;
        if !was_locked {
            self.unlock();
        }
        changed
    }

    fn lift(&mut self, record: &Record) -> Result<bool, Error> {
        let Some(own) =
            record.part().cpus.as_ref().filter(|binding| binding.on_behalf == CpuReason::Fallback)
        else {
            return Ok(false);
        };
        // The record last: whoever is killed in between leaves a binding that is known and lifted by the next.
        self.unbind(own)?;
        self.change(|record| record.part_mut().cpus = None)?;
        Ok(true)
    }

    fn restore(&mut self, record: &Record) -> Result<bool, Error> {
        let is_bound = match &record.part().cpus {
            None => false,
            Some(binding) => binding.on_behalf == CpuReason::Operator || !self.was_broken_off()?,
        };
        if is_bound || !needs_binding(record) {
            return Ok(false);
        }
        self.refuse_other_owners()?;
        let topology = self.topology()?.offered(self.allowed().as_ref());
        let cpus = topology.cpus_of_nodes(&record.part().home.nodes);
        if cpus.is_empty() {
            let home = record.part().home.nodes.named();
            return Err(Error::Refused(format!(
                "{}: no CPU is online on its home, {home}",
                record.name
            )));
        }
        self.stand_in(&cpus).map(|()| true)
    }

    /// Whether a binding is on record that was never made: whoever wrote it was killed then.
    fn was_broken_off(&self) -> Result<bool, Error> {
        let group = self.current_group()?;
        Ok(group.has(CPUS.file) && confines_nothing(&group, CPUS)?)
    }

    /// Binds the domain that is being changed to CPUs, in place of those it was bound to before. What somebody else set stays.
    pub(super) fn stand_in(&mut self, cpus: &CpuSet) -> Result<(), Error> {
        let group = self.current_group()?;
        let before = self.current.as_ref().and_then(|record| record.part().cpus.clone());
        if let Some(others) = cpus_of_others(&group, before.as_ref())? {
            return Err(Error::Refused(format!(
                "{} is kept on CPUs {others} ({}) by somebody else, who has to change that",
                group.path(),
                CPUS.file
            )));
        }
        // The record first, and with the CPUs it is bound to till then: whoever is killed in between leaves a binding that is
        // known for Nearside's own, whichever it is.
        let replaces = before.as_ref().map(|before| before.cpus.clone());
        let mut binding =
            CpuBinding { cpus: cpus.clone(), on_behalf: CpuReason::Fallback, replaces };
        self.change(|record| record.part_mut().cpus = Some(binding.clone()))?;
        let bound = self.confine_to(&group, &binding);
        if let Err(error) = bound {
            match &before {
                Some(before) => self.confine_to(
                    &group,
                    &CpuBinding { replaces: Some(cpus.clone()), ..before.clone() },
                )?,
                None => self.unbind(&binding)?,
            }
            self.change(|record| record.part_mut().cpus = before)?;
            return Err(error);
        }
        if binding.replaces.take().is_some() {
            self.change(|record| record.part_mut().cpus = Some(binding))?;
        }
        Ok(())
    }

    fn confine_to(&mut self, group: &Cgroup, binding: &CpuBinding) -> Result<(), Error> {
        if self.set_cpuset(group, CPUS, &binding.cpus)? {
            return Ok(());
        }
        let (online, all) = self.online_and_ordinary_cpus()?;
        // This process is what becomes the domain: what it was started with is no wish of the command's.
        let own = std::process::id().cast_signed();
        let is_free = |thread| match sys::cpu_affinity(thread) {
            Ok(now) => thread == own || all.is_subset(&now) || binding.is(&now, &online),
            // It is gone, and may have started another.
            Err(_) => true,
        };
        let bind_free =
            |thread| if is_free(thread) { bind(thread, &binding.cpus) } else { Ok(false) };
        if !bind_each(|| group.all_threads(), bind_free, wait_for_starts)? {
            self.notice(ESCAPED);
        }
        Ok(())
    }

    /// Lets the domain that is being changed run wherever the group above it may, as far as it was Nearside that bound it.
    fn unbind(&mut self, own: &CpuBinding) -> Result<(), Error> {
        let group = self.current_group()?;
        if cpus_of_others(&group, Some(own))?.is_some() || self.clear_cpus(&group)? {
            return Ok(());
        }
        let (online, all) = self.online_and_ordinary_cpus()?;
        let release = |thread| match sys::cpu_affinity(thread) {
            Ok(now) if !own.is(&now, &online) => Ok(false),
            _ => bind(thread, &all),
        };
        if !bind_each(|| group.all_threads(), release, wait_for_starts)? {
            self.notice(
                "threads were started faster than they could be let go: some may stay on the CPUs of their home",
            );
        }
        Ok(())
    }

    /// The CPUs that are online, and those of them that a thread may run on that nobody has bound: not the isolated ones.
    fn online_and_ordinary_cpus(&mut self) -> Result<(CpuSet, CpuSet), Error> {
        let topology = self.topology()?;
        let online = |topology: &Topology| {
            topology.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect()
        };
        Ok((online(&topology), online(&topology.clone().offered(None))))
    }
}

/// Whether binding a domain is to stand in for a scheduler that knows its home. A home of all nodes binds nobody, so nothing is
/// done on one node.
pub fn wants_fallback(record: &Record, topology: &Topology) -> bool {
    let with_cpus: NodeSet = topology.cpus.iter().filter_map(|cpu| cpu.node).collect();
    record.part().cpus.is_none()
        && needs_binding(record)
        && !with_cpus.is_subset(&record.part().home.nodes)
}

/// Whether a domain needs a binding to stay at home. One that somebody else keeps somewhere needs none.
fn needs_binding(record: &Record) -> bool {
    record.part().home.affinity == Affinity::Soft && !record.is_kept_by_others()
}

impl CpuBinding {
    /// Whether these are the CPUs that it allows a thread, of those `online`.
    fn is(&self, cpus: &CpuSet, online: &CpuSet) -> bool {
        let is_all_of = |bound: &CpuSet| bound.intersection(online) == *cpus;
        is_all_of(&self.cpus) || self.replaces.as_ref().is_some_and(is_all_of)
    }
}
