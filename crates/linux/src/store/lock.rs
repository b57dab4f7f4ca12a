//! The lock on the store. One process at a time changes domains, in order of arrival.
//!
//! An exclusive flock on the file `lock` admits one process. It keeps no order: a process that
//! asks again and again can overtake one that waits. Tickets in the folder `queue` keep the order.
//! A ticket is a FIFO named `NUMBER-PID`. Its owner holds the write end open, and a flock on it,
//! while it waits and while it holds the lock:
//!
//! - Each waiter polls the next lower ticket for the hang-up that comes when its owner closes it.
//!   The kernel hangs up as well when the owner executes a program or dies, so no ticket outlives
//!   its owner. The next process in line removes the file of a dead ticket.
//! - A byte in the FIFO sets the ticket aside while its owner does something that may take long,
//!   such as writing to a terminal. The other processes pass it meanwhile.
//! - Other processes also pass a process that cannot run: one that is stopped (SIGSTOP), or whose
//!   cgroup is frozen. The kernel reports no event for that, so each waiter checks the process
//!   ahead of it once a second.
//!
//! Tickets decide only the order. The flock admits one process at a time even if all tickets were
//! removed.

use super::process::Process;
use crate::{
    error::{Error, IoContext},
    escape,
    folder::Folder,
    lock_file::LockFile,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::FlockOperation,
    io::Errno,
};
use std::{
    ffi::OsStr,
    fmt::{self, Display, Formatter},
    fs,
    io::{self, Read},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// The file whose flock admits one process.
pub(super) const LOCK: &str = "lock";
/// The folder of tickets.
const QUEUE: &str = "queue";
/// The file in it that is locked while a ticket is made.
const GATE: &str = "gate";

/// The wait after which the caller learns the holder of the lock.
const NOTIFY_AFTER: Duration = Duration::from_secs(2);
/// The longest pause of a waiter between two looks at the process ahead.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause between two attempts at a flock, because a blocking flock has no timeout.
const RETRY_EVERY: Duration = Duration::from_millis(5);

/// How to wait for the lock.
pub(crate) struct Wait<'a> {
    /// The bound of the wait; without one, it ends when the lock is free.
    pub at_most: Option<Duration>,
    /// The `proc` folder, which names the process that holds the lock.
    pub proc: &'a Path,
    /// Called once, after two seconds of waiting. It may take long: other processes pass this one
    /// meanwhile.
    pub notify: &'a mut dyn FnMut(&LockWait),
    /// Called at least once a second while waiting.
    pub meanwhile: &'a mut dyn FnMut(),
}

/// A wait for the lock that takes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockWait {
    /// The process that holds the lock; none if the kernel does not name it, or if it is free.
    pub holder: Option<Holder>,
    /// The process ahead in line.
    pub ahead: Option<Holder>,
    /// The file of the lock.
    pub lock: PathBuf,
}

/// A process that holds the lock, or is ahead in line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its command's name (`/proc/PID/comm`), as the process chose it; none if it cannot be read.
    pub command: Option<String>,
}

/// The lock. Free again when this is dropped, and when the process executes a program or ends.
#[derive(Debug)]
pub(super) struct Held {
    // Dropped in this order, so that the next process finds the lock free when the ticket ends.
    _lock: LockFile,
    _ticket: Ticket,
}

/// A place in the queue.
#[derive(Debug)]
struct Ticket {
    queue: Folder,
    name: Name,
    fifo: OwnedFd,
}

/// The name of a ticket. Lower numbers come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    number: u64,
    pid: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Its owner waits, or holds the lock.
    InLine,
    /// Its owner lets other processes pass for a while.
    Aside,
    /// Its owner has ended.
    Ended,
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("at_most", &self.at_most).finish_non_exhaustive()
    }
}

impl Display for LockWait {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let lock = self.lock.display();
        match (&self.holder, &self.ahead) {
            (Some(holder), _) => write!(f, "{holder} holds {lock}"),
            (None, Some(ahead)) => write!(f, "{ahead} is ahead in line for {lock}"),
            (None, None) => write!(f, "another process holds {lock}"),
        }
    }
}

impl Holder {
    fn named(proc: &Path, pid: u32) -> Self {
        let command = fs::read(proc.join(pid.to_string()).join("comm")).ok();
        let text = |name: Vec<u8>| escape::text(OsStr::from_bytes(name.trim_ascii_end()));
        Self { pid, command: command.map(text) }
    }
}

