//! Changes under the lock: a transaction is applied as a whole, or rolled back.
//!
//! The order of a transaction on domains that exist:
//!
//! 1. The needs are checked against fresh figures.
//! 2. The journal is written: the records before and after.
//! 3. The steps take effect, one by one (cgroups, CPU affinity).
//! 4. The records are written, and the journal is removed. This commits the transaction.
//!
//! A refused step rolls the effects back, and so does dropping the transaction half-way. If the
//! process is killed, the journal stays, and the next process that takes the lock rolls back
//! (`rollback.rs`). So each record on disk is the one before or the one after, and all of
//! them agree once the lock is held again.
//!
//! A new domain needs no journal: its cgroup ends with this process, its only member, and a
//! record without a living cgroup does not count.

use super::{
    handle::{Host, Waiting, part_of},
    memory_policy::take_policy,
    records::{NewDomain, before_and_after, has_fallback, needs_binding, record_after},
    reservations,
    rollback::Unrestored,
};
use crate::{
    cgroup::{Cgroup, Tree},
    error::{Error, IoContext},
    store::{self, Change, LockWait, Locked, Part, Parts, Record, Subject, Wait},
};
use nearside_policy::{
    Action, CpuReason, Limits, MemoryPolicy, NoCpus, Observation, PartId, PartState, Reason, Step,
    Transaction, Unmet,
};
use nearside_topology::Topology;
use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

/// The host while this process alone may change it.
#[derive(Debug)]
pub struct Session<'h> {
    pub(super) host: &'h mut Host,
    pub(super) lock: Locked,
    /// The subjects that lived when the lock was taken, until they are observed or changed.
    living: Option<Vec<Subject>>,
    /// The machine and its domains under this lock, with the changes that were applied since.
    seen: Option<Observation>,
    /// The patterns that found cgroups, by path.
    found_by: BTreeMap<String, String>,
    /// Changes of an earlier transaction that cannot be rolled back yet.
    pub(super) unrestored: Unrestored,
}

