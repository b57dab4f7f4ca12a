//! The store: the records and the lock on them.

use super::{
    arguments,
    format::{self, MAX_RECORD_BYTES, Parsed, SUFFIX},
    journal::{self, Journal},
    lock::{self, Wait},
    names::{self, MAX_FILE_NAME, domain_file, file, reservation_file},
    process::Process,
    record::{Change, Lifetime, Mover, Record, Reservation, Subject},
    unreadable::{Blocks, Unreadable},
};
use crate::{
    cgroup::{Cgroup, Tree},
    error::{Error, IoContext},
    folder::Folder,
};
use nearside_policy::{PUT_OFF_FOR_S, RESERVED_FOR_S};
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// The folder in the store that has a record for each subject.
const DOMAINS: &str = "domains";

/// The folder of records.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
    boot_id: String,
    proc: PathBuf,
}

/// The store while this process alone may change it. The lock is free again when this is dropped,
/// and when the process executes a program or ends.
#[derive(Debug)]
pub struct Locked {
    store: Store,
    own: Folder,
    domains: Folder,
    _held: lock::Held,
}

/// All that has a record and may live.
#[derive(Debug, Default)]
pub struct Subjects {
    /// The subjects whose lifetime lasts.
    pub alive: Vec<Subject>,
    /// Records that cannot be read and whose subjects may live.
    pub unreadable: Vec<Unreadable>,
}

/// The file of a record.
struct Entry {
    file: String,
    lifetime: Option<Lifetime>,
    subject: Result<Subject, Unreadable>,
    /// True if the file that all may read has the arguments of a command, as earlier versions wrote
    /// it.
    shows_arguments: bool,
}

impl Store {
    /// The store in `directory`, as of the boot that `boot_id` names. The first lock creates the
    /// folder.
    pub fn new(directory: &Path, boot_id: &str) -> Self {
        let (directory, boot_id) = (directory.into(), boot_id.trim().into());
        Self { directory, boot_id, proc: "/proc".into() }
    }

    /// This store with another folder of processes than `/proc`.
    #[must_use]
    pub fn with_proc(self, proc: &Path) -> Self {
        Self { proc: proc.into(), ..self }
    }

    /// The boot.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// A lease that lasts as long as this process, and not beyond the expiry.
    ///
    /// # Errors
    /// If `/proc` does not show this process.
    pub fn lease(&self, expires_unix_s: Option<u64>) -> Result<Lifetime, Error> {
        let (pid, start_time_ticks) = self.this_process()?;
        Ok(Lifetime::Lease { boot_id: self.boot_id.clone(), pid, start_time_ticks, expires_unix_s })
    }

    /// This process as a mover.
    ///
    /// # Errors
    /// As [`lease`](Self::lease).
    pub fn mover(&self, rate_bytes_per_s: Option<u64>) -> Result<Mover, Error> {
        let (pid, start_time_ticks) = self.this_process()?;
        Ok(Mover { pid, start_time_ticks, rate_bytes_per_s })
    }

    /// The lifetime of the cgroup at this path with this inode, of the present boot.
    pub(crate) fn of_cgroup(&self, path: &str, inode: u64) -> Lifetime {
        Lifetime::Cgroup { boot_id: self.boot_id.clone(), path: path.into(), inode }
    }

    /// The number and the start of this process.
    fn this_process(&self) -> Result<(u32, u64), Error> {
        let pid = std::process::id();
        let process = Process::read(&self.proc, pid).ok_or_else(|| {
            let path = self.proc.join(pid.to_string()).join("stat");
            Error::Refused(format!("{} does not show this process", path.display()))
        })?;
        Ok((pid, process.start_time_ticks))
    }

    /// Whether a process runs that began at this time.
    fn runs(&self, pid: u32, start_time_ticks: u64) -> bool {
        Process::read(&self.proc, pid)
            .is_some_and(|process| process.lives() && process.start_time_ticks == start_time_ticks)
    }