impl Display for Holder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.command {
            None => write!(f, "process {}", self.pid),
            Some(command) => {
                // A `\` may belong to an escape already.
                let parts = command.split('\\').map(|part| part.escape_debug().to_string());
                write!(f, "process {} ({})", self.pid, parts.collect::<Vec<_>>().join("\\"))
            }
        }
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { number, pid } = self;
        write!(f, "{number}-{pid}")
    }
}

impl Name {
    fn parse(file: &str) -> Option<Self> {
        let (number, pid) = file.split_once('-')?;
        Some(Self { number: number.parse().ok()?, pid: pid.parse().ok()? })
    }
}

/// Waits for the lock of the store in the folder `own`.
///
/// # Errors
/// [`Error::Refused`], which names the holder, if the wait reaches its bound.
pub(super) fn take(own: &Folder, wait: &mut Wait<'_>) -> Result<Held, Error> {
    let lock = own.lock_file(LOCK)?;
    let mut waiting = Waiting {
        began: Instant::now(),
        was_notified: false,
        wait,
        lock: &lock,
        path: own.path().join(LOCK),
        ahead: None,
    };
    let ticket = waiting.draw(own.make_below(QUEUE)?)?;
    waiting.turn(&ticket)?;
    Ok(Held { _lock: lock, _ticket: ticket })
}

struct Waiting<'a, 'w> {
    began: Instant,
    was_notified: bool,
    wait: &'a mut Wait<'w>,
    lock: &'a LockFile,
    path: PathBuf,
    /// The process ahead in line.
    ahead: Option<u32>,
}

impl Waiting<'_, '_> {
    /// Takes a ticket with a number above all others. The gate makes sure that a number is not used
    /// again while a higher one is in line.
    fn draw(&mut self, queue: Folder) -> Result<Ticket, Error> {
        let gate = queue.lock_file(GATE)?;
        self.lock(&gate, &queue.path().join(GATE), None)?;
        let last = names(&queue)?.map(|name| name.number).max().unwrap_or(0);
        let number = last.checked_add(1).ok_or_else(|| {
            Error::Refused(format!("{} has no number left: empty it", queue.path().display()))
        })?;
        let name = Name { number, pid: std::process::id() };
        let fifo = queue.make_fifo(&name.to_string())?;
        let ticket = Ticket { queue, name, fifo };
        let locked = FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&ticket.fifo, locked).at(&ticket.path(&name))?;
        Ok(ticket)
    }

    /// Waits until no ticket is ahead, and then for the lock itself.
    fn turn(&mut self, ticket: &Ticket) -> Result<(), Error> {
        while let Some((owner, ahead)) = ticket.ahead(self.wait.proc)? {
            self.ahead = Some(owner);
            let pause = self.pause(Some(ticket))?;
            let timeout = Timespec::try_from(pause).unwrap_or_default();
            let events = PollFlags::IN | PollFlags::HUP;
            match rustix::event::poll(&mut [PollFd::new(&ahead, events)], Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("wait for the process ahead"),
            }
        }
        self.ahead = None;
        let (lock, path) = (self.lock, self.path.clone());
        self.lock(lock, &path, Some(ticket))
    }

    /// Takes a flock. A process without a ticket may hold it for long, a process with one only for
    /// an instant.
    fn lock(&mut self, file: &LockFile, path: &Path, ticket: Option<&Ticket>) -> Result<(), Error> {
        while !file.try_lock().at(path)? {
            thread::sleep(self.pause(ticket)?.min(RETRY_EVERY));
        }
        Ok(())
    }

    /// Calls the caller's functions when they are due, and returns the time until the next call.
    fn pause(&mut self, ticket: Option<&Ticket>) -> Result<Duration, Error> {
        let left = |bound: Duration| bound.saturating_sub(self.began.elapsed());
        if let Some(at_most) = self.wait.at_most.filter(|&at_most| left(at_most).is_zero()) {
            let (why, seconds) = (self.describe(), at_most.as_secs_f64());
            return Err(Error::Refused(format!("{why} (waited {seconds} s)")));
        }
        (self.wait.meanwhile)();
        if !self.was_notified && left(NOTIFY_AFTER).is_zero() {
            self.was_notified = true;
            let described = self.describe();
            let _aside = ticket.map(Ticket::step_aside);
            (self.wait.notify)(&described);
        }
        let left = |bound: Duration| bound.saturating_sub(self.began.elapsed());
        let notify = (!self.was_notified).then(|| left(NOTIFY_AFTER));
        let bounds = [self.wait.at_most.map(left), notify, Some(LOOK_EVERY)];
        Ok(bounds.into_iter().flatten().min().unwrap_or(LOOK_EVERY))
    }

    fn describe(&self) -> LockWait {
        let proc = self.wait.proc;
        LockWait {
            holder: holder(self.lock, proc),
            ahead: self.ahead.map(|pid| Holder::named(proc, pid)),
            lock: self.path.clone(),
        }
    }
}

