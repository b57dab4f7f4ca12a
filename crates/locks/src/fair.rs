//! A fair spin lock.

use crate::{
    door::{Door, MAX_PASSES},
    platform::Platform,
    queue::{Queue, Waiter},
    sync::spin,
};
use core::{fmt, marker::PhantomData};
#[cfg(not(loom))]
use lock_api::{GuardNoSend, RawMutex};

/// Hand-offs in a row that [`FairSpinLock`] permits while an older waiter may wait.
pub const HAND_OFFS: u32 = 64;

/// Threads on the last holder's node that may pass a waiter of [`FairSpinLock`] whose turn it is.
pub const RETURNS: u32 = 16;

/// A spin lock that prefers waiters on the holder's node, and keeps no other waiting for long.
///
/// A lock that changes nodes takes its line, and those of the data that it protects, to the other
/// node. So the next waiter is the oldest one on the holder's node. Waiters that give their CPU
/// away ([`Platform::give_way`]) come later, if others wait. After [`HAND_OFFS`] of such hand-offs
/// in a row the oldest waiter of all is next. With `n` waiters ahead of it, a thread is the next
/// one after at most `(n + 1) * (HAND_OFFS + 1)` others of the queue.
///
/// The next waiter takes the lock once it is free. A thread that comes back to it at once, and has
/// the data in its cache, may be faster, and so may others on its node. They pass the waiter at
/// most [`RETURNS`] times after it has come to look, unless it gives its CPU away meanwhile. Each
/// of the other waiters spins on a word of its own.
///
/// It has the guards of [`lock_api::Mutex`].
///
/// ```
/// use nearside_locks::{FairSpinLock, Linux};
///
/// static COUNT: FairSpinLock<Linux, u64> = FairSpinLock::new(0);
///
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| *COUNT.lock() += 1);
///     }
/// });
/// assert_eq!(*COUNT.lock(), 4);
/// ```
pub type FairSpinLock<P, T> = lock_api::Mutex<RawFairSpinLock<P>, T>;

/// The guard of a [`FairSpinLock`].
pub type FairSpinLockGuard<'a, P, T> = lock_api::MutexGuard<'a, RawFairSpinLock<P>, T>;

/// A spin lock as [`FairSpinLock`], without data. `MOST` is the number of such hand-offs in a row,
/// and `PASSES` the number of threads that may pass a waiter. With 0 for both, not for `MOST`
/// alone, the order is that of arrival.
///
/// ```
/// use lock_api::{Mutex, RawMutex};
/// use nearside_locks::{Linux, RawFairSpinLock};
///
/// /// In order of arrival.
/// type Ticket<T> = Mutex<RawFairSpinLock<Linux, 0, 0>, T>;
///
/// let lock = Ticket::new("data");
/// let guard = lock.lock();
/// assert!(lock.try_lock().is_none());
/// drop(guard);
/// assert_eq!(*lock.lock(), "data");
/// ```
pub struct RawFairSpinLock<P, const MOST: u32 = HAND_OFFS, const PASSES: u32 = RETURNS> {
    door: Door,
    queue: Queue,
    platform: PhantomData<fn() -> P>,
}

// A platform need not be `Debug`.
impl<P, const MOST: u32, const PASSES: u32> fmt::Debug for RawFairSpinLock<P, MOST, PASSES> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RawFairSpinLock").field("is_held", &self.is_held()).finish()
    }
}

// SAFETY: `Door` gives the lock to one at a time; without passes `Queue` does.
#[cfg(not(loom))]
unsafe impl<P: Platform, const MOST: u32, const PASSES: u32> RawMutex
    for RawFairSpinLock<P, MOST, PASSES>
{
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self::new();

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.take_free() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.take_free()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.leave() }
    }

    fn is_locked(&self) -> bool {
        self.is_held()
    }
}

impl<P, const MOST: u32, const PASSES: u32> RawFairSpinLock<P, MOST, PASSES> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { door: Door::new(), queue: Queue::new(), platform: PhantomData }
    }

    // loom's atomics have no constant constructor.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { door: Door::default(), queue: Queue::default(), platform: PhantomData }
    }

    pub(crate) fn is_held(&self) -> bool {
        match PASSES {
            0 => self.queue.is_held(),
            _ => self.door.is_held(),
        }
    }
}

#[cfg_attr(loom, allow(dead_code, reason = "without lock_api the tests alone use it"))]
impl<P: Platform, const MOST: u32, const PASSES: u32> RawFairSpinLock<P, MOST, PASSES> {
    #[inline]
    pub(crate) fn take_free(&self) -> bool {
        const { assert!(PASSES <= MAX_PASSES) }
        match PASSES {
            0 => self.queue.take_free(),
            _ => self.door.take_free(),
        }
    }

    /// # Safety
    /// The caller holds the lock.
    #[inline]
    pub(crate) unsafe fn leave(&self) {
        if PASSES == 0 {
            // SAFETY: the caller holds the lock.
            unsafe { self.queue.release(P::node, MOST) }
        } else if !self.door.leave() {
            self.pass_on();
        }
    }

    #[cold]
    pub(crate) fn wait(&self) {
        let node = P::node();
        if PASSES > 0 && self.door.pass(node, PASSES) {
            return;
        }
        let waiter = Waiter::on(node);
        let stay = Stay;
        // SAFETY: the waiter is new, and this function does not return before `take`, nor unwind.
        let mut has_lock = unsafe { self.queue.enter(&waiter) };
        let mut turns = 0_u32;
        while !has_lock {
            if P::stays(turns) {
                spin();
            } else {
                waiter.set_away(true);
                if !waiter.is_granted() {
                    P::give_way();
                }
                waiter.set_away(false);
            }
            turns = turns.wrapping_add(1);
            has_lock = waiter.is_granted();
        }
        self.queue.take(&waiter);
        if PASSES > 0 {
            self.stand_at_the_door(node);
        }
        core::mem::forget(stay);
    }

    fn stand_at_the_door(&self, node: u32) {
        let mut turns = 0_u32;
        loop {
            if let Some(passes) = self.door.take_as_first(node) {
                if passes > 0 {
                    self.queue.notes.passed();
                }
                return;
            }
            if P::stays(turns) {
                spin();
            } else if self.door.step_aside() {
                P::give_way();
            }
            turns = turns.wrapping_add(1);
        }
    }

    /// The holder, who is the first of the queue, leaves.
    #[cold]
    fn pass_on(&self) {
        let node = P::node();
        let is_waited_in = self.queue.is_waited_in();
        if !is_waited_in || !self.queue.notes.stays_closed() {
            self.door.open(is_waited_in.then_some(node));
        }
        // SAFETY: the caller is the first of the queue.
        unsafe { self.queue.release(|| node, MOST) }
    }
}

/// A panic while this exists aborts: others hold the address of a waiter, or wait for the first of
/// the queue, or for a reader that has arrived.
pub(crate) struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        #[allow(clippy::panic, reason = "a second panic aborts")]
        {
            panic!("a platform has panicked while a thread waited for a lock");
        }
    }
}

#[cfg(all(test, loom))]
#[path = "fair_tests.rs"]
mod tests;
