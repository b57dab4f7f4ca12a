//! Uses of a mutex that others queue for. The object says whether they did.

use crate::mutex::{Condition, Mutex, await_sleep, thread_id};
use libc::{c_int, c_void, pthread_t};
use std::{
    mem::MaybeUninit,
    ptr::null_mut,
    sync::atomic::{AtomicI32, Ordering::Relaxed},
    thread,
};

/// The tests of this file.
pub(crate) const CASES: &[&str] = &[
    "a_thread_that_is_cancelled_while_it_waits_gets_the_mutex_first",
    "a_thread_that_is_cancelled_anywhere_leaves_the_others_the_mutex",
    "a_wait_for_a_condition_beside_those_who_wait",
    "errno_stays",
    "those_that_try_or_have_a_limit_beside_those_who_wait",
];

#[test]
fn errno_stays() {
    let mutex = Mutex::wanted();
    let check = || {
        // SAFETY: each thread has a word of its own.
        unsafe { *libc::__errno_location() = 77 };
        assert_eq!(mutex.lock(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 77);
        assert_eq!(mutex.unlock(), 0);
    };
    thread::scope(|scope| {
        mutex.with_waiters(2, || {
            scope.spawn(check);
        });
    });
}

#[test]
fn those_that_try_or_have_a_limit_beside_those_who_wait() {
    let mutex = Mutex::wanted();
    mutex.with_waiters(3, || {
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(mutex.try_lock(), libc::EBUSY));
            scope.spawn(|| assert_eq!(mutex.timed_lock(), libc::ETIMEDOUT));
        });
    });
    assert_eq!((mutex.try_lock(), mutex.unlock()), (0, 0));
}

#[test]
fn a_wait_for_a_condition_beside_those_who_wait() {
    let (mutex, condition) = (Mutex::wanted(), Condition::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(mutex.lock(), 0);
            while mutex.count() == 0 {
                assert_eq!(condition.wait(&mutex), 0);
            }
            assert_eq!(mutex.unlock(), 0);
        });
        mutex.with_waiters(3, || {
            mutex.add();
            condition.wake_all();
            assert_eq!(condition.timed_wait(&mutex), libc::ETIMEDOUT);
        });
    });
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_cancel(thread: pthread_t) -> c_int;
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const libc::pthread_attr_t,
        run: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        value: *mut c_void,
    ) -> c_int;
}

/// PTHREAD_CANCEL_ASYNCHRONOUS and PTHREAD_CANCELED, which the libc crate lacks.
const ASYNCHRONOUS: c_int = 1;
const CANCELED: isize = -1;

/// A mutex, whether a thread that waits for it may end anywhere, and that thread once it has begun.
struct Waiting(Mutex, bool, AtomicI32);

/// A thread that waits for the mutex, and ends if that was asked for.
extern "C-unwind" fn wait_and_end(value: *mut c_void) -> *mut c_void {
    // SAFETY: the value of the test below, which outlives this thread.
    let Waiting(mutex, ends_anywhere, thread) = unsafe { &*value.cast::<Waiting>() };
    if *ends_anywhere {
        // SAFETY: it changes this thread, which has nothing to drop.
        unsafe { pthread_setcanceltype(ASYNCHRONOUS, null_mut()) };
    }
    thread.store(thread_id(), Relaxed);
    if mutex.lock() == 0 {
        mutex.add();
        mutex.unlock();
    }
    // SAFETY: no frame of this thread has anything to drop.
    unsafe { pthread_testcancel() };
    null_mut()
}

/// Cancels a thread that waits between others. Returns whether it had the mutex before its end.
fn cancelled(ends_anywhere: bool) -> bool {
    let waiting = Waiting(Mutex::wanted(), ends_anywhere, AtomicI32::new(0));
    let Waiting(mutex, _, thread) = &waiting;
    let mut waiter = MaybeUninit::uninit();
    let mut result = null_mut();
    // SAFETY: the mutex outlives the thread, which is joined. The thread's frames may be unwound.
    unsafe {
        thread::scope(|scope| {
            mutex.with_waiters(2, || {
                let value = (&raw const waiting).cast_mut().cast();
                assert_eq!(pthread_create(waiter.as_mut_ptr(), null_mut(), wait_and_end, value), 0);
                while thread.load(Relaxed) == 0 {
                    thread::yield_now();
                }
                await_sleep(thread.load(Relaxed));
                scope.spawn(|| mutex.count_up(1));
                assert_eq!(pthread_cancel(waiter.assume_init()), 0);
                // If it were woken for the mutex as it ends, nobody else would be woken.
                if ends_anywhere {
                    assert_eq!(libc::pthread_join(waiter.assume_init(), &mut result), 0);
                }
            });
        });
        if !ends_anywhere {
            assert_eq!(libc::pthread_join(waiter.assume_init(), &mut result), 0);
        }
    }
    assert_eq!((result as isize, mutex.try_lock()), (CANCELED, 0));
    mutex.count() == 2
}

#[test]
fn a_thread_that_is_cancelled_while_it_waits_gets_the_mutex_first() {
    assert!(cancelled(false));
}

#[test]
fn a_thread_that_is_cancelled_anywhere_leaves_the_others_the_mutex() {
    // glibc's waits end so, though POSIX does not promise it.
    assert!(!cancelled(true));
}
