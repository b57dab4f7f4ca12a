//! The C library's mutex, as a lock of `lock_api`.
#![allow(unsafe_code, reason = "functions of C")]

use lock_api::{GuardNoSend, RawMutex};
use std::cell::UnsafeCell;

/// The C library's mutex. It must not move once it is used.
#[derive(Debug)]
pub struct Pthread(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: the C library permits it.
unsafe impl Send for Pthread {}
// SAFETY: as above.
unsafe impl Sync for Pthread {}

// SAFETY: the C library gives it to one at a time.
unsafe impl RawMutex for Pthread {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));

    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        // SAFETY: it is initialized, and stays where it is as long as threads use it.
        assert_eq!(unsafe { libc::pthread_mutex_lock(self.0.get()) }, 0);
    }

    fn try_lock(&self) -> bool {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) == 0 }
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.0.get()) }, 0);
    }
}