/// The reason why a transaction was not applied. It has left no change.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A need no longer holds.
    #[error(transparent)]
    Unmet(#[from] Unmet),
    /// A step was refused.
    #[error("cannot {action}: {why}")]
    Step {
        /// The name of the step.
        action: String,
        /// The reason.
        why: Error,
    },
    /// The records could not be read or written.
    #[error(transparent)]
    Store(#[from] Error),
}

/// A transaction under way. Dropped before it is committed, it is rolled back.
struct Pending<'s, 'h> {
    session: &'s mut Session<'h>,
    changes: Vec<Change>,
    has_journal: bool,
    /// Effects to take back, the latest last.
    undo: Vec<Undo>,
    is_committed: bool,
}

/// An effect to take back.
enum Undo {
    /// Leave the new cgroup for the one before, and remove it.
    Create { group: Cgroup, back: Cgroup },
    /// Give a part its former bindings.
    Bindings { before: Box<Record>, after: Box<Record>, part: PartId },
}

impl Host {
    /// Takes the lock, for changes. It is free again when the session is dropped.
    ///
    /// # Errors
    /// If the wait reaches its bound, if the record of a living domain cannot be read, or if the
    /// store cannot be trusted.
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
    /// Rolls an unfinished transaction back, and removes the remains of dead domains.
    pub(super) fn new(host: &'h mut Host, lock: Locked) -> Result<Self, Error> {
        let unrestored = Unrestored::after_roll_back(host, &lock)?;
        let swept = lock.sweep(&host.tree, host.actuators.parent())?;
        // An unreadable record of a living domain may hold a claim. So no memory is claimed until
        // an operator has resolved it.
        if let Some(unreadable) = swept.broken.into_iter().next() {
            return Err(unreadable);
        }
        let (living, found_by) = (Some(swept.alive), BTreeMap::new());
        Ok(Self { host, lock, living, seen: None, found_by, unrestored })
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
            (None, None) => self.host.observe_from(known)?,
        };
        Ok(self.seen.insert(seen))
    }

    /// Notes that the figures of subjects have changed.
    pub(super) fn have_changed(&mut self) {
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
    pub fn abandon(&mut self, name: &str, back: &Cgroup) -> Result<(), Error> {
        let Some(record) = self.host.store.record(name)? else { return Ok(()) };
        self.living = None;
        self.lock.remove(name)?;
        let group = self.host.tree.group(&record.cgroup)?;
        self.leave(&group, back)
    }

    /// A scope of systemd ends with its last process, which is this one.
    fn leave(&self, group: &Cgroup, back: &Cgroup) -> Result<(), Error> {
        if self.host.booted_with_systemd() || !group.exists() {
            return Ok(());
        }
        back.enter(std::process::id())?;
        group.remove().at(group.directory())
    }

    fn apply_with(
        &mut self,
        transaction: &Transaction,
        new: Option<&NewDomain>,
    ) -> Result<(), Refusal> {
        if transaction.is_empty() {
            return Ok(());
        }
        self.unrestored.check(transaction)?;
        self.check(transaction)?;
        self.living = None;
        let moves_huge_pages = self.may_move_huge_pages(transaction);
        let taken = self.take(transaction, new);
        // A refused step may have moved them as well, and its roll-back.
        if moves_huge_pages {
            self.have_changed();
        }
        taken
    }

    fn take(&mut self, transaction: &Transaction, new: Option<&NewDomain>) -> Result<(), Refusal> {
        let mut pending = Pending {
            session: self,
            changes: Vec::new(),
            has_journal: false,
            undo: Vec::new(),
            is_committed: false,
        };
        match new {
            None => pending.plan(transaction)?,
            Some(new) => pending.create(transaction, new)?,
        }
        pending.take_steps(transaction)?;
        pending.commit()?;
        if let Some(seen) = &mut self.seen {
            transaction.steps.iter().for_each(|step| seen.change(&step.action));
        }
        Ok(())
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

    fn change(
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

impl Pending<'_, '_> {
    /// Works out the records that the transaction leads to, and writes the journal.
    fn plan(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let topology = self.topology(transaction)?;
        let mut after: BTreeMap<String, (Option<Record>, Option<Record>)> = BTreeMap::new();
        for step in &transaction.steps {
            let Some(id) = step.action.part() else { continue };
            if !after.contains_key(id.domain()) {
                let before = self.session.record(id.domain())?;
                let now = match &before {
                    Some(record) => record.clone(),
                    None => self.record_of_found(id, transaction)?,
                };
                after.insert(id.domain().into(), (before, Some(now)));
            }
            if let Some((_, now)) = after.get_mut(id.domain()) {
                if now.as_ref().is_some_and(|record| record.part_of(id).is_none()) {
                    return Err(Error::Refused(format!("{id} has no record")).into());
                }
                *now = now.take().and_then(|record| record_after(record, step, false, &topology));
            }
        }
        let subject = |record: Option<Record>| record.map(Subject::from);
        let of_domain = |(before, after)| Change { before: subject(before), after: subject(after) };
        let mut changes: Vec<_> = after.into_values().map(of_domain).collect();
        let host = &self.session.host;
        changes.extend(reservations::changes(&host.store, &host.tree, transaction)?);
        self.session.unrestored.begin_journal(&self.session.lock, &changes)?;
        (self.changes, self.has_journal) = (changes, true);
        Ok(())
    }

    /// The machine as domains may use it. Only a step that sets a new home needs it.
    fn topology(&self, transaction: &Transaction) -> Result<Topology, Error> {
        let host = &self.session.host;
        match &self.session.seen {
            Some(seen) => Ok(seen.topology.clone()),
            None if transaction.steps.iter().any(|step| is_home(&step.action)) => {
                Ok(host.topology()?.offered(host.allowed().as_ref()))
            }
            None => Ok(Topology::default()),
        }
    }

    /// The first record of a cgroup that a pattern found, with all its parts.
    fn record_of_found(&self, id: &PartId, transaction: &Transaction) -> Result<Record, Refusal> {
        let ended = || Refusal::from(Unmet::Ended(id.clone()));
        let path = id.domain();
        let host = &self.session.host;
        let group = host.tree.group(path)?;
        let pattern = self.session.found_by.get(path).ok_or_else(ended)?;
        let inode = group.inode().ok().filter(|_| group.populated()).ok_or_else(ended)?;
        let parts = transaction.parts().into_iter().filter(|part| part.domain() == path);
        let part = |id: &PartId| {
            let home = first_home(id, transaction).ok_or_else(ended)?;
            Ok::<_, Refusal>(Part { cell: id.cell(), ..Part::at(home) })
        };
        let parts = parts.map(part).collect::<Result<Vec<_>, _>>()?;
        let parts = Parts::try_from(parts).map_err(|why| Error::Refused(why.into()))?;
        Ok(Record {
            name: path.into(),
            boot_id: host.boot_id().into(),
            cgroup: path.into(),
            inode,
            started_unix_s: now_unix_s(),
            found_by: Some(pattern.clone()),
            command: Vec::new(),
            limits: Limits::default(),
            parts,
        })
    }

    /// Creates the cgroup of a new domain, with this process in it, and works out its record.
    fn create(&mut self, transaction: &Transaction, new: &NewDomain) -> Result<(), Refusal> {
        let created = transaction.steps.iter().find_map(|step| match &step.action {
            Action::Create { part, limits } => Some((step, part, *limits)),
            _ => None,
        });
        let missing = |what: &str| Error::Refused(format!("the transaction has no {what}"));
        let (step, id, limits) = created.ok_or_else(|| missing("new domain"))?;
        let home = first_home(id, transaction).ok_or_else(|| missing("home"))?;
        let topology = self.topology(transaction)?;
        let host = &mut self.session.host;
        let refused = |why| refused(step, why);
        host.refuse_limits_without_controllers(limits).map_err(refused)?;
        let back = host.tree.group_of(&host.proc().join("self/cgroup"))?;
        let actuator = host.actuators.for_new().map_err(refused)?;
        let group = actuator.create(&host.tree, id.domain(), limits).map_err(refused)?;
        self.undo.push(Undo::Create { group: group.clone(), back });
        let record = Record {
            name: id.domain().into(),
            boot_id: host.boot_id().into(),
            cgroup: group.path().into(),
            inode: group.inode().at(group.directory())?,
            started_unix_s: now_unix_s(),
            found_by: None,
            command: new.command.clone(),
            limits,
            parts: Part { decision: Some(new.decision.clone()), ..Part::at(home) }.into(),
        };
        if let Some(other) = transaction.parts().into_iter().find(|id| record.part_of(id).is_none())
        {
            return Err(Error::Refused(format!("{other} cannot be created with {id}")).into());
        }
        let after = transaction
            .steps
            .iter()
            .try_fold(record, |record, step| record_after(record, step, true, &topology));
        self.changes = vec![Change { before: None, after: after.map(Subject::from) }];
        Ok(())
    }

    /// Takes the effect of every step.
    fn take_steps(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        for step in &transaction.steps {
            self.take_step(&step.action).map_err(|why| match self.ended_part(step) {
                Some(part) => Unmet::Ended(part.clone()).into(),
                None => refused(step, why),
            })?;
        }
        Ok(())
    }

    /// The part of a step whose domain has ended since its record was read.
    fn ended_part<'a>(&self, step: &'a Step) -> Option<&'a PartId> {
        let Session { host, .. } = &*self.session;
        let has_ended = |part: &&PartId| {
            self.records_of(part)
                .is_ok_and(|(before, _)| !host.store.lives(&before.lifetime(), &host.tree))
        };
        step.action.part().filter(has_ended)
    }

    fn take_step(&mut self, action: &Action) -> Result<(), Error> {
        match action {
            // These steps change only records. The cgroup of a new domain exists by now.
            Action::Create { .. }
            | Action::Claim { .. }
            | Action::SetHome { .. }
            | Action::Forget { .. }
            | Action::Reserve { .. }
            | Action::Release { .. } => Ok(()),
            Action::SetMemoryPolicy { policy, nodes, .. } => take_policy(*policy, nodes),
            Action::ConfineMemory { part, .. }
            | Action::BindCpus { part, .. }
            | Action::UnbindCpus { part } => {
                let (before, after) = self.records_of(part)?;
                // Recorded before the effect, because a refused step may have taken effect in part.
                let (was, will_be) = (Box::new(before.clone()), Box::new(after.clone()));
                let undo = Undo::Bindings { before: was, after: will_be, part: part.clone() };
                self.undo.push(undo);
                let taken = self.session.host.take_binding(action, part, &before, &after);
                if let Err(Error::Unchanged(_)) = taken {
                    self.undo.pop();
                }
                taken
            }
        }
    }

    fn records_of(&self, id: &PartId) -> Result<(Record, Record), Error> {
        let mut pairs = self.changes.iter().filter_map(before_and_after);
        let its = pairs.find(|(before, _)| before.name == id.domain());
        its.ok_or_else(|| Error::Refused(format!("{id} is not part of this transaction")))
    }

    /// Writes the records. This commits the transaction.
    fn commit(mut self) -> Result<(), Refusal> {
        self.session.lock.put_all(&self.changes)?;
        // The next process would roll back a journal that cannot be removed.
        if self.has_journal {
            self.session.unrestored.end_journal(&self.session.lock)?;
        }
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for Pending<'_, '_> {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        let is_new = self.undo.iter().any(|undo| matches!(undo, Undo::Create { .. }));
        let mut undone = Ok(());
        // All are tried: one that fails is no reason to leave the others.
        for undo in std::mem::take(&mut self.undo).into_iter().rev() {
            let result = match undo {
                Undo::Create { group, back } => self.session.leave(&group, &back),
                // The bindings of a new cgroup end with it.
                Undo::Bindings { .. } if is_new => Ok(()),
                Undo::Bindings { before, after, part } => {
                    self.session.host.restore_bindings(&before, &after, &part)
                }
            };
            undone = undone.and(result);
        }
        let Session { host, lock, unrestored, .. } = &mut *self.session;
        let reversed: Vec<_> = self.changes.iter().rev().map(Change::reversed).collect();
        let restored = match (self.has_journal, undone) {
            (true, Ok(())) => lock.put_all(&reversed).and_then(|()| unrestored.end_journal(lock)),
            // The journal stays, and the next process rolls back.
            (true, Err(error)) => Err(error),
            (false, undone) => lock.put_all(&reversed).and(undone),
        };
        if let Err(error) = restored {
            host.notice(&format!("a refused change could not be undone yet: {error}"));
        }
    }
}

fn is_home(action: &Action) -> bool {
    matches!(action, Action::SetHome { .. })
}

fn first_home(id: &PartId, transaction: &Transaction) -> Option<nearside_policy::Home> {
    transaction.steps_of(id).find_map(|step| match &step.action {
        Action::SetHome { home, .. } => Some(home.clone()),
        _ => None,
    })
}

fn refused(step: &Step, why: Error) -> Refusal {
    Refusal::Step { action: step.action.to_string(), why }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
