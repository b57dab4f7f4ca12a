//! The atomics of `core`, or those of loom, which tries many orders of their operations.

use core::sync::atomic::Ordering::SeqCst;
#[cfg(not(loom))]
pub(crate) use core::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize},
};
#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize},
};

/// A word, in the one order that all `SeqCst` accesses have.
///
/// Loom does not model that order for loads. Its read-modify-writes have the last value, so one
/// stands in. That acquires and releases, so loom misses faults that a plain load would show.
#[inline]
pub(crate) fn latest(word: &AtomicU64) -> u64 {
    #[cfg(not(loom))]
    let now = word.load(SeqCst);
    #[cfg(loom)]
    let now = word.fetch_or(0, SeqCst);
    now
}
