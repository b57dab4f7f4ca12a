//! A transaction under way, which alone writes records.
//!
//! The order of a transaction on domains that exist:
//!
//! 1. The journal is written: the records before and after.
//! 2. The steps take effect, one by one (cgroups, CPU affinity).
//! 3. The records are written, and the journal is removed. This commits the transaction.
//!
//! A refused step rolls the effects back, and so does dropping the transaction half-way. If the
//! process is killed, the journal stays, and the next process that takes the lock rolls back
//! (`rollback.rs`). So each record on disk is the one before or the one after, and all of
//! them agree once the lock is held again.
//!
//! Two kinds need no journal. A single record that is made, replaced or removed without another
//! effect changes as a whole. A new domain's cgroup ends with this process, its only member, and a
//! record without a living cgroup does not count.

mod rollback;

use super::{
    handle::Host,
    memory_policy::take_policy,
    records::{Circumstances, NewDomain, before_and_after, record_after},
    refusal::Refusal,
    reservations,
};
use crate::{
    cgroup::Cgroup,
    error::{Error, IoContext},
    store::{Change, Locked, Mover, Part, Parts, Record, Subject, Subjects, Unreadable},
};
use nearside_policy::{self as policy, Action, Home, Limits, PartId, Step, Transaction, Unmet};
use nearside_topology::Topology;
use rollback::Unrestored;
use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

/// The lock, whose holder alone may write records. Its fields are open to this module alone, so
/// that a session changes records in transactions only.
#[derive(Debug)]
pub(super) struct Writer {
    lock: Locked,
    /// Changes of an earlier transaction that cannot be rolled back yet.
    unrestored: Unrestored,
    /// Records that cannot be read, of subjects that may live.
    unreadable: Vec<Unreadable>,
    /// The reason why a transaction of this session could not be rolled back. Its journal, if there
    /// is one, must stay for the next holder of the lock.
    stuck: Option<String>,
}

impl Writer {
    /// Rolls an unfinished transaction back, and removes the remains of dead domains. Returns the
    /// subjects that live, and the memory that unreadable records claim.
    ///
    /// # Errors
    /// If the journal cannot be read, or if the store cannot be trusted.
    pub(super) fn new(host: &mut Host, lock: Locked) -> Result<(Self, Vec<Subject>), Error> {
        let unrestored = Unrestored::after_roll_back(host, &lock)?;
        let subjects = lock.sweep(host.tree(), host.actuators.parent())?;
        let mut writer = Self { lock, unrestored, unreadable: Vec::new(), stuck: None };
        let living = writer.living(subjects);
        Ok((writer, living))
    }

    /// Reads the subjects again, as [`Self::new`] returns them.
    ///
    /// # Errors
    /// If the folder of records cannot be read or trusted.
    pub(super) fn read_again(&mut self, host: &Host) -> Result<Vec<Subject>, Error> {
        Ok(self.living(host.store.subjects(host.tree())?))
    }

    fn living(&mut self, subjects: Subjects) -> Vec<Subject> {
        let Subjects { mut alive, unreadable } = subjects;
        alive.extend(unreadable.iter().filter_map(Unreadable::observed));
        self.unreadable = unreadable;
        alive
    }

    /// Whether the record of this subject cannot be read.
    pub(super) fn is_unreadable(&self, subject: policy::Subject<'_>) -> bool {
        self.unreadable.iter().any(|it| it.is_of(subject))
    }

