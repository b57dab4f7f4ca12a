//! The helper's loop.

use super::{Replicator, connection::Connection, file::Guest};
use crate::{
    error::{Error, IoContext},
    file_id::FileId,
    lease, leftovers,
    namespace::Namespace,
    sys::{self, Urgency},
};
use nearside_policy::replication::Event;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{ReadFlags, Reader},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

/// The reason why the loop woke up.
enum Woken {
    Signal,
    Change,
    Mounts,
    Copied,
    Client,
    Manager,
    ManagersReplaced,
    Request(usize),
    Process(FileId),
    ManagerEnded(FileId),
}

impl Replicator {
    /// Serves until `SIGTERM`, `SIGINT` or `SIGHUP`, then removes all copies. `ready` is called
    /// once clients can connect.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub fn run(mut self, ready: impl FnOnce()) -> Result<(), Error> {
        let mut connections: Vec<Connection> = Vec::new();
        ready();
        if let Err(error) = sys::set_urgency(Urgency::Thread) {
            log!(
                "beside busy processes writers will wait longer: its threads \
                 may not run before others: {error} (LimitRTPRIO=1 or CAP_SYS_NICE allows it)"
            );
        }
        loop {
            self.look_at_memory();
            self.retry_leases();
            self.retry_attachments();
            self.look_for_absent();
            self.look_at_places();
            self.look_for_managers();
            self.look_for_late_users();
            for woken in self.wait(&connections)? {
                match woken {
                    Woken::Signal => {
                        let taken = self.signals.take();
                        if taken.is_end {
                            self.end();
                            return Ok(());
                        }
                        if taken.is_break {
                            self.broken();
                        }
                    }
                    Woken::Change => self.changed(),
                    Woken::Mounts => self.forget_unmounted(),
                    Woken::Copied => {
                        for done in self.copier.take_done() {
                            self.copied(done);
                        }
                    }
                    Woken::Client => connections.extend(Connection::accept(self.listener.as_fd())),
                    Woken::Request(at) => {
                        if let Some(connection) = connections.get_mut(at) {
                            connection.open = connection.serve(|asked| self.answer(asked));
                        }
                    }
                    Woken::Process(namespace) => self.process_ended(namespace),
                    Woken::Manager => self.managers_started(),
                    Woken::ManagersReplaced => self.managers_replaced(),
                    Woken::ManagerEnded(namespace) => self.manager_ended(namespace),
                }
            }
            connections.retain(|connection| connection.open);
        }
    }

    fn wait(&self, connections: &[Connection]) -> Result<Vec<Woken>, Error> {
        let on = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        // Breaks come first: a writer waits.
        let mut fds = vec![
            (on(self.signals.as_fd()), Woken::Signal),
            (on(self.changes.as_fd()), Woken::Change),
            (on(self.copier.as_fd()), Woken::Copied),
            (on(self.listener.as_fd()), Woken::Client),
        ];
        // Each change of mounts is told once (proc_pid_mounts(5)).
        let mounts = PollFd::from_borrowed_fd(self.host_mounts.as_fd(), PollFlags::PRI);
        fds.push((mounts, Woken::Mounts));
        fds.extend(self.managers.iter().map(|managers| (on(managers.as_fd()), Woken::Manager)));
        let replaced = self.managers.iter().map(|managers| on(managers.changes()));
        fds.extend(replaced.map(|changes| (changes, Woken::ManagersReplaced)));
        let requests = connections.iter().enumerate();
        fds.extend(requests.map(|(at, connection)| (on(connection.as_fd()), Woken::Request(at))));
        for (id, guest) in &self.guests {
            fds.push((on(guest.process.as_fd()), Woken::Process(*id)));
            let managers = guest.managers.values();
            fds.extend(managers.map(|manager| (on(manager.as_fd()), Woken::ManagerEnded(*id))));
        }
        let (mut fds, kinds): (Vec<_>, Vec<_>) = fds.into_iter().unzip();
        let until = [
            self.until_next_look(),
            self.until_retry(),
            self.until_absent(),
            self.until_places(),
            self.until_managers(),
            self.until_attachment(),
            self.until_late(),
        ];
        let until = until.into_iter().flatten().min();
        let until = until.and_then(|wait| Timespec::try_from(wait).ok());
        match poll(&mut fds, until.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(vec![]),
            Err(error) => return Err(error).doing(|| "waiting for events".into()),
        }
        let woken = kinds.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(woken.map(|(kind, _)| kind).collect())
    }

    /// Someone waits for the end of a lease, or of several.
    fn broken(&mut self) {
        let leased = self.files.iter().filter(|(_, file)| file.life.is_leased());
        let broken = leased.filter(|(_, file)| !lease::is_whole(&file.original));
        let broken: Vec<_> = broken.map(|(id, _)| *id).collect();
        for id in broken {
            self.take(id, Event::Writer);
        }
    }

    /// The time until a lease is asked for again that was refused.
    fn until_retry(&self) -> Option<Duration> {
        let next = self.files.values().filter_map(|file| file.retry.at()).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Asks again for leases that writers have kept back.
    fn retry_leases(&mut self) {
        let now = Instant::now();
        let files = self.files.iter_mut();
        let due = files.filter_map(|(id, file)| file.retry.take_due(now).then_some(*id));
        for id in due.collect::<Vec<_>>() {
            self.take(id, Event::WriterClosed);
        }
    }

    /// Files were closed by writers, or got other attributes or names.
    fn changed(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(self.changes.as_fd(), &mut buffer);
        let mut seen = Vec::new();
        while let Ok(event) = reader.next() {
            seen.push((event.wd(), event.events()));
        }
        // After an overflow, any file may have changed.
        let all = seen.iter().any(|(_, events)| events.contains(ReadFlags::QUEUE_OVERFLOW));
        let ids: Vec<_> = self.files.keys().copied().collect();
        for id in ids {
            let Some(file) = self.files.get(&id) else { continue };
            let is_its = |watch| watch == file.watch || file.layer_watches.contains(&watch);
            let its = seen.iter().filter(|(watch, _)| is_its(*watch));
            let its = its.fold(ReadFlags::empty(), |its, (_, events)| its | *events);
            if !all && its.is_empty() {
                continue;
            }
            let has = |event| all || its.contains(event);
            let (closed, modified) = (has(ReadFlags::CLOSE_WRITE), has(ReadFlags::MODIFY));
            let attributes = has(ReadFlags::ATTRIB);
            let has_other_content = modified && file.life.is_leased() && file.original.is_changed();
            if self.is_replaced(id) {
                self.take(id, Event::Replaced);
            } else if has_other_content {
                // No one waits for it: an open for reading has truncated the file.
                self.take(id, Event::Writer);
            } else if closed {
                if let Some(file) = self.files.get_mut(&id) {
                    file.retry.reset();
                }
                self.take(id, Event::WriterClosed);
            }
            if attributes {
                if let Some(file) = self.files.get_mut(&id) {
                    file.has_new_attributes = true;
                }
                // Before the copies follow: one that cannot is not made again at once.
                self.take(id, Event::Attributes);
                self.refresh(id);
            }
        }
    }

    /// Mode, owner or extended attributes of the original may have changed: copies follow.
    fn refresh(&mut self, id: FileId) {
        let leased = self.files.get(&id).filter(|file| file.life.is_leased());
        let Some(file) = leased else { return };
        let copies = file.copies.iter();
        let stale = copies.filter_map(|(node, copy)| {
            let store = self.store(*node)?;
            let failed = store.refresh(&file.original, copy).err()?;
            Some((*node, failed.to_string()))
        });
        let stale = stale.collect::<Vec<_>>();
        if let Some(file) = self.files.get_mut(&id) {
            file.original.note_times();
        }
        // A copy that cannot follow goes.
        for (node, why) in stale {
            self.take(id, Event::Unfit(node, why));
        }
    }

    /// The process that stands for a namespace has ended. Another one of that namespace takes its
    /// place; without one, the namespace ends.
    fn process_ended(&mut self, id: FileId) {
        let Some(guest) = self.guests.remove(&id) else { return };
        match process_in(id) {
            Ok(None) => {}
            Ok(Some(process)) => {
                self.guests.insert(id, Guest { process, ..guest });
                return;
            }
            // The copies stay mounted. Those that go are found there, as in any namespace.
            Err(error) => {
                log!("processes cannot be listed: {error}");
                return;
            }
        }
        // A bind mount or a descriptor may keep the namespace, and others may enter it.
        let mounts: Vec<_> = guest.mounts.values().map(|it| it.mount.as_fd()).collect();
        if let Err(error) = self.visitor.unbind(&guest.namespace, &mounts) {
            log!("copies stay mounted in a namespace without processes: {error}");
        }
    }

    /// Withdraws everything.
    fn end(&mut self) {
        // Clients that come now are told that no replicator runs.
        let _ = std::fs::remove_file(&self.socket);
        let ids: Vec<_> = self.files.keys().copied().collect();
        for id in ids {
            self.give_up(id);
        }
        self.look_for_last_users();
        leftovers::forget(&self.folder);
    }
}

/// A process in a mount namespace.
fn process_in(namespace: FileId) -> io::Result<Option<OwnedFd>> {
    let entries = std::fs::read_dir("/proc")?;
    let mut processes = entries.flatten().filter_map(|it| it.file_name().to_str()?.parse().ok());
    let found = processes.find_map(|pid: u32| {
        let is_in = || Namespace::of(pid).is_ok_and(|it| it.id() == namespace);
        // Looked at again with the descriptor in hand: the number may be another's by now.
        let process = is_in().then(|| open_process(pid)).flatten()?;
        is_in().then_some(process)
    });
    Ok(found)
}

/// A process by descriptor, which becomes readable when it ends.
pub(super) fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