    /// Takes movers that have ended out of a record, and those that cannot run until somebody lets
    /// them (Ctrl-Z, `systemctl freeze`): the daemon moves meanwhile. True if there were any.
    pub(super) fn end_movers(&self, record: &mut Record) -> bool {
        let moves = |pid, ticks| self.runs(pid, ticks) && !Process::is_held(&self.proc, pid);
        let mut have_ended = false;
        for part in record.parts.iter_mut() {
            let ended = part.mover.take_if(|it| !moves(it.pid, it.start_time_ticks));
            have_ended |= ended.is_some();
        }
        have_ended
    }

    /// A subject as it was read, without movers that have ended.
    fn present(&self, mut subject: Subject) -> Subject {
        if let Subject::Domain(record) = &mut subject {
            self.end_movers(record);
        }
        subject
    }

    /// A lifetime of so many seconds from now, which needs no process.
    ///
    /// # Errors
    /// If `/proc/uptime` cannot be read.
    pub fn term(&self, seconds: u64) -> Result<Lifetime, Error> {
        let path = self.proc.join("uptime");
        let now = self.boottime_s().ok_or_else(|| {
            Error::Refused(format!("{} does not tell the time since boot", path.display()))
        })?;
        let expires_boottime_s = now.saturating_add(seconds);
        let boot_id = self.boot_id.clone();
        Ok(Lifetime::Term { boot_id, expires_boottime_s, made_boottime_s: None })
    }

    /// The lifetime of a reservation whose owner may be there and is not known yet: a new term.
    /// None while most of the earlier one is left, at last, and for other lifetimes.
    pub(crate) fn put_off(&self, reservation: &Reservation) -> Option<Lifetime> {
        let Lifetime::Term { expires_boottime_s: before_s, .. } = reservation.lifetime else {
            return None;
        };
        let made_s = reservation.unowned()?.made_boottime_s;
        let Lifetime::Term { boot_id, expires_boottime_s, .. } = self.term(RESERVED_FOR_S).ok()?
        else {
            return None;
        };
        let made_boottime_s = Some(made_s);
        let expires_boottime_s = expires_boottime_s.min(made_s.saturating_add(PUT_OFF_FOR_S));
        (expires_boottime_s >= before_s.saturating_add(RESERVED_FOR_S / 4))
            .then_some(Lifetime::Term { boot_id, expires_boottime_s, made_boottime_s })
    }

    /// The whole seconds since boot, suspension included (`uptime_proc_show` in Linux,
    /// `fs/proc/uptime.c`: `CLOCK_BOOTTIME`). None if they cannot be read.
    fn boottime_s(&self) -> Option<u64> {
        let text = crate::read::text(&self.proc.join("uptime")).ok()?;
        text.split('.').next()?.parse().ok()
    }

    /// The subjects whose lifetime lasts, by file, and the records that cannot be read. An
    /// unreadable record of a subject that has ended is left out.
    ///
    /// # Errors
    /// If the folder of records cannot be read or trusted.
    pub fn subjects(&self, tree: &Tree) -> Result<Subjects, Error> {
        let entries = self.domains()?.map_or(Ok(Vec::new()), |domains| entries(&domains))?;
        let mut subjects = Subjects::default();
        for entry in entries.into_iter().filter(|entry| !self.has_ended(entry, tree)) {
            match entry.subject {
                Ok(subject) => subjects.alive.push(self.present(subject)),
                Err(unreadable) => subjects.unreadable.push(unreadable),
            }
        }
        Ok(subjects)
    }

    /// The records of domains that live, by name, and the errors of records that cannot be read.
    pub fn records(&self, tree: &Tree) -> (Vec<Record>, Vec<Error>) {
        let (alive, errors) = match self.subjects(tree) {
            Ok(Subjects { alive, unreadable }) => {
                (alive, unreadable.into_iter().map(|it| it.error).collect())
            }
            Err(error) => (Vec::new(), vec![error]),
        };
        let mut records: Vec<_> = alive.into_iter().filter_map(domain).collect();
        records.sort_by(|a, b| a.name.cmp(&b.name));
        (records, errors)
    }

