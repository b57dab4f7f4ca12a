//! The queue of a lock: its holder, and the threads that wait.
//!
//! Waiters form a list, and each of them spins on a word of its own (Mellor-Crummey and Scott, ACM
//! TOCS 1991). A holder has no entry in it: on its way in, it leaves its successor in the queue
//! itself, as in the K42 operating system. So an entry lives on the stack of a thread that waits,
//! and no longer. On its way out, a holder prefers the next waiter of its own node. Waiters that it
//! passes over are put aside, and come first again after a bounded number of hand-offs (compact
//! NUMA-aware locks, Dice and Kogan, EuroSys 2019).

use crate::door::Notes;
use crate::sync::{AcqRel, Acquire, AtomicPtr, AtomicU32, Relaxed, Release, spin};
use core::ptr;

/// A waiter's word while it runs, while it has left its CPU, and once it has the lock.
const WAITS: u32 = 0;
const AWAY: u32 = 1;
const GRANTED: u32 = 2;

/// The most waiters that a release looks at for one that is near, and again for one that is ready.
const LOOKS: usize = 64;

/// A thread that waits.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Waiter {
    next: AtomicPtr<Waiter>,
    word: AtomicU32,
    node: u32,
}

impl Waiter {
    /// One that runs on this node.
    pub(crate) fn on(node: u32) -> Self {
        Self { next: AtomicPtr::new(ptr::null_mut()), word: AtomicU32::new(WAITS), node }
    }

    /// Whether it holds the lock now.
    pub(crate) fn is_granted(&self) -> bool {
        self.word.load(Acquire) == GRANTED
    }

    /// Leaves its CPU for as long as `away` takes, unless it has the lock: others come first
    /// meanwhile. `away` gets a word, and the value that this has until the lock is granted.
    pub(crate) fn leave_cpu(&self, away: impl FnOnce(&AtomicU32, u32)) {
        if self.turn(WAITS, AWAY) {
            away(&self.word, AWAY);
            self.turn(AWAY, WAITS);
        }
    }

    /// False if it has been granted the lock.
    fn turn(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Relaxed, Relaxed).is_ok()
    }

    fn is_ready(&self) -> bool {
        self.word.load(Relaxed) == WAITS
    }
}

/// The order in which waiters get the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// Hand-offs in a row that are not to the oldest waiter of all.
    pub(crate) most: u32,
    /// Whether waiters on the holder's node come first while they are away, too.
    pub(crate) is_near_first: bool,
}

/// The tail of a lock that is held and for which nobody waits, except for those aside. No waiter
/// has this address.
const HELD: *mut Waiter = ptr::without_provenance_mut(1);

/// The holder and the waiters of a lock.
///
/// A waiter that has entered is in one of two lists until it is granted the lock: the main one,
/// from `first` to `tail`, or the one aside. Both are by age, and all that are aside are older than
/// all others.
#[derive(Debug)]
#[repr(align(64))]
// loom's atomics have no constant constructor.
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Queue {
    /// Null if the lock is free, [`HELD`], or the last waiter of the main list.
    tail: AtomicPtr<Waiter>,
    /// The first waiter of the main list. One that enters while `tail` is [`HELD`] stores itself
    /// here; else only the holder writes it.
    first: AtomicPtr<Waiter>,
    /// The first waiter aside. Only the holder uses this and the following.
    aside: AtomicPtr<Waiter>,
    /// The last waiter aside, if there is any.
    last_aside: AtomicPtr<Waiter>,
    /// The hand-offs since the last one to the oldest waiter of all: to a waiter of the holder's
    /// node, whether they passed others over or not, or to one that is ready.
    hand_offs: AtomicU32,
    /// Notes of the lock around this queue. Only the holder of the queue uses them.
    pub(crate) notes: Notes,
}