    /// Refuses a transaction on a domain whose former binding could not be restored, on a subject
    /// whose record cannot be read, and any after one that could not be rolled back. Refuses memory
    /// while it is not known what an unreadable record claims.
    pub(super) fn check(&self, transaction: &Transaction) -> Result<(), Error> {
        if let Some(why) = &self.stuck {
            return Err(Error::Refused(why.clone()));
        }
        self.unrestored.check(transaction)?;
        let subjects = transaction.subjects();
        let is_changed = |it: &&Unreadable| subjects.iter().any(|subject| it.is_of(*subject));
        if let Some(unreadable) = self.unreadable.iter().find(is_changed) {
            return Err(Error::Refused(unreadable.error.to_string()));
        }
        let is_unknown = |it: &&Unreadable| it.claimed().is_none();
        match self.unreadable.iter().find(is_unknown) {
            Some(Unreadable { error, .. }) if transaction.claims_bytes() => {
                Err(Error::Refused(format!(
                    "no memory can be claimed, because the claim in a record is unknown: {error}"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The facts that a session has gathered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    /// The machine as domains may use it, if it was observed.
    pub(super) topology: Option<&'a Topology>,
    /// The patterns that found cgroups, by path.
    pub(super) found_by: &'a BTreeMap<String, String>,
}

/// A transaction under way. Dropped before it is committed, it is rolled back.
#[derive(Debug)]
pub(super) struct Pending<'a> {
    host: &'a mut Host,
    writer: &'a mut Writer,
    known: Known<'a>,
    changes: Vec<Change>,
    has_journal: bool,
    /// Effects to take back, the latest last.
    undo: Vec<Undo>,
    is_committed: bool,
}

/// An effect to take back.
#[derive(Debug)]
enum Undo {
    /// Leave the new cgroup for the one before, and remove it.
    Create { group: Cgroup, back: Cgroup },
    /// Give a part its former bindings.
    Bindings { before: Box<Record>, after: Box<Record>, part: PartId },
}

impl<'a> Pending<'a> {
    pub(super) fn new(host: &'a mut Host, writer: &'a mut Writer, known: Known<'a>) -> Self {
        Self {
            host,
            writer,
            known,
            changes: Vec::new(),
            has_journal: false,
            undo: Vec::new(),
            is_committed: false,
        }
    }

    /// Carries a transaction out, whose needs hold; `new` if it makes this process a new domain.
    ///
    /// # Errors
    /// If a step is refused, or a record cannot be written. Then nothing is changed.
    pub(super) fn carry_out(
        mut self,
        transaction: &Transaction,
        new: Option<&NewDomain>,
    ) -> Result<(), Refusal> {
        match new {
            None => self.plan(transaction)?,
            Some(new) => self.create(transaction, new)?,
        }
        self.take_steps(transaction)?;
        self.commit()
    }

    /// Works out the records that the transaction leads to, and writes the journal.
    fn plan(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let circumstances = Circumstances {
            is_new: false,
            topology: self.topology(transaction)?,
            mover: self.mover(transaction)?,
        };
        let mut after: BTreeMap<String, (Option<Record>, Option<Record>)> = BTreeMap::new();
        for step in &transaction.steps {
            let Some(id) = step.action.part() else { continue };
            if !after.contains_key(id.domain()) {
                let before = self.host.store.living(id.domain(), &self.host.tree)?;
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
                *now = now.take().and_then(|record| record_after(record, step, &circumstances));
            }
        }
        let subject = |record: Option<Record>| record.map(Subject::from);
        let of_domain = |(before, after)| Change { before: subject(before), after: subject(after) };
        let mut changes: Vec<_> = after.into_values().map(of_domain).collect();
        changes.extend(reservations::changes(&self.host.store, &self.host.tree, transaction)?);
        // A single record is the one before or the one after, whatever happens.
        let needs_journal = changes.len() > 1 || transaction.steps.iter().any(has_effect);
        if needs_journal {
            let Writer { lock, unrestored, .. } = &*self.writer;
            unrestored.begin_journal(lock, &changes)?;
        }
        (self.changes, self.has_journal) = (changes, needs_journal);
        Ok(())
    }

    /// This process, if it begins to move memory.
    fn mover(&self, transaction: &Transaction) -> Result<Option<Mover>, Error> {
        let begins = |step: &Step| matches!(step.action, Action::BeginMove { .. });
        let begins = transaction.steps.iter().any(begins);
        begins.then(|| self.host.store.mover(None)).transpose()
    }

    /// The machine as domains may use it. Only a step that sets a new home needs it.
    fn topology(&self, transaction: &Transaction) -> Result<Topology, Error> {
        match self.known.topology {
            Some(topology) => Ok(topology.clone()),
            None if transaction.steps.iter().any(|step| is_home(&step.action)) => {
                Ok(self.host.topology()?.offered(self.host.allowed().as_ref()))
            }
            None => Ok(Topology::default()),
        }
    }

    /// The first record of a cgroup that a pattern found, with all its parts.
    fn record_of_found(&self, id: &PartId, transaction: &Transaction) -> Result<Record, Refusal> {
        let ended = || Refusal::from(Unmet::Ended(id.clone()));
        let path = id.domain();
        let host = &self.host;
        let group = host.tree.group(path)?;
        let pattern = self.known.found_by.get(path).ok_or_else(ended)?;
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
        let circumstances = Circumstances { is_new: true, topology, mover: None };
        let host = &mut *self.host;
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
            .try_fold(record, |record, step| record_after(record, step, &circumstances));
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
    fn ended_part<'s>(&self, step: &'s Step) -> Option<&'s PartId> {
        let host = &*self.host;
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
            | Action::Release { .. }
            | Action::Adopt { .. }
            | Action::PutOff { .. }
            | Action::BeginMove { .. }
            | Action::EndMove { .. } => Ok(()),
            Action::SetMemoryPolicy { policy, nodes, .. } => take_policy(*policy, nodes),
            Action::ConfineMemory { part, .. }
            | Action::BindCpus { part, .. }
            | Action::UnbindCpus { part } => {
                let (before, after) = self.records_of(part)?;
                // Recorded before the effect, because a refused step may have taken effect in part.
                let (was, will_be) = (Box::new(before.clone()), Box::new(after.clone()));
                let undo = Undo::Bindings { before: was, after: will_be, part: part.clone() };
                self.undo.push(undo);
                let taken = self.host.take_binding(action, part, &before, &after);
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
        let Writer { lock, unrestored, .. } = &*self.writer;
        lock.put_all(&self.changes)?;
        // The next process would roll back a journal that cannot be removed.
        if self.has_journal {
            unrestored.end_journal(lock)?;
        }
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        let is_new = self.undo.iter().any(|undo| matches!(undo, Undo::Create { .. }));
        let mut undone = Ok(());
        // All are tried: one that fails is no reason to leave the others.
        for undo in std::mem::take(&mut self.undo).into_iter().rev() {
            let result = match undo {
                Undo::Create { group, back } => leave(self.host, &group, &back),
                // The bindings of a new cgroup end with it.
                Undo::Bindings { .. } if is_new => Ok(()),
                Undo::Bindings { before, after, part } => {
                    self.host.restore_bindings(&before, &after, &part)
                }
            };
            undone = undone.and(result);
        }
        let Writer { lock, unrestored, .. } = &*self.writer;
        let reversed: Vec<_> = self.changes.iter().rev().map(Change::reversed).collect();
        let restored = match (self.has_journal, undone) {
            (true, Ok(())) => lock.put_all(&reversed).and_then(|()| unrestored.end_journal(lock)),
            // The journal stays, and the next process rolls back.
            (true, Err(error)) => Err(error),
            (false, undone) => lock.put_all(&reversed).and(undone),
        };
        if let Err(error) = restored {
            let why = format!("a refused change could not be undone yet: {error}");
            self.host.notice(&why);
            self.writer.stuck = Some(why);
        }
    }
}

/// Leaves a cgroup, which no other process is in, for another, and removes it. A scope of systemd
/// ends with its last process, which is this one.
pub(super) fn leave(host: &Host, group: &Cgroup, back: &Cgroup) -> Result<(), Error> {
    if host.booted_with_systemd() || !group.exists() {
        return Ok(());
    }
    back.enter(std::process::id())?;
    group.remove().at(group.directory())
}

/// Whether a step changes more than records.
fn has_effect(step: &Step) -> bool {
    match step.action {
        Action::Create { .. }
        | Action::SetMemoryPolicy { .. }
        | Action::ConfineMemory { .. }
        | Action::BindCpus { .. }
        | Action::UnbindCpus { .. } => true,
        Action::Claim { .. }
        | Action::SetHome { .. }
        | Action::Forget { .. }
        | Action::Reserve { .. }
        | Action::Release { .. }
        | Action::Adopt { .. }
        | Action::PutOff { .. }
        | Action::BeginMove { .. }
        | Action::EndMove { .. } => false,
    }
}

fn is_home(action: &Action) -> bool {
    matches!(action, Action::SetHome { .. })
}

fn first_home(id: &PartId, transaction: &Transaction) -> Option<Home> {
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

/// Leaves a transaction as a process does that is killed within it: after this many steps and
/// records, or before it rolls a refused step back.
#[cfg(test)]
pub(super) fn kill_within(
    mut pending: Pending<'_>,
    transaction: &Transaction,
    steps: usize,
    records: usize,
) {
    if pending.plan(transaction).is_ok() {
        let mut taken = transaction.steps.iter().take(steps);
        let are_taken = taken.all(|step| pending.take_step(&step.action).is_ok());
        // Without a journal, a written record commits.
        if are_taken && steps >= transaction.steps.len() && pending.has_journal {
            let records = records.min(pending.changes.len());
            pending.writer.lock.put_all(&pending.changes[..records]).unwrap();
        }
    }
    // A killed process rolls nothing back.
    std::mem::forget(pending);
}