    /// The reservations whose lifetime lasts, and the memory that unreadable records claim, as far
    /// as it is known. Errors are those of [`Self::records`].
    pub fn reservations(&self, tree: &Tree) -> Vec<Reservation> {
        let reservation = |subject| match subject {
            Subject::Reservation(reservation) => Some(reservation),
            Subject::Domain(_) => None,
        };
        let subjects = self.subjects(tree).map(Subjects::counted).unwrap_or_default();
        subjects.into_iter().filter_map(reservation).collect()
    }

    /// The reservation of this name, if its lifetime lasts.
    ///
    /// # Errors
    /// If it cannot be read, and its lifetime may last.
    pub fn reservation(&self, name: &str, tree: &Tree) -> Result<Option<Reservation>, Error> {
        match self.parsed(&reservation_file(name))? {
            Some(Parsed { lifetime: Some(ended), .. }) if !self.lives(&ended, tree) => Ok(None),
            Some(Parsed { subject, .. }) => match subject? {
                Subject::Reservation(reservation) => Ok(Some(reservation)),
                Subject::Domain(_) => Ok(None),
            },
            None => Ok(None),
        }
    }

    /// The record of one domain as it was written last, even if the domain has ended. Like every
    /// record that is read, it names no mover that has ended.
    pub fn record(&self, name: &str) -> Result<Option<Record>, Error> {
        self.parsed(&domain_file(name))?.map_or(Ok(None), |parsed| Ok(domain(parsed.subject?)))
    }

    /// The record in a file as far as it can be read.
    fn parsed(&self, file: &str) -> Result<Option<Parsed>, Error> {
        let Some(domains) = self.domains()? else { return Ok(None) };
        let text = domains.read_within(file, MAX_RECORD_BYTES)?;
        Ok(text.map(|text| {
            let Parsed { lifetime, subject } = read_both(&domains, file, &text).0;
            Parsed { lifetime, subject: subject.map(|subject| self.present(subject)) }
        }))
    }

    /// The record of one domain, if that lives.
    ///
    /// # Errors
    /// If it cannot be read, and its domain may live.
    pub fn living(&self, name: &str, tree: &Tree) -> Result<Option<Record>, Error> {
        let Some(Parsed { lifetime, subject }) = self.parsed(&domain_file(name))? else {
            return Ok(None);
        };
        match lifetime {
            Some(lifetime) if !self.lives(&lifetime, tree) => Ok(None),
            _ => Ok(domain(subject?)),
        }
    }

    /// Waits for the lock without a bound. For tests: elsewhere a session alone takes the lock.
    #[cfg(any(test, feature = "simulation"))]
    pub fn lock(&self) -> Result<Locked, Error> {
        let proc = &self.proc;
        self.lock_waiting(Wait { at_most: None, proc, notify: &mut |_| {}, meanwhile: &mut || {} })
    }

    /// Waits for the lock. Processes get it in order of arrival.
    ///
    /// # Errors
    /// If the store cannot be created or trusted. [`Error::Refused`], which names the holder of the
    /// lock, if the wait reaches its bound.
    pub(crate) fn lock_waiting(&self, mut wait: Wait<'_>) -> Result<Locked, Error> {
        let mut locked = || {
            let own = Folder::make(&self.directory)?;
            let domains = own.make_below(DOMAINS)?;
            let held = lock::take(&own, &mut wait)?;
            Ok(Locked { store: self.clone(), own, domains, _held: held })
        };
        locked().map_err(needs_root)
    }

    /// Whether a transaction is under way, or was left unfinished.
    pub(crate) fn has_journal(&self) -> Result<bool, Error> {
        Folder::open(&self.directory)?.map_or(Ok(false), |own| journal::exists(&own))
    }

    /// The journal of subjects of which one may live.
    fn journal(&self, own: &Folder, tree: &Tree) -> Result<Option<Journal>, Error> {
        journal::of_living(own, &self.boot_id, |it| self.lives(it, tree))
    }

