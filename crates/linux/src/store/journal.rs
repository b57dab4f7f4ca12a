//! The journal of a transaction: the records before and after, so that a transaction whose process
//! was killed can be undone.

use super::{
    format::{self, JOURNAL, Stored},
    record::{Change, Lifetime, Subject},
};
use crate::{
    error::{Error, IoContext},
    folder::Folder,
};
use serde::{Deserialize, Serialize};
use std::io;

/// The longest journal, in bytes: the records of many domains.
const MAX_JOURNAL_BYTES: u64 = 64 * format::MAX_RECORD_BYTES;

/// A transaction that has begun. It is written before the first effect, and removed after the
/// records have been written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Journal {
    /// The change of each record concerned.
    pub changes: Vec<Change>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalFile {
    version: u64,
    written_by: String,
    boot_id: String,
    changes: Vec<StoredChange>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredChange {
    before: Option<Stored>,
    after: Option<Stored>,
}

/// Writes the journal as a whole.
pub(super) fn write(own: &Folder, boot_id: &str, journal: &Journal) -> Result<(), Error> {
    let stored = |subject: &Option<Subject>| subject.clone().map(Stored::from);
    let change =
        |it: &Change| StoredChange { before: stored(&it.before), after: stored(&it.after) };
    let changes = journal.changes.iter().map(change).collect();
    let boot_id = boot_id.to_owned();
    let text = format::versioned(|version, written_by| JournalFile {
        version,
        written_by,
        boot_id,
        changes,
    });
    let text = text.map_err(io::Error::from).at(&own.path().join(JOURNAL))?;
    if text.len() as u64 > MAX_JOURNAL_BYTES {
        return Err(Error::Refused(format!(
            "the records of one transaction take {} bytes, at most {MAX_JOURNAL_BYTES} \
             are possible",
            text.len()
        )));
    }
    // Only processes with the lock read it, and it has the arguments of commands.
    own.replace_private(JOURNAL, &text)
}

/// Reads the journal; none if there is none, or if an earlier boot wrote it.
pub(super) fn read(own: &Folder, boot_id: &str) -> Result<Option<Journal>, Error> {
    let Some(text) = own.read_within(JOURNAL, MAX_JOURNAL_BYTES)? else { return Ok(None) };
    let path = own.path().join(JOURNAL);
    let file: JournalFile = format::parse_versioned(&path, &text)?;
    if file.boot_id != boot_id {
        return Ok(None);
    }
    let broken = |why: &str| format::unreadable(&path, why.into());
    let subject =
        |stored: Option<Stored>| stored.map(Subject::try_from).transpose().map_err(broken);
    let change = |it: StoredChange| {
        let (before, after) = (subject(it.before)?, subject(it.after)?);
        let is_one = match (&before, &after) {
            (Some(before), Some(after)) => before.is_same(after),
            (None, None) => false,
            _ => true,
        };
        is_one
            .then_some(Change { before, after })
            .ok_or_else(|| broken("a change must be of one subject"))
    };
    let changes = file.changes.into_iter().map(change).collect::<Result<_, _>>()?;
    Ok(Some(Journal { changes }))
}

/// The journal of subjects of which one may live.
///
/// # Errors
/// If it cannot be read.
pub(super) fn of_living(
    own: &Folder,
    boot_id: &str,
    lives: impl Fn(&Lifetime) -> bool,
) -> Result<Option<Journal>, Error> {
    let unreadable = match read(own, boot_id) {
        Err(error) => error,
        found => return found,
    };
    match lifetimes(own)? {
        Some(all) if !all.is_empty() && !all.iter().any(lives) => Ok(None),
        _ => Err(unreadable),
    }
}

/// Whether there is a journal.
pub(super) fn exists(own: &Folder) -> Result<bool, Error> {
    Ok(own.read_within(JOURNAL, MAX_JOURNAL_BYTES)?.is_some())
}

/// The lifetimes of the subjects, from a journal of any version. None where a change does not tell
/// them for before and after, where today's journal does.
pub(super) fn lifetimes(own: &Folder) -> Result<Option<Vec<Lifetime>>, Error> {
    #[derive(Deserialize)]
    struct AnyJournal {
        changes: Vec<AnyChange>,
    }
    #[derive(Deserialize)]
    struct AnyChange {
        // Without the attribute a key that is missing would be a side without a record.
        #[serde(deserialize_with = "Option::deserialize")]
        before: Option<AnySubject>,
        #[serde(deserialize_with = "Option::deserialize")]
        after: Option<AnySubject>,
    }
    #[derive(Deserialize)]
    struct AnySubject {
        lifetime: Lifetime,
    }
    let text = own.read_within(JOURNAL, MAX_JOURNAL_BYTES)?.unwrap_or_default();
    let journal = serde_json::from_slice::<AnyJournal>(&text).ok();
    let of_change = |it: AnyChange| [it.before, it.after].into_iter().flatten();
    let lifetimes = |journal: AnyJournal| {
        journal.changes.into_iter().flat_map(of_change).map(|subject| subject.lifetime).collect()
    };
    Ok(journal.map(lifetimes))
}

/// Removes the journal; fine if there is none.
pub(super) fn remove(own: &Folder) -> Result<(), Error> {
    own.remove(JOURNAL)
}