impl Ticket {
    fn path(&self, name: &Name) -> PathBuf {
        self.queue.path().join(name.to_string())
    }

    /// The next lower ticket whose owner must be waited for, and that owner. Removes dead tickets
    /// on the way.
    fn ahead(&self, proc: &Path) -> Result<Option<(u32, OwnedFd)>, Error> {
        let mut lower: Vec<_> = names(&self.queue)?.filter(|name| *name < self.name).collect();
        lower.sort_unstable();
        for name in lower.into_iter().rev() {
            let file = name.to_string();
            let Some(fifo) = self.queue.open_fifo(&file)? else { continue };
            match state(&fifo).at(&self.path(&name))? {
                State::InLine if Process::is_held(proc, name.pid) => {}
                State::InLine => return Ok(Some((name.pid, fifo))),
                State::Aside => {}
                State::Ended => self.queue.remove(&file)?,
            }
        }
        Ok(None)
    }

    /// Lets other processes pass until the result is dropped.
    fn step_aside(&self) -> impl Drop {
        struct Aside<'a>(&'a OwnedFd);
        impl Drop for Aside<'_> {
            fn drop(&mut self) {
                let _ = rustix::io::read(self.0, &mut [0; 1]);
            }
        }
        let _ = rustix::io::write(&self.fifo, b"a");
        Aside(&self.fifo)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The next process in line removes a ticket that remains.
        let _ = self.queue.remove(&self.name.to_string());
    }
}

fn names(queue: &Folder) -> Result<impl Iterator<Item = Name>, Error> {
    Ok(queue.all_names()?.into_iter().filter_map(|file| Name::parse(&file)))
}

/// The state of a ticket, from its FIFO opened for reading.
fn state(fifo: &OwnedFd) -> Result<State, Errno> {
    match rustix::fs::flock(fifo, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(State::Ended),
        Err(Errno::WOULDBLOCK) => {
            let mut polled = [PollFd::new(fifo, PollFlags::IN)];
            rustix::event::poll(&mut polled, Some(&Timespec::default()))?;
            let is_aside = polled[0].revents().contains(PollFlags::IN);
            Ok(if is_aside { State::Aside } else { State::InLine })
        }
        Err(error) => Err(error),
    }
}

/// The process that has the flock on `lock`; none if the kernel does not name it, or if it is free.
fn holder(lock: &LockFile, proc: &Path) -> Option<Holder> {
    const TIMES: usize = 8;
    let file = rustix::fs::fstat(lock).ok()?;
    let named = |_| holder_in(&all_locks(proc).ok()?, file.st_dev, file.st_ino);
    Some(Holder::named(proc, (0..TIMES).find_map(named)?))
}

/// The text of `/proc/locks`. The kernel leaves a lock out if one before it ends between two reads
/// (`seq_read_iter` in Linux, `fs/seq_file.c`). A read gives a page at most, and no more lines than
/// the buffer holds, so a large buffer makes such a gap rare.
fn all_locks(proc: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(1 << 16);
    fs::File::open(proc.join("locks"))?.read_to_string(&mut text)?;
    Ok(text)
}

/// From `/proc/locks` (`lock_get_status` in Linux, `fs/locks.c`), the holder of the flock on the
/// file with this device and inode: `1: FLOCK  ADVISORY  WRITE 731 00:1a:1042 0 EOF`. Waiters stand
/// behind arrows and are left out. On Btrfs, a file's device differs from its file system's, so
/// nobody is found.
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let process = words.nth(2)?.parse().ok()?;
        (is_flock && words.next() == Some(&*file)).then_some(process)
    })
}

#[cfg(test)]
mod tests;