    /// The files that block changes because they cannot be read, each with what it blocks. Files
    /// that this user may not read are left out.
    pub(crate) fn blocking(&self, tree: &Tree) -> Vec<(Blocks, Error)> {
        let Ok(Some(own)) = Folder::open(&self.directory) else { return Vec::new() };
        let mut blocking: Vec<_> = match self.subjects(tree) {
            Ok(subjects) => {
                subjects.unreadable.into_iter().map(|it| (it.blocks(), it.error)).collect()
            }
            Err(error) => vec![(Blocks::EveryChange, error)],
        };
        blocking.extend(self.journal(&own, tree).err().map(|error| (Blocks::EveryChange, error)));
        blocking.retain(|(_, error)| !error.is_denied());
        blocking
    }

    pub(super) fn domains(&self) -> Result<Option<Folder>, Error> {
        Folder::open(&self.directory)?.map_or(Ok(None), |own| own.below(DOMAINS))
    }

    fn has_ended(&self, entry: &Entry, tree: &Tree) -> bool {
        entry.lifetime.as_ref().is_some_and(|lifetime| !self.lives(lifetime, tree))
    }

    /// True while a lifetime lasts.
    pub fn lives(&self, lifetime: &Lifetime, tree: &Tree) -> bool {
        match lifetime {
            Lifetime::Cgroup { boot_id, path, inode } => {
                let is_it = |group: &Cgroup| group.inode().is_ok_and(|found| found == *inode);
                *boot_id == self.boot_id
                    && tree.group(path).is_ok_and(|group| is_it(&group) && group.populated())
            }
            Lifetime::Lease { boot_id, pid, start_time_ticks, expires_unix_s } => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                *boot_id == self.boot_id
                    && expires_unix_s.is_none_or(|expiry| now.as_secs() < expiry)
                    && self.runs(*pid, *start_time_ticks)
            }
            // Without a clock it lasts: memory that may be promised is not promised again.
            Lifetime::Term { boot_id, expires_boottime_s, .. } => {
                *boot_id == self.boot_id
                    && self.boottime_s().is_none_or(|now| now < *expires_boottime_s)
            }
        }
    }
}

impl Locked {
    /// Writes the record of a domain. It replaces an earlier one.
    #[cfg(any(test, feature = "simulation"))]
    pub fn put(&self, record: &Record) -> Result<(), Error> {
        self.write(&record.clone().into())
    }

    /// Writes a reservation. It replaces an earlier one.
    #[cfg(any(test, feature = "simulation"))]
    pub fn reserve(&self, reservation: &Reservation) -> Result<(), Error> {
        self.write(&reservation.clone().into())
    }

    /// Makes all changes or none: if one is refused, the ones before it are undone.
    ///
    /// # Errors
    /// The refusal; also where the earlier records could not be restored.
    pub fn put_all(&self, changes: &[Change]) -> Result<(), Error> {
        for (at, change) in changes.iter().enumerate() {
            let Err(error) = self.change(change) else { continue };
            let mut restored = changes[..at].iter().rev().map(|done| self.change(&done.reversed()));
            return match restored.find_map(Result::err) {
                None => Err(error),
                Some(also) => Err(Error::Refused(format!("{error}; it was not undone: {also}"))),
            };
        }
        Ok(())
    }

    fn change(&self, change: &Change) -> Result<(), Error> {
        match change {
            Change { after: Some(after), .. } => self.write(after),
            Change { before: Some(before), .. } => self.unlink(&file(before)),
            Change { before: None, after: None } => Ok(()),
        }
    }

