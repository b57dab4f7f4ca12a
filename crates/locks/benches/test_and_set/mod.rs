//! A lock to compare with, also for the lab.

use lock_api::{GuardNoSend, RawMutex};
use nearside_locks::{Linux, Platform};
use std::{
    hint::spin_loop,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// A word that everybody writes.
pub(crate) struct TestAndSet(AtomicBool);

// SAFETY: one at a time sets the word.
#[allow(unsafe_code, reason = "a lock of lock_api")]
unsafe impl RawMutex for TestAndSet {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self(AtomicBool::new(false));

    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        let mut turns = 0;
        while !self.try_lock() {
            while self.0.load(Relaxed) {
                match Linux::stays(turns) {
                    true => spin_loop(),
                    false => Linux::give_way(),
                }
                turns += 1;
            }
        }
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Release);
    }
}
