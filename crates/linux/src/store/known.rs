//! A cache of records. They are read again only when their folder has changed, and then only the
//! changed files.

use super::{
    format::SUFFIX,
    record::{Record, Reservation, Subject},
    records::{self, Store},
    unreadable::Unreadable,
};
use crate::{cgroup::Tree, error::Error, folder::Stamp};
use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

/// A folder that was read shortly after a change may change again with the same time stamp, because
/// the kernel takes the time of its last tick.
const GRAIN: Duration = Duration::from_secs(1);

/// The records of this boot, as they were last read.
#[derive(Debug, Default)]
pub struct Known {
    /// The folder's stamp, if the folder certainly has not changed since.
    folder: Option<Stamp>,
    /// By file.
    files: BTreeMap<String, (Stamp, Result<Subject, Unreadable>)>,
}

impl Known {
    /// Reads the changed records, and takes movers out that have ended. True if any may have
    /// changed.
    ///
    /// # Errors
    /// If the folder cannot be read or trusted; the known records stay.
    pub fn refresh(&mut self, store: &Store) -> Result<bool, Error> {
        let Some(domains) = store.domains()? else {
            self.folder = None;
            return Ok(!std::mem::take(&mut self.files).is_empty());
        };
        let folder = domains.stamp()?;
        if self.folder == Some(folder) {
            return Ok(self.end_movers(store));
        }
        let mut files = BTreeMap::new();
        for file in domains.all_names()?.into_iter().filter(|file| file.ends_with(SUFFIX)) {
            // The stamp is read before the content, so a file that is replaced in between is read
            // twice rather than not at all.
            let Some(stamp) = domains.stamp_of(&file)? else { continue };
            let known = self.files.remove(&file).filter(|(before, _)| *before == stamp);
            let entry = match known {
                Some(known) => known,
                None => match records::read(&domains, &file) {
                    None => continue,
                    Some(subject) => (stamp, subject),
                },
            };
            files.insert(file, entry);
        }
        self.files = files;
        self.end_movers(store);
        let is_settled =
            SystemTime::now().duration_since(folder.changed()).is_ok_and(|since| since > GRAIN);
        self.folder = is_settled.then_some(folder);
        Ok(true)
    }

    /// Takes movers that have ended out of the records. True if there were any.
    fn end_movers(&mut self, store: &Store) -> bool {
        let mut have_ended = false;
        for (_, subject) in self.files.values_mut() {
            if let Ok(Subject::Domain(record)) = subject {
                have_ended |= store.end_movers(record);
            }
        }
        have_ended
    }

    /// The records of this boot, including those of domains that have ended.
    pub fn records<'a>(&'a self, store: &'a Store) -> impl Iterator<Item = &'a Record> {
        let records = self.subjects().filter_map(|subject| match subject {
            Subject::Domain(record) => Some(record),
            Subject::Reservation(_) => None,
        });
        records.filter(|record| record.boot_id == store.boot_id())
    }

    /// The reservations whose lifetime lasts, and the memory that unreadable records claim, as far
    /// as it is known.
    pub fn reservations<'a>(
        &'a self,
        store: &'a Store,
        tree: &'a Tree,
    ) -> impl Iterator<Item = &'a Reservation> {
        let reservations = self.subjects().filter_map(|subject| match subject {
            Subject::Reservation(reservation) => Some(reservation),
            Subject::Domain(_) => None,
        });
        let unreadable = self.unreadable().filter_map(Unreadable::claimed);
        let reservations = reservations.chain(unreadable);
        reservations.filter(|reservation| store.lives(&reservation.lifetime, tree))
    }

    fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.files.values().filter_map(|(_, subject)| subject.as_ref().ok())
    }

    /// The errors of records that cannot be read.
    pub fn broken(&self) -> impl Iterator<Item = &Error> {
        self.unreadable().map(|unreadable| &unreadable.error)
    }

    /// The records that cannot be read and whose subjects may live.
    pub(crate) fn unreadable_living<'a>(
        &'a self,
        store: &'a Store,
        tree: &'a Tree,
    ) -> impl Iterator<Item = &'a Unreadable> {
        self.unreadable().filter(|it| it.lifetime().is_none_or(|it| store.lives(it, tree)))
    }

    fn unreadable(&self) -> impl Iterator<Item = &Unreadable> {
        self.files.values().filter_map(|(_, subject)| subject.as_ref().err())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_folder_that_has_settled_is_not_read_again_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let domains = folder.path().join("domains");
        let store = Store::new(folder.path(), "this boot");
        let mut known = Known::default();
        assert!(!known.refresh(&store).unwrap(), "there is none yet");
        fs::create_dir(&domains).unwrap();
        fs::write(domains.join("a.json"), "{").unwrap();
        assert!(
            known.refresh(&store).unwrap() && known.refresh(&store).unwrap(),
            "it may be changed in the same tick"
        );
        let settle = || {
            let before = SystemTime::now() - 5 * GRAIN;
            File::open(&domains).unwrap().set_modified(before).unwrap();
        };
        settle();
        assert!(known.refresh(&store).unwrap() && !known.refresh(&store).unwrap());
        assert_eq!((known.broken().count(), known.records(&store).count()), (1, 0));
        fs::write(domains.join("b.json"), "{").unwrap();
        fs::write(domains.join("lock"), "").unwrap();
        assert!(known.refresh(&store).unwrap());
        assert_eq!(known.broken().count(), 2);
        fs::remove_dir_all(&domains).unwrap();
        assert!(known.refresh(&store).unwrap() && !known.refresh(&store).unwrap());
        assert_eq!(known.broken().count(), 0);
    }
}