    fn write(&self, subject: &Subject) -> Result<(), Error> {
        let (name, file) = (subject.name(), file(subject));
        if file.len() > MAX_FILE_NAME {
            return Err(Error::Refused(format!(
                "{name} cannot be recorded: its file's name would have {} bytes, at most \
                 {MAX_FILE_NAME} are possible",
                file.len()
            )));
        }
        let path = self.domains.path().join(&file);
        let text = format::text(&subject.for_all()).map_err(io::Error::from).at(&path)?;
        let arguments = arguments::text(subject).map_err(io::Error::from).at(&path)?;
        for (it, text) in [("record", Some(&text)), ("list of arguments", arguments.as_ref())] {
            let bytes = text.map_or(0, Vec::len);
            if bytes as u64 > MAX_RECORD_BYTES {
                return Err(Error::Refused(format!(
                    "{name} cannot be recorded: its {it} would have {bytes} bytes, at most \
                     {MAX_RECORD_BYTES} are possible"
                )));
            }
        }
        // Rolling back needs no space for files that are as they were.
        let is_present = |file: &str, text: &Vec<u8>| {
            let present = self.domains.read_within(file, MAX_RECORD_BYTES);
            present.is_ok_and(|present| present.as_ref() == Some(text))
        };
        // The arguments come first: a reader of the new record finds them.
        let private = arguments::file(&file);
        match arguments {
            Some(arguments) if is_present(&private, &arguments) => {}
            Some(arguments) => self.domains.replace_private(&private, &arguments)?,
            None if arguments::are_of_another(&self.domains, &private, &subject.lifetime()) => {
                self.domains.remove(&private)?
            }
            None => {}
        }
        match is_present(&file, &text) {
            true => Ok(()),
            false => self.domains.replace(&file, &text),
        }
    }

    /// Removes the file of a record, and that of its arguments.
    fn unlink(&self, file: &str) -> Result<(), Error> {
        self.domains.remove(file)?;
        self.domains.remove(&arguments::file(file))
    }

    /// Removes the record of a domain; fine if it is gone already.
    #[cfg(any(test, feature = "simulation"))]
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.unlink(&domain_file(name))
    }

    /// Removes a reservation; fine if it is gone already.
    #[cfg(any(test, feature = "simulation"))]
    pub fn release(&self, name: &str) -> Result<(), Error> {
        self.unlink(&reservation_file(name))
    }

    /// Writes the changes of a transaction, before its first effect.
    ///
    /// # Errors
    /// If it cannot be written, or if an earlier transaction is unfinished.
    pub fn begin_journal(&self, journal: &Journal) -> Result<(), Error> {
        if journal::exists(&self.own)? {
            return Err(Error::Refused("an earlier transaction is unfinished".into()));
        }
        journal::write(&self.own, &self.store.boot_id, journal)
    }

    /// Replaces the journal, which has changes that could not be rolled back.
    ///
    /// # Errors
    /// If it cannot be written. Then the former one stays.
    pub fn replace_journal(&self, journal: &Journal) -> Result<(), Error> {
        journal::write(&self.own, &self.store.boot_id, journal)
    }

    /// Removes the journal, after the records of the transaction have been written.
    pub fn end_journal(&self) -> Result<(), Error> {
        journal::remove(&self.own)
    }

    /// The transaction in which a process was killed, if there is one. A journal whose domains have
    /// all ended is removed, as is one of an earlier boot.
    ///
    /// # Errors
    /// If the journal of a living subject cannot be read, for example because another version
    /// wrote it.
    pub fn unfinished(&self, tree: &Tree) -> Result<Option<Journal>, Error> {
        let unfinished = self.store.journal(&self.own, tree)?;
        if unfinished.is_none() {
            self.end_journal()?;
        }
        Ok(unfinished)
    }

    /// Removes the records of dead subjects, and empty cgroups below `parent`. Rewrites the records
    /// of earlier versions, which show a command's arguments to all. Returns the others.
    pub fn sweep(&self, tree: &Tree, parent: Option<&str>) -> Result<Subjects, Error> {
        let mut subjects = Subjects::default();
        let entries = entries(&self.domains)?;
        let files: BTreeSet<_> = entries.iter().map(|it| arguments::file(&it.file)).collect();
        for entry in entries {
            if self.store.has_ended(&entry, tree) {
                self.unlink(&entry.file)?;
                continue;
            }
            match entry.subject {
                Ok(subject) => {
                    if entry.shows_arguments {
                        // Without space for a second file the next process tries again.
                        let _ = self.write(&subject);
                    }
                    subjects.alive.push(self.store.present(subject));
                }
                Err(unreadable) => subjects.unreadable.push(unreadable),
            }
        }
        // A process that was killed between two files leaves arguments without a record.
        let is_alone = |name: &String| arguments::is_file(name) && !files.contains(name);
        for file in self.domains.all_names()?.into_iter().filter(is_alone) {
            self.domains.remove(&file)?;
        }
        // A process that makes a cgroup enters it before it releases the lock. So an empty cgroup
        // has no owner any more.
        let groups = parent
            .and_then(|parent| tree.group(parent).ok())
            .into_iter()
            .flat_map(|parent| parent.children());
        let alive: BTreeSet<_> = subjects.alive.iter().filter_map(cgroup).collect();
        for group in groups.filter(|it| !alive.contains(it.path()) && !it.populated()) {
            for below in group.subtree().iter().rev() {
                // A cgroup that cannot be removed yet claims no memory, and the next process tries
                // again.
                let _ = below.remove();
            }
        }
        Ok(subjects)
    }
}

