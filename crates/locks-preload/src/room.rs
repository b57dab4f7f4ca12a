//! The queue before one mutex.

use crate::{
    c_library::{Mutex, is_urgent},
    trial::{Trial, Way},
};
use libc::c_int;
use nearside_locks::{FairSpinLock, Linux, Platform, RawFairMutex, lock_api::RawMutex};
use std::{
    cell::Cell,
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

/// Turns that a thread takes in a row before it queues, if others do.
const RETURNS: u32 = 4;

/// Looks at a held mutex by the first of the queue, before it sleeps as the C library has it.
const LOOKS: u32 = 300;

/// Turns that are counted, or waits of a thread, between two looks at the clock.
const TURNS_PER_LOOK: u32 = 64;

/// Hand-offs in a row near each other, and threads that pass a waiter (`docs/performance/locks.md`
/// has what others do).
type Queue = RawFairMutex<Linux, 16, 4>;

/// A line of the cache, and the one that processors fetch with it.
#[repr(align(128))]
struct Line<T>(T);

/// Whose a room is, and how it is used: one word, so that it changes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bond(u64);

impl Bond {
    const ADDRESS: u64 = (1 << 48) - 1;
    const WAITER: u64 = 1 << 48;
    const WAITERS: u64 = Self::WAITER * 0x3fff;
    const QUEUES: u64 = 1 << 62;
    const COUNTS: u64 = 1 << 63;

    fn is_of(self, mutex: Mutex) -> bool {
        self.0 & Self::ADDRESS == mutex.address() as u64
    }

    fn has_waiters(self) -> bool {
        self.0 & Self::WAITERS != 0
    }

    fn queues(self) -> bool {
        self.0 & Self::QUEUES != 0
    }

    fn counts(self) -> bool {
        self.0 & Self::COUNTS != 0
    }

    /// With one waiter more; none if it is another mutex's, or has as many as it can count.
    fn with_waiter(self, mutex: Mutex) -> Option<Self> {
        let has_place = self.0 & Self::WAITERS != Self::WAITERS;
        (self.is_of(mutex) && has_place).then(|| Self(self.0 + Self::WAITER))
    }

    /// Another mutex's; none while somebody waits.
    fn rebound(self, mutex: Mutex, way: Way, counts: bool) -> Option<Self> {
        let address = mutex.address() as u64;
        let is_free = !self.has_waiters() && address & !Self::ADDRESS == 0;
        is_free.then_some(Self(address).going(way, counts))
    }

    fn going(self, way: Way, counts: bool) -> Self {
        let queues = if way == Way::Queue { Self::QUEUES } else { 0 };
        let counts = if counts { Self::COUNTS } else { 0 };
        Self(self.0 & (Self::ADDRESS | Self::WAITERS) | queues | counts)
    }
}

/// The last thread that came out of the queue, and what holders count. Only a thread that has the
/// mutex writes it.
#[derive(Default)]
struct Holder {
    thread: AtomicUsize,
    returns: AtomicU32,
    turns: AtomicU64,
}

/// A queue before a mutex, that which is waited for at this place. A thread that waits for another
/// mutex of the same place does not queue: if it did, the first of the queue might wait for it.
pub(crate) struct Room {
    bond: Line<AtomicU64>,
    holder: Line<Holder>,
    queue: Line<Queue>,
    trial: Line<FairSpinLock<Linux, Trial>>,
}

/// Whether a lock has a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// If it has more turns with one.
    Measured,
    Always,
}

struct Thread {
    waits: Cell<u32>,
    is_urgent: Cell<Option<bool>>,
}

thread_local! {
    static THREAD: Thread = const { Thread { waits: Cell::new(0), is_urgent: Cell::new(None) } };
}

/// The calling thread, as a number that no other has while this one lives.
fn thread() -> usize {
    THREAD.with(|thread| std::ptr::from_ref(thread) as usize)
}