impl Queue {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            tail: AtomicPtr::new(ptr::null_mut()),
            first: AtomicPtr::new(ptr::null_mut()),
            aside: AtomicPtr::new(ptr::null_mut()),
            last_aside: AtomicPtr::new(ptr::null_mut()),
            hand_offs: AtomicU32::new(0),
            notes: Notes::new(),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn take_free(&self) -> bool {
        // `first` is null then: see `release`.
        self.tail.compare_exchange(ptr::null_mut(), HELD, Acquire, Relaxed).is_ok()
    }

    /// Whether somebody holds it.
    pub(crate) fn is_held(&self) -> bool {
        !self.tail.load(Relaxed).is_null()
    }

    /// Whether somebody waits. The caller holds it.
    pub(crate) fn is_waited_in(&self) -> bool {
        self.tail.load(Relaxed) != HELD || !self.aside.load(Relaxed).is_null()
    }

    /// Appends a waiter. True if the lock was free, so that the waiter has it.
    ///
    /// # Safety
    /// The waiter is new, and stays where it is until [`Queue::take`] has returned, which is called
    /// for it once it has the lock.
    pub(crate) unsafe fn enter(&self, waiter: &Waiter) -> bool {
        let this = ptr::from_ref(waiter).cast_mut();
        let before = self.tail.swap(this, AcqRel);
        if before.is_null() {
            return true;
        }
        let link = match before == HELD {
            true => &self.first,
            // SAFETY: a waiter leaves with its successor known, or after it has taken itself out of
            // `tail` (see `take`). So the one that was found there stays until it is linked.
            false => unsafe { &(*before).next },
        };
        link.store(this, Release);
        false
    }

    /// Makes a waiter that has the lock its holder. The waiter may go afterwards.
    pub(crate) fn take(&self, waiter: &Waiter) {
        let this = ptr::from_ref(waiter).cast_mut();
        let mut next = waiter.next.load(Acquire);
        if next.is_null() {
            // One that enters once `tail` is HELD stores itself there.
            self.first.store(ptr::null_mut(), Relaxed);
            if self.tail.compare_exchange(this, HELD, AcqRel, Relaxed).is_ok() {
                return;
            }
            next = linked(&waiter.next);
        }
        self.first.store(next, Relaxed);
    }

    /// Passes the lock on, and returns the word of a waiter that has it and sleeps.
    ///
    /// # Safety
    /// The caller holds the lock.
    pub(crate) unsafe fn release(
        &self,
        here: impl FnOnce() -> u32,
        order: Order,
    ) -> Option<*const AtomicU32> {
        // SAFETY: the caller holds the lock.
        unsafe { self.take_next(here, order) }.and_then(Next::grant)
    }

    /// Takes the next holder out of the queue: the oldest waiter on node `here`, which is the
    /// holder's, that is not aside, and ready or of any kind as `order` says; else the oldest one
    /// that is ready. Both are looked for among [`LOOKS`] waiters. After `order.most` such
    /// hand-offs in a row, or if none is ready, it is the oldest of all. Without a waiter the lock
    /// is free.
    ///
    /// # Safety
    /// The caller holds the lock, until it has granted it to the next holder.
    pub(crate) unsafe fn take_next(
        &self,
        here: impl FnOnce() -> u32,
        order: Order,
    ) -> Option<Next> {
        let mut first = self.first.load(Acquire);
        let aside = self.aside.load(Relaxed);
        if first.is_null() {
            // Waiters aside become the main list.
            let tail = match aside.is_null() {
                true => ptr::null_mut(),
                false => self.last_aside.load(Relaxed),
            };
            if self.tail.compare_exchange(HELD, tail, AcqRel, Relaxed).is_ok() {
                if aside.is_null() {
                    return None;
                }
                self.aside.store(ptr::null_mut(), Relaxed);
                return Some(self.take_oldest(aside, order.most));
            }
            first = linked(&self.first);
        }
        let hand_offs = self.hand_offs.load(Relaxed);
        if hand_offs < order.most {
            let here = here();
            let is_near =
                |waiter: &Waiter| waiter.node == here && (order.is_near_first || waiter.is_ready());
            if let Some(found) = find(first, is_near) {
                self.hand_offs.store(hand_offs + 1, Relaxed);
                return Some(self.take_found(first, &found));
            }
        }
        if aside.is_null() {
            return Some(self.take_oldest(first, order.most));
        }
        // SAFETY: waiters aside stay until they are granted the lock.
        unsafe { &(*self.last_aside.load(Relaxed)).next }.store(first, Release);
        self.aside.store(ptr::null_mut(), Relaxed);
        Some(self.take_oldest(aside, order.most))
    }

