//! Mutexes beside forks, signals and cancellation.

use crate::mutex::Mutex;
use libc::{c_int, c_void, pthread_t};
use std::{
    mem::MaybeUninit,
    ptr::null_mut,
    sync::{
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

#[test]
fn a_child_has_the_mutex_and_threads_of_its_own() {
    let mutex = Mutex::plain();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    mutex.count_up(64);
                }
            });
        }
        for _ in 0..20 {
            // As functions of pthread_atfork(3) do: the parent's other threads may wait for it.
            assert_eq!(mutex.lock(), 0);
            // SAFETY: the child uses this mutex, which its thread has, and threads.
            let child = unsafe { libc::fork() };
            assert_eq!(mutex.unlock(), 0);
            if child == 0 {
                // SAFETY: the child ends: by an alarm, or without a word to the parent's threads.
                unsafe {
                    libc::alarm(300);
                    mutex.count_in(4, 2_000);
                    libc::_exit(0);
                }
            }
            let mut status = -1;
            // SAFETY: it waits for the child of above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        is_over.store(true, Relaxed);
    });
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, Relaxed);
}

#[test]
fn a_signal_does_not_end_a_wait() {
    // SAFETY: a handler that counts.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = count_signal as extern "C" fn(c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, null_mut()), 0);
    }
    let mutex = Mutex::plain();
    let is_free = AtomicBool::new(false);
    assert_eq!(mutex.lock(), 0);
    thread::scope(|scope| {
        let (begun, threads) = mpsc::channel();
        for begun in [begun.clone(), begun.clone(), begun] {
            let (mutex, is_free) = (&mutex, &is_free);
            scope.spawn(move || {
                // SAFETY: it asks about the calling thread.
                begun.send(unsafe { libc::pthread_self() }).unwrap();
                assert_eq!(mutex.lock(), 0);
                assert!(is_free.load(Relaxed));
                assert_eq!(mutex.unlock(), 0);
            });
        }
        let waiters: Vec<_> = threads.iter().take(3).collect();
        for waiter in waiters.iter().cycle().take(300) {
            let before = SIGNALS.load(Relaxed);
            // SAFETY: the thread has not ended, since it waits.
            assert_eq!(unsafe { libc::pthread_kill(*waiter, libc::SIGUSR1) }, 0);
            while SIGNALS.load(Relaxed) == before {
                thread::yield_now();
            }
        }
        is_free.store(true, Relaxed);
        assert_eq!(mutex.unlock(), 0);
    });
}

/// A thread that locks a mutex while its end is asked for, and ends after that.
extern "C-unwind" fn locks_then_ends(mutex: *mut c_void) -> *mut c_void {
    // SAFETY: the mutex of the test below, which outlives this thread.
    let mutex = unsafe { &*mutex.cast::<Mutex>() };
    BEGUN.store(true, Relaxed);
    if mutex.lock() == 0 {
        mutex.add();
        mutex.unlock();
    }
    // SAFETY: no frame of this thread has anything to drop.
    unsafe { pthread_testcancel() };
    null_mut()
}

static BEGUN: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_cancel(thread: pthread_t) -> c_int;
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const libc::pthread_attr_t,
        run: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        value: *mut c_void,
    ) -> c_int;
}

#[test]
fn a_thread_that_is_cancelled_while_it_waits_gets_the_mutex_first() {
    let mutex = Mutex::plain();
    assert_eq!(mutex.lock(), 0);
    let mut waiter = MaybeUninit::uninit();
    let mut result = null_mut();
    // SAFETY: the mutex outlives the thread, which is joined. The thread's frames may be unwound.
    unsafe {
        let value = (&raw const mutex).cast_mut().cast();
        assert_eq!(pthread_create(waiter.as_mut_ptr(), null_mut(), locks_then_ends, value), 0);
        while !BEGUN.load(Relaxed) {
            thread::yield_now();
        }
        assert_eq!(pthread_cancel(waiter.assume_init()), 0);
        assert_eq!(mutex.unlock(), 0);
        assert_eq!(libc::pthread_join(waiter.assume_init(), &mut result), 0);
    }
    // PTHREAD_CANCELED, which the libc crate lacks.
    assert_eq!((result as isize, mutex.count(), mutex.try_lock()), (-1, 1, 0));
}
