//! The thread that copies. It keeps the helper free for writers that come meanwhile.

use crate::{
    error::Error,
    file_id::FileId,
    store::{Copy, NotCopied, Store},
};
use nearside_linux::{Host, Paths, Refusal, sys::page_bytes};
use nearside_policy::{ByNode, Purpose, Reservation, Transaction, Until, replication::CopyRefusal};
use nearside_topology::NodeId;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};
use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    slice,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// The name of the reservation.
const RESERVATION: &str = "text";

/// Jobs under one reservation, for which the lock is taken twice. Until it ends, a complete copy
/// counts twice, as memory in use and as reserved.
const MAX_BATCH: usize = 256;
const MAX_BATCH_BYTES: u64 = 64 << 20;

/// A copy to be made.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) file: FileId,
    pub(crate) original: Arc<File>,
    pub(crate) bytes: u64,
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) job: Job,
    pub(crate) made: Result<Copy, NotCopied>,
}

/// The handle of the thread. It ends with this.
#[derive(Debug)]
pub(crate) struct Copier {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    wake: Arc<OwnedFd>,
}

impl Copier {
    /// Starts the thread.
    pub(crate) fn start(stores: Arc<Vec<Store>>, paths: Option<Paths>) -> Result<Self, Error> {
        let call = |source| Error::Call { what: "starting the copier".into(), source };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(|error| call(error.into()))?);
        let (jobs, incoming) = channel::<Job>();
        let (outgoing, done) = channel();
        let waker = Arc::clone(&wake);
        let copy_all = move || {
            let mut room = Room { host: paths.and_then(open_host) };
            while let Ok(first) = incoming.recv() {
                let batch = batch(first, || incoming.try_recv().ok());
                let all = room.reserve(&batch);
                for job in batch {
                    let made = match &all {
                        Ok(()) => copy(&stores, &job),
                        // Not all have room. Each for itself may.
                        Err(_) => {
                            room.reserve(slice::from_ref(&job)).and_then(|()| copy(&stores, &job))
                        }
                    };
                    let ended = outgoing.send(Done { job, made }).is_err();
                    // It cannot be full: the helper resets it to 0.
                    let _ = write(waker.as_fd(), &1_u64.to_ne_bytes());
                    if ended {
                        return;
                    }
                }
                room.end();
            }
        };
        thread::Builder::new().name("copier".into()).spawn(copy_all).map_err(call)?;
        Ok(Self { jobs, done, wake })
    }

    /// Queues a job.
    pub(crate) fn copy(&self, job: Job) {
        // The thread outlives this handle unless it fails. Files would then wait for ever.
        if self.jobs.send(job).is_err() {
            log!("the thread that copies has failed");
            std::process::abort();
        }
    }

    /// The jobs that have ended since the last call.
    pub(crate) fn take_done(&self) -> Vec<Done> {
        let _ = read(self.wake.as_fd(), &mut [0; 8]);
        self.done.try_iter().collect()
    }
}

impl AsFd for Copier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The first job, and as many of the next ones as fit under the same reservation.
fn batch(first: Job, mut next: impl FnMut() -> Option<Job>) -> Vec<Job> {
    let mut bytes = first.bytes;
    let mut batch = vec![first];
    while batch.len() < MAX_BATCH
        && bytes < MAX_BATCH_BYTES
        && let Some(job) = next()
    {
        bytes = bytes.saturating_add(job.bytes);
        batch.push(job);
    }
    batch
}

fn copy(stores: &[Store], job: &Job) -> Result<Copy, NotCopied> {
    let Some(store) = stores.iter().find(|store| store.node() == job.node) else {
        return Err(NotCopied::Refused(CopyRefusal::NoRoom("it has no memory".into())));
    };
    store.copy(&job.original, &job.name, &job.cancelled)
}

/// The host, for reservations. If it cannot be opened, copies are made without: the checks after
/// a copy remain, of where its pages lie and of the memory left.
fn open_host(paths: Paths) -> Option<Host> {
    let opened = Host::open(paths);
    opened
        .inspect_err(|error| {
            log!("no memory is reserved for copies: {error}");
        })
        .ok()
}

/// The memory of copies that are being made. It is reserved, so that no start counts on it.
/// Complete copies need no reservation: their pages are in use, and count as such.
struct Room {
    host: Option<Host>,
}

impl Room {
    /// Reserves the memory of some jobs, in place of that of earlier ones.
    fn reserve(&mut self, jobs: &[Job]) -> Result<(), NotCopied> {
        let Some(host) = &mut self.host else { return Ok(()) };
        let mut bytes = ByNode::new();
        for job in jobs {
            // A tmpfs has whole pages.
            *bytes.entry(job.node).or_default() += job.bytes.next_multiple_of(page_bytes());
        }
        let name = RESERVATION.into();
        let purpose = Purpose::Copies;
        let wanted = Reservation { name, purpose, bytes, ..Reservation::default() };
        let reserve = || -> Result<(), Refusal> {
            let mut session = host.begin()?;
            let seen = session.observe(None)?;
            let transaction = Transaction::reserving(wanted, Until::ProcessEnds, seen);
            session.apply(&transaction)
        };
        reserve().map_err(|why| NotCopied::Refused(CopyRefusal::NoRoom(why.to_string())))
    }

    fn end(&mut self) {
        let Some(host) = &mut self.host else { return };
        // A failure leaves a reservation that ends with this process.
        let _ = host.begin().map_err(Refusal::from).and_then(|mut it| it.release(RESERVATION));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(bytes: u64) -> Job {
        Job {
            file: FileId { device: 0, inode: 0 },
            original: Arc::new(File::open("/dev/null").unwrap()),
            bytes,
            node: NodeId(0),
            name: String::new(),
            cancelled: Arc::default(),
        }
    }

    #[test]
    fn a_batch_ends_with_the_job_that_fills_it() {
        let batch_of = |bytes: u64| {
            let mut waiting = 1_000;
            let next = || {
                waiting -= 1;
                (waiting > 0).then(|| job(bytes))
            };
            batch(job(bytes), next).len()
        };
        assert_eq!(batch_of(4096), MAX_BATCH);
        assert_eq!(batch_of(MAX_BATCH_BYTES / 4), 4);
        assert_eq!(batch_of(1 << 40), 1);
        assert_eq!(batch(job(1), || None).len(), 1);
    }
}
