//! Fair locks for machines with several NUMA nodes.
//!
//! Start with [`FairSpinLock`]. It prefers waiters on the holder's node, so that the lock and its
//! data change nodes less often, and keeps no other waiting for long. The waiters of [`FairMutex`]
//! sleep. [`NodeRwLock`] is for data that is read far more often than written. [`PerNode`] and
//! [`NodeCounter`] spare a lock. The machine is the caller's [`Platform`]; for programs under Linux
//! it is [`Linux`].
//!
//! ```
//! use nearside_locks::{FairSpinLock, Linux};
//!
//! let queue: FairSpinLock<Linux, Vec<u32>> = FairSpinLock::new(Vec::new());
//! queue.lock().push(1);
//! assert_eq!(queue.lock().pop(), Some(1));
//! ```
//!
//! # Limits
//! - Waiters spin, those of [`FairMutex`] until they sleep, and use CPU time. With more threads
//!   than CPUs a holder, or a waiter that has just got the lock, may be preempted, and holds up all
//!   others. Under [`Linux`] waiters give their CPU away now and then, so that such a thread can
//!   run. Meanwhile the lock passes to waiters that have not given theirs away, if there are any.
//! - An unlock may wait for a thread that is about to queue, which has two instructions to go. If
//!   that thread cannot run, as the holder has a higher real-time priority on the same CPU, the
//!   unlock does not end.
//! - So if a handler of interrupts or signals takes any such lock, all such locks have to be taken
//!   with interrupts or signals blocked: the handler may have interrupted a thread that is about to
//!   queue.
//! - An unlock may touch the lock after another thread has taken it. So unsafe code must not free a
//!   lock's memory while another thread may still be in its unlock.
#![cfg_attr(not(any(feature = "std", test)), no_std)]

mod door;
mod fair;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "a lock of lock_api")]
mod measured;
#[allow(unsafe_code, reason = "a lock of lock_api")]
mod node_rw;
mod per_node;
mod platform;
#[allow(unsafe_code, reason = "entries of the queue live on the stacks of those who wait")]
mod queue;
#[allow(unsafe_code, reason = "a lock of lock_api, and waiters on the stack")]
mod raw;
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
mod readme {}
mod sync;

pub use fair::{
    FairMutex, FairMutexGuard, FairSpinLock, FairSpinLockGuard, HAND_OFFS, MUTEX_HAND_OFFS,
    RETURNS, RawFairMutex, RawFairSpinLock,
};
pub use lock_api;
#[cfg(not(loom))]
pub use measured::{Measured, Usage, usage};
pub use node_rw::{NodeRwLock, NodeRwLockReadGuard, NodeRwLockWriteGuard, RawNodeRwLock};
pub use per_node::{NodeCounter, PerNode};
#[cfg(feature = "std")]
pub use platform::Linux;
pub use platform::{Futex, Platform};
pub use raw::{Absence, GivesWay, RawFair, Sleeps};
