//! A fair spin lock.

use crate::{
    platform::Platform,
    queue::{Queue, Waiter},
};
use core::{fmt, marker::PhantomData};
#[cfg(not(loom))]
use lock_api::{GuardNoSend, RawMutex};

/// Hand-offs in a row that [`FairSpinLock`] permits while an older waiter may wait.
pub const HAND_OFFS: u32 = 64;

/// A spin lock that prefers waiters on the holder's node, and keeps no other waiting for long.
///
/// A lock that changes nodes takes its line, and those of the data that it protects, to the other
/// node. So the holder passes it to the oldest waiter on its own node. Waiters that give their CPU
/// away ([`Platform::give_way`]) come later, if others wait. After [`HAND_OFFS`] of such hand-offs
/// in a row the oldest waiter of all is next. With `n` waiters ahead of it, a thread gets the lock
/// after at most `(n + 1) * (HAND_OFFS + 1)` others. Each waiter spins on a word of its own.
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

/// A spin lock as [`FairSpinLock`], without data. `MOST` is the number of such hand-offs
/// in a row; with 0 the order is that of arrival.
///
/// ```
/// use lock_api::{Mutex, RawMutex};
/// use nearside_locks::{Linux, RawFairSpinLock};
///
/// /// In order of arrival.
/// type Ticket<T> = Mutex<RawFairSpinLock<Linux, 0>, T>;
///
/// let lock = Ticket::new("data");
/// let guard = lock.lock();
/// assert!(lock.try_lock().is_none());
/// drop(guard);
/// assert_eq!(*lock.lock(), "data");
/// ```
pub struct RawFairSpinLock<P, const MOST: u32 = HAND_OFFS> {
    queue: Queue,
    platform: PhantomData<fn() -> P>,
}

// A platform need not be `Debug`.
impl<P, const MOST: u32> fmt::Debug for RawFairSpinLock<P, MOST> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RawFairSpinLock").field("is_held", &self.queue.is_held()).finish()
    }
}

// SAFETY: `Queue` gives the lock to one at a time.
#[cfg(not(loom))]
unsafe impl<P: Platform, const MOST: u32> RawMutex for RawFairSpinLock<P, MOST> {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self { queue: Queue::new(), platform: PhantomData };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.queue.take_free() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.queue.take_free()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.queue.release(P::node, MOST) }
    }

    fn is_locked(&self) -> bool {
        self.queue.is_held()
    }
}

impl<P: Platform, const MOST: u32> RawFairSpinLock<P, MOST> {
    #[cold]
    #[cfg_attr(loom, allow(dead_code, reason = "loom tests the queue alone"))]
    fn wait(&self) {
        let waiter = Waiter::on(P::node());
        let stay = Stay;
        // SAFETY: the waiter is new, and this function does not return before `take`, nor unwind.
        let mut has_lock = unsafe { self.queue.enter(&waiter) };
        let mut turns = 0_u32;
        while !has_lock {
            if P::stays(turns) {
                core::hint::spin_loop();
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
        core::mem::forget(stay);
    }
}

/// A panic while this exists aborts: others hold the address of a waiter.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        #[allow(clippy::panic, reason = "a second panic aborts")]
        {
            panic!("a platform has panicked while a thread waited for a lock");
        }
    }
}
