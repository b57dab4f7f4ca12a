//! Exchanges files in a process that is stopped for it, all or none.

use super::{
    descriptors::Descriptor,
    error::RemapError,
    maps::{Advice, PAGE_BYTES, Properties, Segment},
    plan::{Change, changes, keep},
    process::{Files, Process},
    refusal::{Facts, Operation, Refusal, refusal, refusal_to_stop},
    report::{Exchange, Report},
    stopped::{Stopped, find_syscall},
};
use crate::file_id::FileId;
use crate::sys;
use std::{collections::BTreeMap, io, ops::Range, os::unix::ffi::OsStrExt, path::Path};

/// Exchanges files. The caller may have read `segments` before. If the process executes another
/// program meanwhile, nothing is found to exchange, or no instruction for it. The calling thread
/// traces the process, and has to end afterwards.
pub(crate) fn exchange(
    process: &Process,
    segments: Option<Vec<Segment>>,
    exchanges: &[Exchange],
    operation: Operation,
) -> Result<Report, RemapError> {
    let facts = process.facts()?;
    if let Some(why) = refusal(&facts, operation) {
        return Err(process.refused(why));
    }
    let mut work = Work::new(process, exchanges, operation)?;
    let segments = segments.map_or_else(|| work.segments(), Ok)?;
    let Some(instruction) = work.prepare(&segments, &facts)? else {
        return Ok(Report::default());
    };
    let stopped = Stopped::stop(process, facts.has_seccomp, operation.deadline())?;
    let segments = work.segments()?;
    work.carry_out(stopped, &segments, instruction)
}

/// Returns a process to originals as [`exchange`] does, but stops it before it looks at more than
/// its threads, and calls `hold` then: a writer waits for no more than that. None if it must not be
/// held.
pub(crate) fn hold_and_exchange(
    process: &Process,
    exchanges: &[Exchange],
    hold: impl FnOnce(),
) -> Result<Option<Report>, RemapError> {
    let operation = Operation::Detach;
    let mut facts = process.facts_of_threads()?;
    if let Some(why) = refusal_to_stop(&facts) {
        return Err(process.refused(why));
    }
    // A thread that waits in `vfork` does not stop, and its child has to go on.
    if process.may_be_in_vfork(&facts) {
        return Ok(None);
    }
    let stopped = Stopped::stop(process, facts.has_seccomp, operation.deadline())?;
    hold();
    process.add_program(&mut facts)?;
    process.find_sharers(&mut facts)?;
    if let Some(why) = refusal(&facts, operation) {
        return Err(process.refused(why));
    }
    let mut work = Work::new(process, exchanges, operation)?;
    let segments = work.segments()?;
    match work.prepare(&segments, &facts)? {
        Some(instruction) => work.carry_out(stopped, &segments, instruction).map(Some),
        None => Ok(Some(Report::default())),
    }
}

/// Knowledge about the process, and the exchanges wanted.
struct Work<'a> {
    process: &'a Process,
    exchanges: &'a [Exchange],
    operation: Operation,
    files: Files,
    properties: BTreeMap<(u64, u64), Properties>,
    locks_memory: bool,
}

/// The changes for one file.
struct FileChanges<'a> {
    exchange: &'a Exchange,
    changes: Vec<Change>,
    /// Descriptors, each with the number of an earlier one that it is a duplicate of.
    descriptors: Vec<(Descriptor, Option<u32>)>,
}

impl FileChanges<'_> {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.descriptors.is_empty()
    }
}

impl<'a> Work<'a> {
    fn new(
        process: &'a Process,
        exchanges: &'a [Exchange],
        operation: Operation,
    ) -> Result<Self, RemapError> {
        for exchange in exchanges {
            let bytes = exchange.path.as_os_str().as_bytes();
            let fits = bytes.len() < PAGE_BYTES as usize && !bytes.contains(&0);
            if !fits || !exchange.path.is_absolute() {
                return Err(RemapError::BadPath { path: exchange.path.clone() });
            }
        }
        let (files, properties) = (Files::to_exchange(operation), BTreeMap::new());
        Ok(Self { process, exchanges, operation, files, properties, locks_memory: false })
    }

    fn segments(&self) -> Result<Vec<Segment>, RemapError> {
        match self.operation {
            Operation::Attach => self.process.segments(),
            // A writer waits, and nothing here asks for the names of files.
            Operation::Detach => self.process.segments_without_names(),
        }
    }

