//! The C library's lock of readers and writers.

use lock_api::{GuardNoSend, RawRwLock};
use std::cell::UnsafeCell;

/// The C library's lock of readers and writers, with its own preference (for readers).
pub(crate) struct PthreadRw(UnsafeCell<libc::pthread_rwlock_t>);

// SAFETY: the C library permits it.
unsafe impl Send for PthreadRw {}
// SAFETY: as above.
unsafe impl Sync for PthreadRw {}

// SAFETY: the C library gives it to readers, or to one writer.
unsafe impl RawRwLock for PthreadRw {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api wants a constant")]
    const INIT: Self = Self(UnsafeCell::new(libc::PTHREAD_RWLOCK_INITIALIZER));

    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        // SAFETY: it is initialized, and stays where it is as long as threads use it.
        assert_eq!(unsafe { libc::pthread_rwlock_rdlock(self.0.get()) }, 0);
    }

    fn try_lock_shared(&self) -> bool {
        // SAFETY: as above.
        unsafe { libc::pthread_rwlock_tryrdlock(self.0.get()) == 0 }
    }

    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller holds it.
        assert_eq!(unsafe { libc::pthread_rwlock_unlock(self.0.get()) }, 0);
    }

    fn lock_exclusive(&self) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::pthread_rwlock_wrlock(self.0.get()) }, 0);
    }

    fn try_lock_exclusive(&self) -> bool {
        // SAFETY: as above.
        unsafe { libc::pthread_rwlock_trywrlock(self.0.get()) == 0 }
    }

    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller holds it.
        assert_eq!(unsafe { libc::pthread_rwlock_unlock(self.0.get()) }, 0);
    }
}
