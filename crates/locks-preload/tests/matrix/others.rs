//! Mutexes beside forks and signals.

use crate::mutex::Mutex;
use libc::c_int;
use std::{
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
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
                    let counts = catch_unwind(AssertUnwindSafe(|| mutex.count_in(4, 2_000)));
                    libc::_exit(counts.is_err().into());
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
