//! Changes under the lock: the needs of a transaction are checked against fresh figures, and then
//! it is applied as a whole, or rolled back (`pending.rs`).

use super::{
    handle::{Host, Waiting, part_of},
    pending::{Known, Pending, Writer, leave},
    records::{NewDomain, has_fallback, needs_binding},
    refusal::Refusal,
    reservations,
};
use crate::{
    cgroup::{Cgroup, Tree},
    error::Error,
    store::{self, LockWait, Locked, Part, Record, Subject, Wait},
};
use nearside_policy::{
    self as policy, Action, CpuReason, MemoryPolicy, NoCpus, Observation, PartState, Reason, Step,
    Transaction,
};
use nearside_topology::Topology;
use std::collections::BTreeMap;

/// The host while this process alone may change it.
#[derive(Debug)]
pub struct Session<'h> {
    pub(super) host: &'h mut Host,
    writer: Writer,
    /// The subjects that lived when the lock was taken, until they are observed or changed.
    living: Option<Vec<Subject>>,
    /// The machine and its domains under this lock, with the changes that were applied since.
    seen: Option<Observation>,
    /// The patterns that found cgroups, by path.
    found_by: BTreeMap<String, String>,
}

impl Host {
    /// Takes the lock, for changes. It is free again when the session is dropped.
    ///
    /// # Errors
    /// If the wait reaches its bound, if the journal of an unfinished change cannot be read, or if
    /// the store cannot be trusted.
    pub fn begin(&mut self) -> Result<Session<'_>, Error> {
        let Waiting { at_most, mut meanwhile, .. } = self.waiting;
        let (proc, notify) = (self.proc(), self.waiting.notify);
        let notify = &mut |wait: &LockWait| notify(wait);
        let wait = Wait { at_most, proc: &proc, notify, meanwhile: &mut meanwhile };
        let lock = self.store.lock_waiting(wait)?;
        Session::new(self, lock)
    }
}

impl<'h> Session<'h> {
    /// A session of the holder of the lock, once an unfinished transaction is rolled back.
    pub(super) fn new(host: &'h mut Host, lock: Locked) -> Result<Self, Error> {
        let (writer, living) = Writer::new(host, lock)?;
        Ok(Self { host, writer, living: Some(living), seen: None, found_by: BTreeMap::new() })
    }

    /// Reads the machine and its domains, once per session. CPUs and devices are taken from
    /// `known`.
    ///
    /// # Errors
    /// If the machine cannot be read.
    pub fn observe(&mut self, known: Option<&Topology>) -> Result<&Observation, Error> {
        let seen = match (self.seen.take(), self.living.take()) {
            (Some(seen), _) => seen,
            (None, Some(living)) => self.host.observe_subjects(living, known)?,
            (None, None) => {
                let living = self.writer.read_again(self.host)?;
                self.host.observe_subjects(living, known)?
            }
        };
        Ok(self.seen.insert(seen))
    }

    /// Notes that the figures of subjects have changed.
    fn have_changed(&mut self) {
        (self.living, self.seen) = (None, None);
    }