    /// Checks that the paths show what they are to show, and finds an instruction that makes system
    /// calls. None if there is nothing to exchange.
    fn prepare(&mut self, segments: &[Segment], facts: &Facts) -> Result<Option<u64>, RemapError> {
        let is_exchanged = |files: &mut Files, segment: &Segment| {
            let file = files.of(self.process, segment);
            self.exchanges.iter().any(|exchange| file == Some(exchange.from))
        };
        let concerned: Vec<&Segment> =
            segments.iter().filter(|segment| is_exchanged(&mut self.files, segment)).collect();
        if concerned.is_empty() && !self.has_descriptors()? {
            return Ok(None);
        }
        // The copies of all nodes return to one file.
        let targets: BTreeMap<_, _> =
            self.exchanges.iter().map(|it| ((&it.path, it.to), it)).collect();
        for exchange in targets.into_values() {
            self.check_path(exchange)?;
        }
        self.locks_memory = facts.locks_memory;
        let end = concerned.iter().map(|segment| segment.addresses.end).max().unwrap_or(0);
        self.properties = self.process.properties(end)?;
        find_syscall(self.process, segments, |segment| concerned.contains(&segment)).map(Some)
    }

    /// Makes the changes in the process, which has these segments while it is stopped.
    fn carry_out(
        mut self,
        mut stopped: Stopped<'a>,
        segments: &[Segment],
        instruction: u64,
    ) -> Result<Report, RemapError> {
        stopped.prepare(instruction)?;
        let mut report = Report { threads: stopped.threads(), ..Report::default() };
        let planned = self.plan(segments, &mut report)?;
        if planned.iter().any(|file| !file.is_empty()) {
            let process = self.process;
            let mut swap = Swap { process, stopped: &mut stopped, arena: 0..0, undo: Vec::new() };
            swap.all(&planned, self.any_locked())?;
        }
        report.stopped = stopped.release()?;
        Ok(report)
    }

    fn has_descriptors(&self) -> Result<bool, RemapError> {
        if self.operation == Operation::Attach {
            return Ok(false);
        }
        Ok(!self.descriptors()?.is_empty())
    }

    /// The descriptors of the files that it is to give up.
    fn descriptors(&self) -> Result<Vec<(FileId, Descriptor)>, RemapError> {
        let files = self.exchanges.iter().map(|exchange| exchange.from).collect();
        self.process.descriptors(&files)
    }

    /// Checks the path from outside: the tracer asks no file system that a server answers for.
    fn check_path(&self, exchange: &Exchange) -> Result<(), RemapError> {
        match self.process.file_at(&exchange.path) {
            Ok(found) if found == exchange.to => Ok(()),
            Ok(found) => Err(other_file(self.process, exchange, found)),
            Err(source) => Err(open_failed(self.process, &exchange.path, source)),
        }
    }

    fn any_locked(&self) -> bool {
        self.locks_memory || self.properties.values().any(|properties| properties.locked)
    }

    /// Plans the changes of the stopped process, and reports what changes and what stays.
    fn plan(
        &mut self,
        segments: &[Segment],
        report: &mut Report,
    ) -> Result<Vec<FileChanges<'a>>, RemapError> {
        let descriptors = match self.operation {
            Operation::Attach => Vec::new(),
            Operation::Detach => self.descriptors()?,
        };
        let mut planned = Vec::new();
        for exchange in self.exchanges {
            let mut file = FileChanges { exchange, changes: Vec::new(), descriptors: Vec::new() };
            for segment in segments {
                if self.files.of(self.process, segment) != Some(exchange.from) {
                    continue;
                }
                let properties = self.properties_of(segment)?;
                if let Some(why) = keep(segment, &properties, self.operation) {
                    let (segment, bytes) = (segment.clone(), segment.bytes());
                    report.kept.push(super::plan::Kept { segment, bytes, why });
                    continue;
                }
                let parts = self.process.parts(segment)?;
                let (new, kept) = changes(segment, &properties, &parts, self.operation);
                report.kept.extend(kept);
                if !new.is_empty() {
                    report.changed.push(segment.clone());
                }
                file.changes.extend(new);
            }
            let its = descriptors.iter().filter(|(open, _)| *open == exchange.from);
            self.plan_descriptors(its.map(|(_, descriptor)| descriptor), &mut file, report);
            planned.push(file);
        }
        Ok(planned)
    }

    fn properties_of(&mut self, segment: &Segment) -> Result<Properties, RemapError> {
        let key = (segment.addresses.start, segment.addresses.end);
        if !self.properties.contains_key(&key) {
            // Mapped since they were read.
            self.properties = self.process.properties(u64::MAX)?;
        }
        Ok(self.properties.get(&key).copied().unwrap_or_default())
    }

    fn plan_descriptors<'d>(
        &self,
        descriptors: impl Iterator<Item = &'d Descriptor>,
        file: &mut FileChanges<'_>,
        report: &mut Report,
    ) {
        for &descriptor in descriptors {
            let number = descriptor.number;
            if !descriptor.is_read_only() {
                report.kept_descriptors.push(descriptor);
                continue;
            }
            let is_duplicate = |(earlier, _): &&(Descriptor, Option<u32>)| {
                sys::same_open_file(self.process.pid(), earlier.number, number).unwrap_or(false)
            };
            let first = file.descriptors.iter().find(is_duplicate).map(|(it, _)| it.number);
            report.descriptors.push(number);
            report.lost_locks.extend(descriptor.locked.then_some(number));
            file.descriptors.push((descriptor, first));
        }
    }
}

