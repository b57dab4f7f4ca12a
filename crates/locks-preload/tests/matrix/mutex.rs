//! A mutex of the C library, and threads that count under it.

use libc::{c_int, pthread_cond_t, pthread_mutex_t, pthread_mutexattr_t, timespec};
use std::{cell::UnsafeCell, fs, mem::MaybeUninit, sync::mpsc, thread};

/// A mutex and a count that it guards, at a place of its own.
pub(crate) struct Mutex(Box<(UnsafeCell<pthread_mutex_t>, UnsafeCell<u64>)>);

// SAFETY: the count is accessed by the thread that has the mutex.
unsafe impl Send for Mutex {}
// SAFETY: as above.
unsafe impl Sync for Mutex {}

impl Mutex {
    pub(crate) fn plain() -> Self {
        let mutex = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
        Self(Box::new((mutex, UnsafeCell::new(0))))
    }

    /// One that has been waited for, so that it has a place in the object, and a queue.
    pub(crate) fn wanted() -> Self {
        let mutex = Self::plain();
        mutex.with_waiters(1, || ());
        mutex
    }

    /// Holds it while threads begin to wait, one after the other, and then for the action. It ends
    /// when all have had it.
    pub(crate) fn with_waiters(&self, count: usize, action: impl FnOnce()) {
        thread::scope(|scope| {
            assert_eq!(self.lock(), 0);
            let held = Held(self);
            for _ in 0..count {
                let (begun, has_begun) = mpsc::channel();
                scope.spawn(move || {
                    begun.send(thread_id()).unwrap();
                    assert_eq!(self.lock(), 0);
                    assert_eq!(self.unlock(), 0);
                });
                await_sleep(has_begun.recv().unwrap());
            }
            action();
            drop(held);
        });
    }

    /// With an attribute that the function sets.
    pub(crate) fn with(
        set: unsafe extern "C" fn(*mut pthread_mutexattr_t, c_int) -> c_int,
        value: c_int,
    ) -> Self {
        let mutex = Self::plain();
        // SAFETY: nobody else knows it yet.
        unsafe { initialize(mutex.raw(), set, value) };
        mutex
    }

    pub(crate) fn raw(&self) -> *mut pthread_mutex_t {
        self.0.0.get()
    }

    pub(crate) fn lock(&self) -> c_int {
        // SAFETY: it is initialized, and lives as long as this.
        unsafe { libc::pthread_mutex_lock(self.raw()) }
    }

    pub(crate) fn try_lock(&self) -> c_int {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_trylock(self.raw()) }
    }

    /// Waits for it, for a hundredth of a second at most.
    pub(crate) fn timed_lock(&self) -> c_int {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_timedlock(self.raw(), &soon()) }
    }

    pub(crate) fn unlock(&self) -> c_int {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.raw()) }
    }

    pub(crate) fn destroy(&self) -> c_int {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_destroy(self.raw()) }
    }

    /// The count, which the caller's lock guards.
    pub(crate) fn count(&self) -> u64 {
        // SAFETY: callers have the mutex, or are alone.
        unsafe { *self.0.1.get() }
    }

    /// One more, which the caller's lock guards.
    pub(crate) fn add(&self) {
        // SAFETY: as above.
        unsafe { *self.0.1.get() += 1 };
    }

    /// Lets so many threads count so often.
    pub(crate) fn count_in(&self, threads: usize, turns: usize) {
        let before = self.count();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.count_up(turns));
            }
        });
        assert_eq!(self.count() - before, (threads * turns) as u64);
    }

    pub(crate) fn count_up(&self, turns: usize) {
        for turn in 0..turns {
            assert_eq!(self.lock(), 0);
            self.add();
            // Some holders lose their CPU.
            if turn % 64 == 0 {
                thread::yield_now();
            }
            assert_eq!(self.unlock(), 0);
        }
    }
}

/// # Safety
/// The mutex is not in use.
pub(crate) unsafe fn initialize(
    mutex: *mut pthread_mutex_t,
    set: unsafe extern "C" fn(*mut pthread_mutexattr_t, c_int) -> c_int,
    value: c_int,
) {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the attributes are initialized first; the mutex is the caller's.
    unsafe {
        assert_eq!(libc::pthread_mutexattr_init(attributes.as_mut_ptr()), 0);
        assert_eq!(set(attributes.as_mut_ptr(), value), 0);
        assert_eq!(libc::pthread_mutex_init(mutex, attributes.as_ptr()), 0);
        assert_eq!(libc::pthread_mutexattr_destroy(attributes.as_mut_ptr()), 0);
    }
}

/// A mutex that is unlocked in the end, also by a test that fails.
struct Held<'a>(&'a Mutex);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// The calling thread, for the kernel.
pub(crate) fn thread_id() -> i32 {
    // SAFETY: it asks about the calling thread.
    unsafe { libc::gettid() }
}

/// Lets a thread go on until it sleeps.
pub(crate) fn await_sleep(thread: i32) {
    loop {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        // After the name, which may have any characters.
        if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')) {
            return;
        }
        thread::yield_now();
    }
}

/// A hundredth of a second from now, on the clock of limits.
pub(crate) fn soon() -> timespec {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) }, 0);
    now.tv_nsec += 10_000_000;
    if now.tv_nsec >= 1_000_000_000 {
        (now.tv_sec, now.tv_nsec) = (now.tv_sec + 1, now.tv_nsec - 1_000_000_000);
    }
    now
}

/// A condition variable.
pub(crate) struct Condition(UnsafeCell<pthread_cond_t>);

// SAFETY: the C library permits it.
unsafe impl Send for Condition {}
// SAFETY: as above.
unsafe impl Sync for Condition {}

impl Condition {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER))
    }

    pub(crate) fn wait(&self, mutex: &Mutex) -> c_int {
        // SAFETY: both are initialized, and the caller has the mutex.
        unsafe { libc::pthread_cond_wait(self.0.get(), mutex.raw()) }
    }

    /// Waits for a hundredth of a second at most.
    pub(crate) fn timed_wait(&self, mutex: &Mutex) -> c_int {
        // SAFETY: as above.
        unsafe { libc::pthread_cond_timedwait(self.0.get(), mutex.raw(), &soon()) }
    }

    pub(crate) fn wake_all(&self) {
        // SAFETY: it is initialized.
        assert_eq!(unsafe { libc::pthread_cond_broadcast(self.0.get()) }, 0);
    }
}