    /// The record of one domain that lives.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn record(&self, name: &str) -> Result<Option<Record>, Error> {
        self.host.store.living(name, &self.host.tree)
    }

    /// The reservation of this name whose lifetime lasts.
    pub(super) fn reservation(&self, name: &str) -> Result<Option<store::Reservation>, Error> {
        self.host.store.reservation(name, &self.host.tree)
    }

    /// Whether a reservation may be made with this name: none that was observed has it, and no
    /// record that cannot be read.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        let observed = self.seen.iter().flat_map(|seen| &seen.reservations);
        !self.writer.is_unreadable(policy::Subject::Reservation(name))
            && observed.into_iter().all(|taken| taken.name != name)
    }

    /// The cgroup tree.
    pub fn tree(&self) -> &Tree {
        &self.host.tree
    }

    /// Refuses steps that this host cannot take.
    pub(crate) fn check_host(&mut self, steps: &[Step], policy: MemoryPolicy) -> Result<(), Error> {
        self.host.check(steps, policy)
    }

    /// The parts of a domain as they are recorded, without its memory: the observation for a
    /// transaction that needs none.
    pub fn state_of(&self, record: &Record) -> Observation {
        observed(record)
    }

    /// Names the pattern that found a cgroup, so that its first home gives it a record.
    pub fn found(&mut self, path: &str, pattern: &str) {
        self.found_by.insert(path.into(), pattern.into());
    }

    /// Applies a transaction to domains that exist, and to reservations.
    ///
    /// # Errors
    /// If a need no longer holds, or a step is refused. Then nothing is changed.
    pub fn apply(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        self.apply_with(transaction, None)
    }

    /// Makes this process a new domain.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn start(&mut self, transaction: &Transaction, new: &NewDomain) -> Result<(), Refusal> {
        self.apply_with(transaction, Some(new))
    }

    /// Undoes [`start`](Self::start): this process leaves the domain's cgroup for `back`.
    ///
    /// # Errors
    /// If the record or the cgroup cannot be removed.
    pub fn abandon(&mut self, name: &str, back: &Cgroup) -> Result<(), Refusal> {
        let Some(record) = self.host.store.record(name)? else { return Ok(()) };
        let forget = Action::Forget { part: record.id_of(record.part()) };
        let forgotten = self.change(&record, vec![forget], &Reason::NotStarted);
        // The next holder of the lock removes the record of a cgroup that has gone.
        let group = self.host.tree.group(&record.cgroup)?;
        leave(self.host, &group, back)?;
        forgotten
    }

    fn apply_with(
        &mut self,
        transaction: &Transaction,
        new: Option<&NewDomain>,
    ) -> Result<(), Refusal> {
        if transaction.is_empty() {
            return Ok(());
        }
        if transaction.claims_memory() {
            // A record may have become unreadable since.
            self.observe(None)?;
        }
        self.writer.check(transaction)?;
        self.check(transaction)?;
        self.living = None;
        let changes_figures =
            self.may_move_huge_pages(transaction) || transaction.steps.iter().any(changes_figures);
        let known = Known {
            topology: self.seen.as_ref().map(|seen| &seen.topology),
            found_by: &self.found_by,
        };
        let applied = Pending::new(self.host, &mut self.writer, known).carry_out(transaction, new);
        // A refused transaction may have changed them as well, and its roll-back.
        if changes_figures {
            self.have_changed();
        }
        if let (Ok(()), Some(seen)) = (&applied, &mut self.seen) {
            transaction.steps.iter().for_each(|step| seen.change(&step.action));
        }
        applied
    }

    /// Whether the kernel may move huge pages, and reservations of them, with a write to
    /// `cpuset.mems`. The figures of their pools are then read again.
    fn may_move_huge_pages(&self, transaction: &Transaction) -> bool {
        let has_pages = |seen: &Observation| {
            let mut pools = seen.topology.nodes.iter().flat_map(|node| &node.huge_pages);
            pools.any(|pool| pool.total_pages > 0)
        };
        let confines = |step: &Step| matches!(step.action, Action::ConfineMemory { .. });
        self.seen.as_ref().is_some_and(has_pages) && transaction.steps.iter().any(confines)
    }

    /// Checks the needs against fresh figures.
    fn check(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let needs = &transaction.needs;
        // The observation of all domains lacks cgroups without a record.
        let mut subjects = Vec::new();
        for id in needs.parts.keys() {
            let state = match self.record(id.domain())? {
                Some(record) => record.part_of(id).map(|part| part_of(&record, part)),
                None => self.host.found_state(id),
            };
            subjects.extend(state);
        }
        let mut fresh = match transaction.claims_memory() || !needs.free_names.is_empty() {
            true => with_subjects(self.observe(None)?.clone(), subjects),
            false => with_subjects(Observation::default(), subjects),
        };
        if !transaction.claims_memory() {
            for name in needs.reservations.keys() {
                let present = self.reservation(name)?.map(|it| reservations::observed(&it));
                fresh.reservations.extend(present.into_iter().flat_map(|it| it.reservations));
            }
        }
        Ok(transaction.check(&fresh)?)
    }

    /// Binds a domain to its home in place of a scheduler that knows node affinity. False if the
    /// domain needs no binding, or has one.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn bind_to_home(&mut self, name: &str) -> Result<bool, Refusal> {
        let Some(record) = self.record(name)? else { return Ok(false) };
        let mut unbound = record.parts().filter(|part| needs_binding(part)).peekable();
        if unbound.peek().is_none() {
            return Ok(false);
        }
        let topology = self.host.topology()?.offered(self.host.allowed().as_ref());
        let bind = |part: &Part| {
            let (id, home) = (record.id_of(part), &part.home.nodes);
            let cpus = topology.cpus_of_nodes(home);
            if cpus.is_empty() {
                let why = NoCpus::on(home, &topology);
                return Err(Error::Refused(format!("{id}: its home has no CPU: {why}")));
            }
            Ok(Action::BindCpus { part: id, cpus, on_behalf: CpuReason::Fallback })
        };
        let actions = unbound.map(bind).collect::<Result<Vec<_>, _>>()?;
        self.change(&record, actions, &Reason::NoScheduler)?;
        Ok(true)
    }

    /// Lifts Nearside's own binding of a domain's CPUs, never an operator's. False if it has none.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn unbind(&mut self, name: &str) -> Result<bool, Refusal> {
        let Some(record) = self.record(name)? else { return Ok(false) };
        let actions = unbind(&record);
        if actions.is_empty() {
            return Ok(false);
        }
        self.change(&record, actions, &Reason::SchedulerAttached)?;
        Ok(true)
    }

    /// Forgets a domain that a pattern found. False if it has no record.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn forget(&mut self, name: &str) -> Result<bool, Refusal> {
        let record = self.record(name)?.filter(|record| record.found_by.is_some());
        let Some(record) = record else { return Ok(false) };
        let mut actions = unbind(&record);
        actions.push(Action::Forget { part: record.id_of(record.part()) });
        self.change(&record, actions, &Reason::NoLongerNamed)?;
        Ok(true)
    }

    pub(super) fn change(
        &mut self,
        record: &Record,
        actions: Vec<Action>,
        reason: &Reason,
    ) -> Result<(), Refusal> {
        let step = |action| Step { action, reason: reason.clone() };
        let steps = actions.into_iter().map(step).collect();
        self.apply(&Transaction::new(steps, &observed(record)))
    }
}