fn other_file(process: &Process, exchange: &Exchange, found: FileId) -> RemapError {
    let (pid, path) = (process.pid(), exchange.path.clone());
    RemapError::OtherFile { pid, path, expected: exchange.to, found }
}

fn open_failed(process: &Process, path: &Path, source: io::Error) -> RemapError {
    // Without memory it has no root and no descriptors either (`do_exit` in `kernel/exit.c`).
    if !process.has_memory() {
        return process.refused(Refusal::Gone);
    }
    RemapError::Open { pid: process.pid(), path: path.into(), source }
}

/// How to take one change back, and what is left to tidy up once it stays.
enum Undo {
    /// A second mapping of what a segment showed before, in the arena.
    Segment { aside: u64, addresses: Range<u64> },
    /// A duplicate of what a descriptor was before.
    Descriptor { aside: u64, number: u32, flags: u64 },
}

/// The system calls of an exchange.
struct Swap<'s, 'p> {
    process: &'p Process,
    stopped: &'s mut Stopped<'p>,
    /// Addresses of the process: a page for arguments in memory, and then room for segments that
    /// are put aside. One call frees it all.
    arena: Range<u64>,
    undo: Vec<Undo>,
}

impl Swap<'_, '_> {
    /// Makes all changes, or takes back those that it has made.
    fn all(&mut self, planned: &[FileChanges<'_>], any_locked: bool) -> Result<(), RemapError> {
        let mut files = planned.iter().filter(|file| !file.is_empty());
        let done = self
            .reserve(planned)
            .and_then(|()| files.try_for_each(|file| self.file(file, any_locked)));
        let done = match done {
            Ok(()) => self.tidy(),
            // It was killed, so there is nothing to take back.
            Err(first @ RemapError::Refused { why: Refusal::Gone, .. }) => Err(first),
            Err(first) => match self.take_back() {
                Ok(()) => Err(first),
                Err(then) => {
                    let pid = self.process.pid();
                    Err(RemapError::NotUndone { pid, first: first.into(), then: then.into() })
                }
            },
        };
        let bytes = self.arena.end - self.arena.start;
        let arguments = [self.arena.start, bytes, 0, 0, 0, 0];
        let freed = self
            .call(libc::SYS_munmap, arguments, || "removing what was put aside (munmap)".into());
        done.and(freed.map(drop))
    }

    /// Finds addresses for the arena.
    fn reserve(&mut self, planned: &[FileChanges<'_>]) -> Result<(), RemapError> {
        let changes = planned.iter().flat_map(|file| &file.changes);
        let aside = changes.map(|change| change.addresses.end - change.addresses.start);
        let bytes = PAGE_BYTES + aside.sum::<u64>();
        // Without access, so that no memory is promised for it.
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let arguments = [0, bytes, libc::PROT_NONE as u64, flags, u64::MAX, 0];
        let start = self.call(libc::SYS_mmap, arguments, || "reserving addresses (mmap)".into())?;
        self.arena = start..start + bytes;
        let rights = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        self.call(libc::SYS_mprotect, [start, PAGE_BYTES, rights, 0, 0, 0], || {
            "preparing a page for paths (mprotect)".into()
        })
        .map(drop)
    }

    fn file(&mut self, file: &FileChanges<'_>, any_locked: bool) -> Result<(), RemapError> {
        if !file.changes.is_empty() {
            let opened = self.open(file.exchange, 0)?;
            let done =
                file.changes.iter().try_for_each(|change| self.segment(change, opened, any_locked));
            self.close(opened)?;
            done?;
        }
        file.descriptors
            .iter()
            .try_for_each(|(descriptor, first)| self.descriptor(file.exchange, descriptor, *first))
    }

    /// Opens the new file in the process. Verifies the file itself, because the path may have
    /// changed since it was checked.
    fn open(&mut self, exchange: &Exchange, flags: i32) -> Result<u64, RemapError> {
        let mut path = exchange.path.as_os_str().as_bytes().to_vec();
        path.push(0);
        self.stopped.write(self.arena.start, &path)?;
        // O_NONBLOCK: should the path be a FIFO by now, opening it must not wait.
        let once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
        let flags = flags & !once | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        let arguments = [libc::AT_FDCWD as u64, self.arena.start, flags as u64, 0, 0, 0];
        let opened = self
            .stopped
            .call(libc::SYS_openat, arguments)?
            .map_err(|source| open_failed(self.process, &exchange.path, source))?;
        let found = self.process.file_at_descriptor(opened);
        let done = match found {
            Ok(found) if found == exchange.to => return Ok(opened),
            Ok(found) => Err(other_file(self.process, exchange, found)),
            Err(source) => Err(open_failed(self.process, &exchange.path, source)),
        };
        self.close(opened)?;
        done
    }

    fn close(&mut self, descriptor: u64) -> Result<(), RemapError> {
        // Linux closes the descriptor even if it reports an error.
        self.stopped.call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]).map(drop)
    }

