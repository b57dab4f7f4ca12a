//! The C library's mutex below ours.

use libc::{c_int, c_void, pthread_mutex_t};
use std::{
    ffi::CStr,
    mem::{MaybeUninit, transmute},
    ptr::null_mut,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

type Function = unsafe extern "C-unwind" fn(*mut pthread_mutex_t) -> c_int;

/// The next definition of a function, after this object's.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(null_mut()) }
    }

    #[inline]
    fn get(&self) -> Function {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.find();
        }
        // SAFETY: a function of this kind (`pthread.h`).
        unsafe { transmute::<*mut c_void, Function>(found) }
    }

    /// A constructor of a library may lock before ours has run.
    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a name that ends.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // A program that goes on without its mutexes would be worse.
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

static LOCK: Next = Next::new(c"pthread_mutex_lock");
static TRY_LOCK: Next = Next::new(c"pthread_mutex_trylock");

/// Finds the C library's functions, so that no thread has to while it locks.
pub(crate) fn find() {
    LOCK.get();
    TRY_LOCK.get();
}

/// A mutex of the program.
#[derive(Clone, Copy)]
pub(crate) struct Mutex(*mut pthread_mutex_t);

/// Words of glibc's mutex (`sysdeps/x86/nptl/bits/struct_mutex.h`; other 64-bit machines have
/// the same). Programs hold them in their initializers, so they stay. [`is_as_expected`]
/// asks the library that runs.
const WORD: usize = 0;
const KIND: usize = 4;

/// A mutex that was made as PTHREAD_MUTEX_NORMAL (`PTHREAD_MUTEX_NO_ELISION_NP`).
const NO_ELISION: u32 = 512;

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
    pub(crate) fn is_plain(self) -> bool {
        self.word(KIND) & !NO_ELISION == 0
    }

    /// Whether some thread holds it just now.
    #[inline]
    pub(crate) fn is_held(self) -> bool {
        self.word(WORD) != 0
    }

    /// Locks it as the C library does.
    #[inline]
    pub(crate) fn lock(self) -> c_int {
        // SAFETY: as for `new`.
        unsafe { LOCK.get()(self.0) }
    }

    /// Tries to lock it as the C library does.
    pub(crate) fn try_lock(self) -> c_int {
        // SAFETY: as for `new`.
        unsafe { TRY_LOCK.get()(self.0) }
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

/// The calling thread, as a number that no other has while this one lives. The address of a
/// variable of the thread would not do: the dynamic linker may allocate memory for it, and so lock
/// a mutex.
pub(crate) fn thread() -> usize {
    // SAFETY: it asks about the calling thread.
    unsafe { libc::pthread_self() as usize }
}

unsafe extern "C" {
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_DEFERRED, which the libc crate lacks.
const DEFERRED: c_int = 0;

/// Whether the calling thread may be cancelled at any instruction: it would leave an entry of a
/// queue, or a lock, behind.
pub(crate) fn is_asynchronously_cancellable() -> bool {
    let (mut kind, mut other) = (DEFERRED, DEFERRED);
    // SAFETY: it changes the calling thread, and changes it back.
    unsafe {
        pthread_setcanceltype(DEFERRED, &raw mut kind);
        if kind != DEFERRED {
            pthread_setcanceltype(kind, &raw mut other);
        }
    }
    kind != DEFERRED
}

unsafe extern "C" {
    fn nearside_policy_of_thread() -> *mut c_int;
}

/// Whether the calling thread has a real-time policy or a deadline. The C library wakes such
/// threads by priority. A thread is asked once; a child inherits the answer.
pub(crate) fn is_real_time() -> bool {
    // SAFETY: a variable of the calling thread.
    let known = unsafe { &mut *nearside_policy_of_thread() };
    if *known == 0 {
        // SAFETY: it asks about the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
        *known = 1 + policy;
    }
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&(*known - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_c_library_is_as_expected() {
        assert!(is_as_expected());
    }
}
