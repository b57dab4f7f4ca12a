//! A lock that counts how it is used.

use crate::platform::Platform;
use core::{
    fmt,
    marker::PhantomData,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};
use lock_api::RawMutex;

/// A lock that counts its acquisitions by node, its hand-offs between threads, and the longest
/// wait. `R` is any mutex of `lock_api`, `NODES` the number of nodes. [`usage`] tells the figures.
///
/// A thread that finds the lock free looks at its node and makes two stores to lines that the
/// lock's holder alone writes. One that waits looks at the clock twice.
///
/// ```
/// use nearside_locks::{Linux, Measured, RawFairSpinLock, lock_api::Mutex, usage};
///
/// type Lock<T> = Mutex<Measured<RawFairSpinLock<Linux>, Linux, 8>, T>;
///
/// let lock: Lock<u64> = Mutex::new(0);
/// *lock.lock() += 1;
/// let usage = usage(&lock);
/// assert_eq!(usage.acquisitions.iter().sum::<u64>(), 1);
/// assert_eq!((usage.hand_offs, usage.locality()), (0, None));
/// ```
pub struct Measured<R, P, const NODES: usize> {
    lock: R,
    counts: Counts<NODES>,
    platform: PhantomData<fn() -> P>,
}

/// The holder of the lock writes these, others only read them. They lie beside the lock and not in
/// its line, where waiters look.
#[repr(align(128))]
struct Counts<const NODES: usize> {
    acquisitions: [AtomicU64; NODES],
    hand_offs: AtomicU64,
    near_hand_offs: AtomicU64,
    longest_wait_ns: AtomicU64,
    /// The node of the last holder.
    last: AtomicU32,
}

/// The use of a lock until now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage<const NODES: usize> {
    /// How often a thread of each node has taken the lock. Nodes beyond the last one count as one
    /// of these, as in [`PerNode::here`](crate::PerNode::here).
    pub acquisitions: [u64; NODES],
    /// How often a thread has taken it that did not find it free at once.
    pub hand_offs: u64,
    /// Those of the hand-offs where the holder before was on the same node.
    pub near_hand_offs: u64,
    /// The longest time that a thread has waited, in nanoseconds. 0 if nobody has, or if the
    /// platform has no clock ([`Platform::now_ns`]).
    pub longest_wait_ns: u64,
}

impl<const NODES: usize> Usage<NODES> {
    /// The share of the hand-offs that stayed on their node; none before the first one.
    pub fn locality(&self) -> Option<f64> {
        (self.hand_offs > 0).then(|| self.near_hand_offs as f64 / self.hand_offs as f64)
    }
}

/// The use of a lock until now. The figures are read one after the other: those of threads that
/// take the lock meanwhile may be there in part.
pub fn usage<R: RawMutex, P: Platform, T: ?Sized, const NODES: usize>(
    lock: &lock_api::Mutex<Measured<R, P, NODES>, T>,
) -> Usage<NODES> {
    // SAFETY: the lock beneath is not unlocked, and not reached at all.
    let counts = &unsafe { lock.raw() }.counts;
    Usage {
        acquisitions: core::array::from_fn(|node| counts.acquisitions[node].load(Relaxed)),
        hand_offs: counts.hand_offs.load(Relaxed),
        near_hand_offs: counts.near_hand_offs.load(Relaxed),
        longest_wait_ns: counts.longest_wait_ns.load(Relaxed),
    }
}

impl<const NODES: usize> Counts<NODES> {
    const fn new() -> Self {
        const { assert!(NODES > 0 && NODES <= u32::MAX as usize) }
        Self {
            acquisitions: [const { AtomicU64::new(0) }; NODES],
            hand_offs: AtomicU64::new(0),
            near_hand_offs: AtomicU64::new(0),
            longest_wait_ns: AtomicU64::new(0),
            last: AtomicU32::new(0),
        }
    }