    fn segment(&mut self, change: &Change, file: u64, any_locked: bool) -> Result<(), RemapError> {
        let start = change.addresses.start;
        let bytes = change.addresses.end - start;
        let at = || format!("{:x}-{:x}", change.addresses.start, change.addresses.end);
        let aside = self.next_aside();
        // The old mapping stays in place meanwhile, without its pages.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        self.call(libc::SYS_mremap, [start, bytes, bytes, flags as u64, aside, 0], || {
            format!("putting {} aside (mremap)", at())
        })?;
        self.undo.push(Undo::Segment { aside, addresses: change.addresses.clone() });
        let properties = &change.properties;
        let protection = rights(&change.segment);
        let mut flags = libc::MAP_FIXED;
        flags |= if change.segment.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        if properties.no_reserve {
            flags |= libc::MAP_NORESERVE;
        }
        let arguments = [start, bytes, protection, flags as u64, file, change.offset_bytes];
        self.call(libc::SYS_mmap, arguments, || format!("mapping {} anew (mmap)", at()))?;
        for advice in advice(&properties.advice) {
            let arguments = [start, bytes, advice as u64, 0, 0, 0];
            self.call(libc::SYS_madvise, arguments, || format!("advising on {} (madvise)", at()))?;
        }
        if properties.locked {
            const MLOCK_ONFAULT: u64 = 1;
            let flags = if properties.locked_on_fault { MLOCK_ONFAULT } else { 0 };
            let locked = self.stopped.call(libc::SYS_mlock2, [start, bytes, flags, 0, 0, 0])?;
            // The writer may have emptied the file by now. Then no page can be locked yet.
            if locked.is_err() {
                let arguments = [start, bytes, MLOCK_ONFAULT, 0, 0, 0];
                self.call(libc::SYS_mlock2, arguments, || format!("locking {} (mlock2)", at()))?;
            }
        } else if any_locked {
            // After `mlockall(MCL_FUTURE)` new mappings are locked.
            self.call(libc::SYS_munlock, [start, bytes, 0, 0, 0, 0], || {
                format!("unlocking {} (munlock)", at())
            })?;
        }
        Ok(())
    }

    /// The part of the arena that is free: segments were put aside one after the other.
    fn next_aside(&self) -> u64 {
        let last = self.undo.iter().rev().find_map(|undo| match undo {
            Undo::Segment { aside, addresses } => Some(aside + (addresses.end - addresses.start)),
            Undo::Descriptor { .. } => None,
        });
        last.unwrap_or(self.arena.start + PAGE_BYTES)
    }

    fn descriptor(
        &mut self,
        exchange: &Exchange,
        descriptor: &Descriptor,
        first: Option<u32>,
    ) -> Result<(), RemapError> {
        let number = descriptor.number;
        let flags = if descriptor.close_on_exec { libc::O_CLOEXEC as u64 } else { 0 };
        let duplicate = [number.into(), libc::F_DUPFD_CLOEXEC as u64, 0, 0, 0, 0];
        let aside = self.call(libc::SYS_fcntl, duplicate, || {
            format!("putting descriptor {number} aside (fcntl)")
        })?;
        self.undo.push(Undo::Descriptor { aside, number, flags });
        let new = match first {
            Some(first) => first.into(),
            None => self.open_at(exchange, descriptor)?,
        };
        let done = self.call(libc::SYS_dup3, [new, number.into(), flags, 0, 0, 0], || {
            format!("replacing descriptor {number} (dup3)")
        });
        if first.is_none() {
            self.close(new)?;
        }
        done.map(drop)
    }

    /// Opens the new file as a descriptor of the old one is open.
    fn open_at(&mut self, exchange: &Exchange, descriptor: &Descriptor) -> Result<u64, RemapError> {
        let opened = self.open(exchange, descriptor.flags)?;
        let is_path_only = descriptor.flags & libc::O_PATH != 0;
        let mut done = Ok(0);
        if descriptor.offset_bytes != 0 && !is_path_only {
            let arguments = [opened, descriptor.offset_bytes, libc::SEEK_SET as u64, 0, 0, 0];
            done = self.call(libc::SYS_lseek, arguments, || "setting an offset (lseek)".into());
        }
        if done.is_ok() && !is_path_only {
            // Opening sets O_NONBLOCK, which the old descriptor need not have.
            let arguments = [opened, libc::F_SETFL as u64, descriptor.flags as u64, 0, 0, 0];
            done = self.call(libc::SYS_fcntl, arguments, || "setting flags (fcntl)".into());
        }
        match done {
            Ok(_) => Ok(opened),
            Err(error) => {
                self.close(opened)?;
                Err(error)
            }
        }
    }

    /// Closes the descriptors that an undo would have needed.
    fn tidy(&mut self) -> Result<(), RemapError> {
        for undo in std::mem::take(&mut self.undo) {
            if let Undo::Descriptor { aside, .. } = undo {
                self.close(aside)?;
            }
        }
        Ok(())
    }

    /// Takes the changes back, the last one first.
    fn take_back(&mut self) -> Result<(), RemapError> {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Segment { aside, addresses } => {
                    let bytes = addresses.end - addresses.start;
                    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                    let arguments = [aside, bytes, bytes, flags, addresses.start, 0];
                    self.call(libc::SYS_mremap, arguments, || {
                        format!("returning {:x}-{:x} (mremap)", addresses.start, addresses.end)
                    })?;
                }
                Undo::Descriptor { aside, number, flags } => {
                    self.call(libc::SYS_dup3, [aside, number.into(), flags, 0, 0, 0], || {
                        format!("returning descriptor {number} (dup3)")
                    })?;
                    self.close(aside)?;
                }
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        number: libc::c_long,
        arguments: [u64; 6],
        what: impl FnOnce() -> String,
    ) -> Result<u64, RemapError> {
        let pid = self.process.pid();
        let result = self.stopped.call(number, arguments)?;
        result.map_err(|source| RemapError::Call { pid, what: what(), source })
    }
}

/// The rights of a segment as `mmap` takes them.
fn rights(segment: &Segment) -> u64 {
    let protection = segment.protection;
    let rights = [
        (protection.read, libc::PROT_READ),
        (protection.write, libc::PROT_WRITE),
        (protection.execute, libc::PROT_EXEC),
    ];
    rights.iter().filter(|(has, _)| *has).map(|&(_, right)| right as u64).sum()
}

/// The advice of a segment as `madvise` takes it.
fn advice(advice: &Advice) -> impl Iterator<Item = libc::c_int> {
    let all = [
        (advice.huge_pages, libc::MADV_HUGEPAGE),
        (advice.no_huge_pages, libc::MADV_NOHUGEPAGE),
        (advice.no_fork, libc::MADV_DONTFORK),
        (advice.no_dump, libc::MADV_DONTDUMP),
        (advice.random, libc::MADV_RANDOM),
        (advice.sequential, libc::MADV_SEQUENTIAL),
        (advice.mergeable, libc::MADV_MERGEABLE),
    ];
    all.into_iter().filter(|(given, _)| *given).map(|(_, advice)| advice)
}
