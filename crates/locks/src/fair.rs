//! The fair locks: one that spins, and one that sleeps.

use crate::raw::{GivesWay, RawFair, Sleeps};

/// Hand-offs in a row that [`FairSpinLock`] permits while an older waiter may wait.
pub const HAND_OFFS: u32 = 64;

/// Hand-offs in a row that [`FairMutex`] permits while an older waiter may wait. Its waiters sleep,
/// so each hand-off takes longer.
pub const MUTEX_HAND_OFFS: u32 = 8;

/// Threads on the last holder's node that may pass a waiter of [`FairSpinLock`] or [`FairMutex`]
/// whose turn it is.
pub const RETURNS: u32 = 16;

/// A spin lock that prefers waiters on the holder's node, and keeps no other waiting for long.
///
/// A lock that changes nodes takes its line, and those of the data that it protects, to the other
/// node. So the next waiter is the oldest one on the holder's node, among 64 that have not been
/// passed over yet. Waiters that give their CPU away
/// ([`Platform::give_way`](crate::Platform::give_way)) come later, if others wait. After
/// [`HAND_OFFS`] of such hand-offs in a row the oldest waiter of all is next. With `n` waiters
/// ahead of it, a thread is the next one after at most `(n + 1) * (HAND_OFFS + 1)` others of the
/// queue.
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

/// A spin lock as [`FairSpinLock`], without data. `MOST` is the number of hand-offs in a row that
/// are not to the oldest waiter of all, and `PASSES` the number of threads that may pass a waiter:
/// at most 2047. With 0 for both, not for `MOST` alone, the order is that of arrival.
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
pub type RawFairSpinLock<P, const MOST: u32 = HAND_OFFS, const PASSES: u32 = RETURNS> =
    RawFair<GivesWay<P>, MOST, PASSES>;

/// A lock as [`FairSpinLock`], whose waiters sleep instead of giving way: for programs with more
/// threads than CPUs, or that hold it for long.
///
/// A waiter spins for as long as [`Platform::stays`](crate::Platform::stays), and then sleeps. The
/// next waiter is the oldest one on the holder's node, whether it sleeps or not; else the oldest
/// that does not sleep; each among 64 waiters. After [`MUTEX_HAND_OFFS`] of such hand-offs in a row
/// it is the oldest of all. With `n` waiters ahead of it, a thread is the next one after at most
/// `(n + 1) * (MUTEX_HAND_OFFS + 1)` others of the queue.
///
/// While the next waiter sleeps or wakes, threads on any node may take the lock, `8 * RETURNS`
/// times in all. Once it stands before the lock, others pass it only if fewer than [`RETURNS`]
/// have. They are counted from its first look at the lock on, or from its turn in the queue. The
/// lock waits for a waiter that so many have passed, and for one that the kernel
/// preempts.
///
/// ```
/// use nearside_locks::{FairMutex, Linux};
///
/// static LOG: FairMutex<Linux, Vec<String>> = FairMutex::new(Vec::new());
///
/// std::thread::scope(|scope| {
///     for name in ["a", "b"] {
///         scope.spawn(|| LOG.lock().push(name.to_owned()));
///     }
/// });
/// assert_eq!(LOG.lock().len(), 2);
/// ```
pub type FairMutex<P, T> = lock_api::Mutex<RawFairMutex<P>, T>;

/// The guard of a [`FairMutex`].
pub type FairMutexGuard<'a, P, T> = lock_api::MutexGuard<'a, RawFairMutex<P>, T>;

/// A lock as [`FairMutex`], without data. The parameters are those of [`RawFairSpinLock`], but
/// `PASSES` is at most 255, and 8 times as many threads may pass a waiter that sleeps. With 0 the
/// lock waits for a next waiter that sleeps.
pub type RawFairMutex<P, const MOST: u32 = MUTEX_HAND_OFFS, const PASSES: u32 = RETURNS> =
    RawFair<Sleeps<P>, MOST, PASSES>;
