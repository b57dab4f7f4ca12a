//! Nearside's own bindings of CPUs, which stand in for node affinity: lifted while a scheduler that knows it is attached, and
//! there again before that is detached.

use super::{CPUS, Host, bind, bind_each, wait_for_starts};
use crate::{
    error::Error,
    store::{CpuBinding, Record},
};
use nearside_policy::{Affinity, CpuReason, Origin};
use nearside_topology::CpuSet;

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

    fn changing(&mut self, domain: &str, change: fn(&mut Self, &Record) -> Result<bool, Error>) -> Result<bool, Error> {
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
        if !is_to_lift(record) {
            return Ok(false);
        }
        // The record last: whoever is killed in between leaves a binding that is known and lifted by the next.
        self.unbind()?;
        self.change(|record| record.cpus = None)?;
        Ok(true)
    }

    fn restore(&mut self, record: &Record) -> Result<bool, Error> {
        if !is_to_restore(record) {
            return Ok(false);
        }
        self.refuse_other_owners()?;
        let topology = self.topology()?.offered(self.allowed().as_ref());
        let cpus = topology.cpus_of_nodes(&record.home.nodes);
        if cpus.is_empty() {
            let home = record.home.nodes.named();
            return Err(Error::Refused(format!("{}: no CPU is online on its home, {home}", record.name)));
        }
        // The record first, for the same reason.
        self.change(|record| record.cpus = Some(CpuBinding { cpus: cpus.clone(), on_behalf: CpuReason::Fallback }))?;
        self.bind_cpus(&cpus, CpuReason::Fallback).map(|()| true).or_else(|error| {
            self.unbind()?;
            self.change(|record| record.cpus = None)?;
            Err(error)
        })
    }

    /// Lets the domain that is being changed run wherever the group above it may.
    fn unbind(&mut self) -> Result<(), Error> {
        let group = self.current_group()?;
        if self.clear_cpuset(&group, CPUS)? {
            return Ok(());
        }
        // The kernel leaves out CPUs that are not there.
        let all: CpuSet = self.topology()?.cpus.iter().map(|cpu| cpu.id).collect();
        if !bind_each(|| group.all_threads(), |thread| bind(thread, &all), wait_for_starts)? {
            self.notice(
                "threads were started faster than they could be let go: some may stay on the CPUs of their home",
            );
        }
        Ok(())
    }
}

/// Whether a binding is Nearside's own.
fn is_to_lift(record: &Record) -> bool {
    record.cpus.as_ref().is_some_and(|binding| binding.on_behalf == CpuReason::Fallback)
}

/// Whether a domain needs a binding to stay at home. One that was found with a home of somebody else's choice is kept there
/// by whoever chose it.
fn is_to_restore(record: &Record) -> bool {
    let is_kept_by_others = record.found_by.is_some() && record.home.origin == Origin::Explicit;
    record.cpus.is_none() && record.home.affinity == Affinity::Soft && !is_kept_by_others
}