    /// Takes the oldest waiter of the main list, the first of which is `first`. One that is ready
    /// comes before others that are older, as long as `most` permits. None is aside.
    fn take_oldest(&self, first: *mut Waiter, most: u32) -> Next {
        let hand_offs = self.hand_offs.load(Relaxed);
        let ready = (hand_offs < most).then(|| find(first, Waiter::is_ready)).flatten();
        let found = ready.unwrap_or(Found { waiter: first, before: ptr::null_mut() });
        let is_oldest = found.before.is_null();
        self.hand_offs.store(if is_oldest { 0 } else { hand_offs + 1 }, Relaxed);
        self.take_found(first, &found)
    }

    /// Takes a waiter of the main list. Those before it go aside.
    fn take_found(&self, first: *mut Waiter, found: &Found) -> Next {
        if !found.before.is_null() {
            self.put_aside(first, found.before);
        }
        Next(found.waiter)
    }

    /// Moves the waiters from `first` to `last` from the front of the main list behind those aside.
    fn put_aside(&self, first: *mut Waiter, last: *mut Waiter) {
        // SAFETY: as below.
        unsafe { &(*last).next }.store(ptr::null_mut(), Relaxed);
        match self.aside.load(Relaxed).is_null() {
            true => self.aside.store(first, Relaxed),
            // SAFETY: waiters stay until they are granted the lock.
            false => unsafe { &(*self.last_aside.load(Relaxed)).next }.store(first, Relaxed),
        }
        self.last_aside.store(last, Relaxed);
    }
}

/// A waiter that fits, and the one before it (null if it is the first).
struct Found {
    waiter: *mut Waiter,
    before: *mut Waiter,
}

/// The first waiter that `fits`, from `first` on, within the first [`LOOKS`].
fn find(first: *mut Waiter, fits: impl Fn(&Waiter) -> bool) -> Option<Found> {
    let (mut waiter, mut before) = (first, ptr::null_mut());
    for _ in 0..LOOKS {
        if waiter.is_null() {
            break;
        }
        // SAFETY: waiters stay until they are granted the lock, which the caller holds.
        let each = unsafe { &*waiter };
        if fits(each) {
            return Some(Found { waiter, before });
        }
        before = waiter;
        waiter = each.next.load(Acquire);
    }
    None
}

/// The waiter that is about to store itself here.
fn linked(link: &AtomicPtr<Waiter>) -> *mut Waiter {
    loop {
        let waiter = link.load(Acquire);
        if !waiter.is_null() {
            return waiter;
        }
        spin();
    }
}

/// The waiter that is to hold the lock.
#[must_use = "it waits for the lock"]
pub(crate) struct Next(*mut Waiter);

impl Next {
    /// Gives it the lock unless it is away. It may be gone then.
    pub(crate) fn grant_if_ready(&self) -> bool {
        // SAFETY: it waits, and so stays until it is granted the lock.
        let word = unsafe { &(*self.0).word };
        word.compare_exchange(WAITS, GRANTED, Release, Relaxed).is_ok()
    }

    /// Gives it the lock, after which it may be gone. Returns its word if it is away.
    pub(crate) fn grant(self) -> Option<*const AtomicU32> {
        // SAFETY: as above.
        let word = unsafe { &raw const (*self.0).word };
        // SAFETY: as above.
        let before = unsafe { &*word }.swap(GRANTED, Release);
        (before == AWAY).then_some(word)
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