/// Whether the figures of a subject after this step cannot be told from those before.
fn changes_figures(step: &Step) -> bool {
    match step.action {
        Action::Adopt { .. } | Action::BeginMove { .. } | Action::EndMove { .. } => true,
        Action::Create { .. }
        | Action::Claim { .. }
        | Action::SetHome { .. }
        | Action::ConfineMemory { .. }
        | Action::BindCpus { .. }
        | Action::UnbindCpus { .. }
        | Action::Forget { .. }
        | Action::SetMemoryPolicy { .. }
        | Action::Reserve { .. }
        | Action::Release { .. }
        | Action::PutOff { .. } => false,
    }
}

/// The actions that lift Nearside's own bindings of a domain.
fn unbind(record: &Record) -> Vec<Action> {
    let bound = record.parts().filter(|part| has_fallback(part));
    bound.map(|part| Action::UnbindCpus { part: record.id_of(part) }).collect()
}

/// The observation of a single domain, from its record.
fn observed(record: &Record) -> Observation {
    let parts = record.parts().map(|part| part_of(record, part)).collect();
    Observation { parts, ..Observation::default() }
}

fn with_subjects(mut seen: Observation, subjects: Vec<PartState>) -> Observation {
    for subject in subjects {
        match seen.parts.iter_mut().find(|part| part.id == subject.id) {
            // Homes and identities come from the present records.
            Some(part) => (part.home, part.cgroup) = (subject.home, subject.cgroup),
            None => seen.parts.push(subject),
        }
    }
    seen
}

#[cfg(test)]
mod tests;
