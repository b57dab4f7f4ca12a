//! Rolling back what an earlier process left unfinished.
//!
//! The kernel, systemd or libvirt may refuse the former binding of a domain. Its records are those
//! from before all the same, and its change stays in the journal. It alone cannot change until its
//! binding is restored or it ends; every other domain starts and changes as ever.

use crate::{
    error::Error,
    host::{handle::Host, records::before_and_after},
    store::{Change, Journal, Locked},
};
use nearside_policy::{PartId, Transaction};

/// The changes of an earlier transaction that cannot be rolled back yet.
#[derive(Debug, Default)]
pub(super) struct Unrestored(Vec<UnrestoredChange>);

#[derive(Debug)]
struct UnrestoredChange {
    change: Change,
    /// The domain's name.
    domain: String,
    /// The reason, as a sentence for the operator.
    why: String,
}

impl Unrestored {
    /// Gives the domains of an unfinished transaction their former bindings and records, and
    /// returns those whose bindings stay.
    ///
    /// # Errors
    /// If the journal cannot be read, or a record or the journal cannot be written.
    pub(super) fn after_roll_back(host: &mut Host, lock: &Locked) -> Result<Self, Error> {
        let mut unrestored = Self::default();
        let Some(journal) = lock.unfinished(host.tree())? else { return Ok(unrestored) };
        for change in journal.changes.iter().rev() {
            match restore(host, change) {
                Ok(Some(name)) => {
                    let done = "an unfinished change of its home was rolled back";
                    host.notice(&format!("{name}: {done}"));
                }
                Ok(None) => {}
                Err(change) => unrestored.0.push(*change),
            }
        }
        let reversed: Vec<_> = journal.changes.iter().rev().map(Change::reversed).collect();
        lock.put_all(&reversed)?;
        if unrestored.0.len() < journal.changes.len() {
            unrestored.end_journal(lock)?;
        }
        for change in &unrestored.0 {
            host.notice_once(&change.why);
        }
        Ok(unrestored)
    }

    /// Refuses a transaction on a domain whose former binding could not be restored.
    pub(super) fn check(&self, transaction: &Transaction) -> Result<(), Error> {
        let of = |id: &&PartId| self.0.iter().find(|it| it.domain == id.domain());
        match transaction.parts().iter().find_map(of) {
            Some(unrestored) => Err(Error::Refused(unrestored.why.clone())),
            None => Ok(()),
        }
    }

    /// Writes the changes of a transaction before its first effect, beside these.
    pub(super) fn begin_journal(&self, lock: &Locked, changes: &[Change]) -> Result<(), Error> {
        let mut journal = self.journal();
        journal.changes.extend_from_slice(changes);
        match self.0.is_empty() {
            true => lock.begin_journal(&journal),
            false => lock.replace_journal(&journal),
        }
    }

    /// Ends the journal of a transaction, but for these changes.
    pub(super) fn end_journal(&self, lock: &Locked) -> Result<(), Error> {
        match self.0.is_empty() {
            true => lock.end_journal(),
            false => lock.replace_journal(&self.journal()),
        }
    }

    fn journal(&self) -> Journal {
        Journal { changes: self.0.iter().map(|it| it.change.clone()).collect() }
    }
}

/// Restores the bindings of a domain. Returns its name; none if it has ended.
fn restore(host: &mut Host, change: &Change) -> Result<Option<String>, Box<UnrestoredChange>> {
    let Some((before, after)) = before_and_after(change) else { return Ok(None) };
    if !host.store.lives(&after.lifetime(), host.tree()) {
        return Ok(None);
    }
    let mut failed = None;
    for part in after.parts() {
        let id = after.id_of(part);
        // A part that fails is no reason to leave the others.
        if let Err(why) = host.restore_bindings(&before, &after, &id) {
            failed.get_or_insert((id, why));
        }
    }
    let domain = after.name;
    match failed {
        None => Ok(Some(domain)),
        Some((id, why)) => Err(Box::new(UnrestoredChange {
            change: change.clone(),
            domain,
            why: format!(
                "{id}: an unfinished change of its home cannot be rolled back: {why}. It cannot \
                 change before: remove the cause, or end the domain"
            ),
        })),
    }
}
