//! The queue before one mutex.

use crate::{
    c_library::{Mutex, is_asynchronously_cancellable, is_real_time, thread},
    trial::{Trial, Way},
};
use libc::c_int;
use nearside_locks::{FairSpinLock, Linux, Platform, RawFairMutex, lock_api::RawMutex};
use std::{
    hint::spin_loop,
    sync::atomic::{
        AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// Turns that a thread takes in a row before it queues, if others do.
const RETURNS: u32 = 4;

/// Looks at a held mutex by the first of the queue, before it sleeps as the C library has it.
const LOOKS: u32 = 300;

/// Turns that are counted, or waits, between two looks at the clock.
const TURNS_PER_LOOK: u32 = 16;

/// Waits for other mutexes of the same place, with none for the owner, after which another becomes
/// its owner.
const PATIENCE: u32 = 64;

/// Hand-offs in a row near each other, and threads that pass a waiter.
type Queue = RawFairMutex<Linux, 16, 4>;

/// A line of the cache, and the one that processors fetch with it.
#[repr(align(128))]
struct Line<T>(T);

/// The mutex that a place belongs to, and what its threads do now. It seldom changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner(u64);

/// The bits of an address of a program (`Documentation/arch/x86/x86_64/mm.rst`). A mutex beyond
/// them, in memory that a program has to ask for by address, has no queue.
const ADDRESS: u64 = (1 << 48) - 1;

impl Owner {
    const QUEUES: u64 = 1 << 62;
    const COUNTS: u64 = 1 << 63;

    fn going(self, way: Way, counts: bool) -> Self {
        let queues = if way == Way::Queue { Self::QUEUES } else { 0 };
        let counts = if counts { Self::COUNTS } else { 0 };
        Self(self.0 & ADDRESS | queues | counts)
    }

    fn is(self, mutex: Mutex) -> bool {
        self.0 & ADDRESS == mutex.address() as u64
    }

    fn queues(self) -> bool {
        self.0 & Self::QUEUES != 0
    }

    fn counts(self) -> bool {
        self.0 & Self::COUNTS != 0
    }
}

/// The mutex that threads queue for, and their number: one word, so that nobody queues for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiters(u64);

impl Waiters {
    const ONE: u64 = ADDRESS + 1;

    fn are_some(self) -> bool {
        self.0 > ADDRESS
    }

    /// One more for this mutex; none if they queue for another, or are as many as it can count.
    fn with_one_for(self, mutex: Mutex) -> Option<Self> {
        let is_for = self.0 & ADDRESS == mutex.address() as u64;
        self.0.checked_add(Self::ONE).filter(|_| is_for).map(Self)
    }

    /// One less; none if there is none. So it is in a child that a handler of signals has made,
    /// while its thread queued.
    fn without_one(self) -> Option<Self> {
        self.0.checked_sub(Self::ONE).map(Self)
    }

    /// None, for this mutex from now on, unless there are some.
    fn none_for(self, mutex: Mutex) -> Option<Self> {
        let address = mutex.address() as u64;
        (!self.are_some() && address <= ADDRESS).then_some(Self(address))
    }
}

/// Figures of threads that have the mutex, or are about to lock it: hints, since a former owner's
/// thread may write late.
#[derive(Default)]
struct Holder {
    /// The last one that came out of the queue, and how often it has come back since.
    thread: AtomicUsize,
    returns: AtomicU32,
    turns: AtomicU64,
}

/// Figures of threads that wait.
#[derive(Default)]
struct Counts {
    waits: AtomicU32,
    /// Waits for other mutexes of this place, since the last one for the owner.
    others: AtomicU32,
    /// Threads that have come out of the queue. The first of the queue writes it.
    queued: AtomicU64,
}

/// A queue before a mutex: the owner of this place. A thread that waits for another mutex of the
/// same place does not queue. If it did, the first of the queue might wait for a mutex whose holder
/// stands behind it.
pub(crate) struct Room {
    owner: Line<AtomicU64>,
    waiters: Line<AtomicU64>,
    holder: Line<Holder>,
    queue: Line<Queue>,
    counts: Line<Counts>,
    trial: Line<FairSpinLock<Linux, Trial>>,
}

/// Whether a lock has a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// If it has more turns with one.
    Measured,
    Always,
}

/// The use of a room, for a report.
pub(crate) struct Use {
    pub(crate) has_owner: bool,
    pub(crate) has_queue: bool,
    pub(crate) queued: u64,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            owner: Line(AtomicU64::new(0)),
            waiters: Line(AtomicU64::new(0)),
            holder: Line(Holder::default()),
            queue: Line(Queue::INIT),
            counts: Line(Counts::default()),
            trial: Line(FairSpinLock::new(Trial::new(0))),
        }
    }

    pub(crate) fn r#use(&self) -> Use {
        Use {
            has_owner: self.owner() != Owner(0),
            has_queue: self.owner().queues(),
            queued: self.counts.0.queued.load(Relaxed),
        }
    }

    /// Whether a room is a mutex's.
    ///
    /// # Safety
    /// The room is mapped. It may not have been made yet, and be zero.
    #[inline]
    pub(crate) unsafe fn is_of(room: *const Self, mutex: Mutex) -> bool {
        // SAFETY: an atomic word, which may be zero: then there is no owner.
        let owner = unsafe { &(*room).owner.0 };
        Owner(owner.load(Relaxed)).is(mutex)
    }

    fn owner(&self) -> Owner {
        Owner(self.owner.0.load(Relaxed))
    }

    fn waiters(&self) -> Waiters {
        Waiters(self.waiters.0.load(Relaxed))
    }

    fn change(&self, change: impl Fn(Waiters) -> Option<Waiters>) -> bool {
        let changed = |waiters| change(Waiters(waiters)).map(|waiters| waiters.0);
        self.waiters.0.fetch_update(Release, Acquire, changed).is_ok()
    }

    /// Locks a mutex that is held, or owns this room.
    pub(crate) fn lock(&self, mutex: Mutex, choice: Choice) -> c_int {
        let (owner, is_held) = (self.owner(), mutex.is_held());
        if !owner.is(mutex) {
            if is_held {
                self.wait_beside(mutex, choice);
            }
            return mutex.lock();
        }
        if is_held {
            self.wait_as_owner(choice);
        }
        let queues = owner.queues() && (is_held || self.waiters().are_some() && !self.may_return());
        let result = if queues { self.queue(mutex) } else { mutex.lock() };
        if result == 0 && owner.counts() {
            self.count(mutex);
        }
        result
    }

    fn wait_as_owner(&self, choice: Choice) {
        let counts = &self.counts.0;
        if counts.others.load(Relaxed) > 0 {
            counts.others.store(0, Relaxed);
        }
        let waits = counts.waits.fetch_add(1, Relaxed);
        if choice == Choice::Measured && waits.is_multiple_of(TURNS_PER_LOOK) {
            self.look();
        }
    }

    /// A mutex that does not own the room becomes its owner, if there is none, or nobody waits for
    /// that one.
    fn wait_beside(&self, mutex: Mutex, choice: Choice) {
        let others = self.counts.0.others.fetch_add(1, Relaxed);
        if self.owner() != Owner(0) && others < PATIENCE {
            return;
        }
        if self.waiters().are_some() || is_asynchronously_cancellable() {
            return;
        }
        // The owner changes under the trial's lock alone.
        let Some(mut trial) = self.trial.0.try_lock() else { return };
        let has_other = self.owner() != Owner(0) && !self.owner().is(mutex);
        if self.owner().is(mutex) || has_other && self.counts.0.others.load(Relaxed) < PATIENCE {
            return;
        }
        if self.change(|waiters| waiters.none_for(mutex)) {
            *trial = Trial::new(Linux::now_ns());
            let (way, counts) = match choice {
                Choice::Measured => (trial.way(), trial.counts()),
                Choice::Always => (Way::Queue, false),
            };
            let owner = Owner(mutex.address() as u64).going(way, counts);
            self.owner.0.store(owner.0, Relaxed);
            self.counts.0.others.store(0, Relaxed);
        }
    }

    /// Whether the calling thread had the mutex last, and may have it again before it queues.
    fn may_return(&self) -> bool {
        let holder = &self.holder.0;
        let returns = holder.returns.load(Relaxed);
        let may = holder.thread.load(Relaxed) == thread() && returns < RETURNS;
        if may {
            holder.returns.store(returns + 1, Relaxed);
        }
        may
    }

    #[cold]
    fn queue(&self, mutex: Mutex) -> c_int {
        if is_real_time()
            || is_asynchronously_cancellable()
            || !self.change(|waiters| waiters.with_one_for(mutex))
        {
            return mutex.lock();
        }
        self.queue.0.lock();
        let result = lock_as_first(mutex);
        self.holder.0.thread.store(thread(), Relaxed);
        self.holder.0.returns.store(0, Relaxed);
        let queued = self.counts.0.queued.load(Relaxed);
        self.counts.0.queued.store(queued + 1, Relaxed);
        // SAFETY: this thread has locked the queue above.
        unsafe { self.queue.0.unlock() };
        self.change(Waiters::without_one);
        result
    }

    /// Counts a turn of the mutex, which the calling thread has.
    fn count(&self, mutex: Mutex) {
        if !self.owner().is(mutex) {
            return;
        }
        let turns = self.holder.0.turns.fetch_add(1, Relaxed);
        if turns.is_multiple_of(TURNS_PER_LOOK.into()) {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        if is_asynchronously_cancellable() {
            return;
        }
        let Some(mut trial) = self.trial.0.try_lock() else { return };
        let before = (trial.way(), trial.counts());
        trial.look(self.holder.0.turns.load(Relaxed), Linux::now_ns());
        let (way, counts) = (trial.way(), trial.counts());
        if (way, counts) != before {
            self.owner.0.store(self.owner().going(way, counts).0, Relaxed);
        }
    }
}

/// Locks a mutex that nobody else of its queue wants now.
fn lock_as_first(mutex: Mutex) -> c_int {
    for _ in 0..LOOKS {
        if !mutex.is_held() {
            let result = mutex.try_lock();
            if result != libc::EBUSY {
                return result;
            }
        }
        spin_loop();
    }
    mutex.lock()
}