impl Subjects {
    /// All that counts: the living subjects, and the memory that unreadable records claim, as far
    /// as it is known.
    pub fn counted(self) -> Vec<Subject> {
        let unreadable = self.unreadable.iter().filter_map(Unreadable::observed);
        self.alive.into_iter().chain(unreadable).collect()
    }
}

fn domain(subject: Subject) -> Option<Record> {
    match subject {
        Subject::Domain(record) => Some(record),
        Subject::Reservation(_) => None,
    }
}

/// The path of a domain's cgroup.
fn cgroup(subject: &Subject) -> Option<&str> {
    match subject {
        Subject::Domain(record) => Some(&record.cgroup),
        Subject::Reservation(_) => None,
    }
}

/// Files that were removed meanwhile are skipped.
fn entries(domains: &Folder) -> Result<Vec<Entry>, Error> {
    let entry = |file: String| entry(domains, file);
    Ok(domains
        .all_names()?
        .into_iter()
        .filter(|name| name.ends_with(SUFFIX))
        .filter_map(entry)
        .collect())
}

/// Reads a file. None if it was removed meanwhile.
fn entry(domains: &Folder, file: String) -> Option<Entry> {
    let (parsed, shows_arguments, text) =
        match domains.read_within(&file, MAX_RECORD_BYTES).transpose()? {
            Ok(text) => {
                let (parsed, shows_arguments) = read_both(domains, &file, &text);
                (parsed, shows_arguments, Some(text))
            }
            Err(error) => (Parsed { lifetime: None, subject: Err(error) }, false, None),
        };
    let Parsed { lifetime, subject } = parsed;
    let subject =
        subject.map_err(|error| Unreadable::new(&file, error, lifetime.clone(), text.as_deref()));
    Some(Entry { file, lifetime, subject, shows_arguments })
}

/// The record in a file, with the arguments of its command if this process's user may see them.
/// None if it was removed meanwhile.
pub(super) fn read(domains: &Folder, file: &str) -> Option<Result<Subject, Unreadable>> {
    Some(entry(domains, file.into())?.subject)
}

/// Reads a record, and the arguments of its command if this process's user may see them. Also
/// whether the text itself has arguments.
fn read_both(domains: &Folder, file: &str, text: &[u8]) -> (Parsed, bool) {
    let Parsed { lifetime, subject } = parse_file(domains, file, text);
    let shows_arguments = subject.as_ref().is_ok_and(arguments::are_in);
    let subject = subject.map(|subject| arguments::seen(subject, domains, file));
    (Parsed { lifetime, subject }, shows_arguments)
}

/// Reads the file of a record. It must have the name of its file, because it is written and removed
/// by its name.
fn parse_file(domains: &Folder, file: &str, text: &[u8]) -> Parsed {
    let path = domains.path().join(file);
    let Parsed { lifetime, subject } = format::parse(&path, text);
    let subject = subject.and_then(|subject| {
        let why = format!("read the name {:?}, expected that of the file", subject.name());
        match names::file(&subject) == file {
            true => Ok(subject),
            false => Err(format::unreadable(&path, why)),
        }
    });
    Parsed { lifetime, subject }
}

/// Adds the missing privilege to an error of permission.
fn needs_root(error: Error) -> Error {
    match error {
        Error::File { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            Error::NotPermitted {
                what: format!("record claims in {}", path.display()),
                needs: "root",
            }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