/// Whether the calling thread goes the C library's way, which wakes by priority. It is asked once.
fn is_urgent_thread() -> bool {
    THREAD.with(|thread| {
        let is_urgent = thread.is_urgent.get().unwrap_or_else(is_urgent);
        thread.is_urgent.set(Some(is_urgent));
        is_urgent
    })
}

/// Whether the calling thread has waited often enough to look at the clock.
fn shall_look() -> bool {
    THREAD.with(|thread| {
        let waits = thread.waits.get().wrapping_add(1);
        thread.waits.set(waits);
        waits.is_multiple_of(TURNS_PER_LOOK)
    })
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            bond: Line(AtomicU64::new(0)),
            holder: Line(Holder::default()),
            queue: Line(Queue::INIT),
            trial: Line(FairSpinLock::new(Trial::new(0, 0))),
        }
    }

    fn bond(&self) -> Bond {
        Bond(self.bond.0.load(Relaxed))
    }

    fn change(&self, change: impl Fn(Bond) -> Option<Bond>) -> bool {
        let changed = |bond| change(Bond(bond)).map(|bond| bond.0);
        self.bond.0.fetch_update(Relaxed, Relaxed, changed).is_ok()
    }

    /// Whether it is a mutex's, and that has a queue now.
    pub(crate) fn state(&self) -> (bool, bool) {
        (self.bond() != Bond(0), self.bond().queues())
    }

    /// Locks a mutex whose place this is.
    #[inline]
    pub(crate) fn lock(&self, mutex: Mutex, choice: Choice) -> c_int {
        let bond = self.bond();
        match (bond.is_of(mutex), mutex.is_held()) {
            (false, false) => mutex.lock(),
            (is_of, is_held) => self.lock_known(mutex, bond, is_of, is_held, choice),
        }
    }

    /// Locks a mutex that is waited for, or has been.
    fn lock_known(
        &self,
        mutex: Mutex,
        bond: Bond,
        is_of: bool,
        is_held: bool,
        choice: Choice,
    ) -> c_int {
        if !is_of {
            self.bind(mutex, choice);
            return mutex.lock();
        }
        if is_held && choice == Choice::Measured && shall_look() {
            self.look();
        }
        let queues = bond.queues() && (is_held || bond.has_waiters() && !self.may_return());
        let result = if queues { self.queue(mutex) } else { mutex.lock() };
        if result == 0 && bond.counts() {
            self.count();
        }
        result
    }

    /// Gives the room to a mutex, if nobody waits in it.
    fn bind(&self, mutex: Mutex, choice: Choice) {
        // Who has the trial has the bond, but for its waiters.
        let Some(mut trial) = self.trial.0.try_lock() else { return };
        let first = Trial::new(self.holder.0.turns.load(Relaxed), Linux::now_ns());
        let (way, counts) = match choice {
            Choice::Measured => (first.way(), first.counts()),
            Choice::Always => (Way::Queue, false),
        };
        if self.change(|bond| bond.rebound(mutex, way, counts)) {
            *trial = first;
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
        if is_urgent_thread() || !self.change(|bond| bond.with_waiter(mutex)) {
            return mutex.lock();
        }
        self.queue.0.lock();
        let result = lock_as_first(mutex);
        self.holder.0.thread.store(thread(), Relaxed);
        self.holder.0.returns.store(0, Relaxed);
        // SAFETY: this thread has locked it above.
        unsafe { self.queue.0.unlock() };
        self.bond.0.fetch_sub(Bond::WAITER, Relaxed);
        result
    }

    /// Counts a turn of the mutex, which the calling thread has.
    fn count(&self) {
        // If the room is another mutex's by now, a turn may get lost.
        let turns = self.holder.0.turns.load(Relaxed) + 1;
        self.holder.0.turns.store(turns, Relaxed);
        if turns.is_multiple_of(TURNS_PER_LOOK.into()) {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        let Some(mut trial) = self.trial.0.try_lock() else { return };
        trial.look(self.holder.0.turns.load(Relaxed), Linux::now_ns());
        let (way, counts) = (trial.way(), trial.counts());
        self.change(|bond| Some(bond.going(way, counts)));
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
