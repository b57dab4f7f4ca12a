//! The C library's mutex below ours.

use libc::{c_int, c_void, pthread_mutex_t};
use std::{
    ffi::CStr,
    mem::{MaybeUninit, transmute},
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

type Function = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;

/// The next definition of a function, after this object's.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    /// A constructor of a library may call before ours has run.
    #[inline]
    fn get(&self) -> Option<Function> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: a name that ends.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: a null pointer is `None`; else it is a function of this kind, as pthreads
        // has it.
        unsafe { transmute::<*mut c_void, Option<Function>>(found) }
    }
}

static LOCK: Next = Next::new(c"pthread_mutex_lock");
static TRY_LOCK: Next = Next::new(c"pthread_mutex_trylock");

/// A mutex of the program.
#[derive(Clone, Copy)]
pub(crate) struct Mutex(*mut pthread_mutex_t);

/// Words of glibc's mutex (`sysdeps/x86/nptl/bits/struct_mutex.h`; other 64-bit machines have
/// the same). Programs hold them in their initializers, so they stay. [`is_as_expected`]
/// asks the library that runs.
const WORD: usize = 0;
const KIND: usize = 4;

impl Mutex {
    /// # Safety
    /// As for `pthread_mutex_lock`, for as long as it is used.
    pub(crate) unsafe fn new(mutex: *mut pthread_mutex_t) -> Self {
        Self(mutex)
    }

    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    fn word(&self, index: usize) -> u32 {
        // SAFETY: a mutex has so many words, and the C library accesses them as atomics.
        unsafe { (*self.0.cast::<AtomicU32>().add(index)).load(Ordering::Relaxed) }
    }

    /// Whether it is neither recursive, error-checking, adaptive, robust, shared nor of a
    /// priority protocol, and its lock is not elided.
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        self.word(KIND) == 0
    }

    /// Whether some thread holds it just now.
    #[inline]
    pub(crate) fn is_held(self) -> bool {
        self.word(WORD) != 0
    }

    /// Locks it as the C library does.
    #[inline]
    pub(crate) fn lock(self) -> c_int {
        match LOCK.get() {
            // SAFETY: as for `new`.
            Some(lock) => unsafe { lock(self.0) },
            None => libc::ENOSYS,
        }
    }

    /// Tries to lock it as the C library does.
    pub(crate) fn try_lock(self) -> c_int {
        match TRY_LOCK.get() {
            // SAFETY: as for `new`.
            Some(lock) => unsafe { lock(self.0) },
            None => libc::EBUSY,
        }
    }
}

/// Whether the C library's mutex has its words where [`Mutex`] looks.
pub(crate) fn is_as_expected() -> bool {
    let mut plain = libc::PTHREAD_MUTEX_INITIALIZER;
    // SAFETY: both are initialized before they are used, and nobody else knows them.
    unsafe {
        let mut attributes = MaybeUninit::uninit();
        let mut recursive = MaybeUninit::uninit();
        if libc::pthread_mutexattr_init(attributes.as_mut_ptr()) != 0 {
            return false;
        }
        libc::pthread_mutexattr_settype(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_RECURSIVE);
        let made = libc::pthread_mutex_init(recursive.as_mut_ptr(), attributes.as_ptr()) == 0;
        libc::pthread_mutexattr_destroy(attributes.as_mut_ptr());
        if !made {
            return false;
        }
        let recursive = Mutex::new(recursive.as_mut_ptr());
        let plain = Mutex::new(&raw mut plain);
        let states = |mutex: Mutex| {
            let before = mutex.is_held();
            let locked = mutex.try_lock() == 0 && mutex.is_held();
            libc::pthread_mutex_unlock(mutex.0);
            !before && locked && !mutex.is_held()
        };
        let is_expected =
            states(plain) && states(recursive) && plain.is_plain() && !recursive.is_plain();
        libc::pthread_mutex_destroy(recursive.0);
        is_expected
    }
}

/// Whether the caller is scheduled by a real-time policy or a deadline.
pub(crate) fn is_urgent() -> bool {
    // SAFETY: it asks about the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_c_library_is_as_expected() {
        assert!(is_as_expected());
    }
}