    /// The caller, on `node`, has taken the lock, after a wait if it had to.
    fn taken(&self, node: u32, waited_ns: Option<u64>) {
        add_one(&self.acquisitions[node as usize % NODES]);
        if let Some(waited_ns) = waited_ns {
            add_one(&self.hand_offs);
            if self.last.load(Relaxed) == node {
                add_one(&self.near_hand_offs);
            }
            let longest = self.longest_wait_ns.load(Relaxed).max(waited_ns);
            self.longest_wait_ns.store(longest, Relaxed);
        }
        self.last.store(node, Relaxed);
    }
}

/// Only the holder of the lock writes, so this needs no locked instruction.
fn add_one(count: &AtomicU64) {
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}

// A platform need not be `Debug`.
impl<R: fmt::Debug, P, const NODES: usize> fmt::Debug for Measured<R, P, NODES> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Measured").field("lock", &self.lock).finish_non_exhaustive()
    }
}

// SAFETY: `R` gives the lock to one at a time.
unsafe impl<R: RawMutex, P: Platform, const NODES: usize> RawMutex for Measured<R, P, NODES> {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self { lock: R::INIT, counts: Counts::new(), platform: PhantomData };

    type GuardMarker = R::GuardMarker;

    fn lock(&self) {
        if self.try_lock() {
            return;
        }
        let began_ns = P::now_ns();
        self.lock.lock();
        self.counts.taken(P::node(), Some(P::now_ns().saturating_sub(began_ns)));
    }

    fn try_lock(&self) -> bool {
        let is_taken = self.lock.try_lock();
        if is_taken {
            self.counts.taken(P::node(), None);
        }
        is_taken
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock.
        unsafe { self.lock.unlock() }
    }

    fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RawFairSpinLock;
    use core::cell::Cell;
    use lock_api::Mutex;
    use std::thread;

    std::thread_local! {
        static NODE: Cell<u32> = const { Cell::new(0) };
        static NOW_NS: Cell<u64> = const { Cell::new(0) };
    }

    /// Turns of all threads that wait.
    static WAITS: AtomicU64 = AtomicU64::new(0);

    /// A machine where a thread says its node, and each look at the clock takes 100 ns.
    enum Told {}

    impl Platform for Told {
        fn node() -> u32 {
            NODE.get()
        }

        fn now_ns() -> u64 {
            NOW_NS.set(NOW_NS.get() + 100);
            NOW_NS.get()
        }

        fn stays(_: u32) -> bool {
            false
        }

        fn give_way() {
            WAITS.fetch_add(1, Relaxed);
            thread::yield_now();
        }
    }

    type Lock = Mutex<Measured<RawFairSpinLock<Told>, Told, 2>, ()>;

    #[test]
    fn free_locks_are_counted_by_node_and_a_failed_attempt_is_not() {
        let lock: Lock = Mutex::new(());
        drop(lock.lock());
        NODE.set(1);
        let guard = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none());
        drop(guard);
        // A node beyond the last one.
        NODE.set(3);
        drop(lock.lock());
        let expected =
            Usage { acquisitions: [1, 2], hand_offs: 0, near_hand_offs: 0, longest_wait_ns: 0 };
        assert_eq!((usage(&lock), usage(&lock).locality()), (expected, None));
    }

    #[test]
    fn hand_offs_stay_on_a_node_or_leave_it_and_the_longest_wait_stays() {
        let lock: Lock = Mutex::new(());
        let hand_over = |from: u32, to: u32| {
            thread::scope(|scope| {
                NODE.set(from);
                let guard = lock.lock();
                let before = WAITS.load(Relaxed);
                scope.spawn(|| {
                    NODE.set(to);
                    drop(lock.lock());
                });
                while WAITS.load(Relaxed) == before {
                    thread::yield_now();
                }
                drop(guard);
            });
        };
        hand_over(0, 0);
        hand_over(0, 1);
        let usage = usage(&lock);
        assert_eq!((usage.acquisitions, usage.hand_offs, usage.near_hand_offs), ([3, 1], 2, 1));
        assert_eq!((usage.locality(), usage.longest_wait_ns), (Some(0.5), 100));
    }
}
