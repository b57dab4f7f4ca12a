//! Each kind of mutex.

use crate::mutex::{Mutex, initialize};
use libc::pthread_mutex_t;
use std::{ptr::null_mut, thread};

const THREADS: usize = 8;
const TURNS: usize = 20_000;

#[test]
fn a_plain_one_excludes() {
    let mutex = Mutex::plain();
    mutex.count_in(THREADS, TURNS);
    assert_eq!(mutex.destroy(), 0);
}

#[test]
fn a_normal_one_excludes() {
    Mutex::with(libc::pthread_mutexattr_settype, libc::PTHREAD_MUTEX_NORMAL)
        .count_in(THREADS, TURNS);
}

#[test]
fn an_adaptive_one_excludes() {
    // PTHREAD_MUTEX_ADAPTIVE_NP, which the libc crate lacks.
    Mutex::with(libc::pthread_mutexattr_settype, 3).count_in(THREADS, TURNS);
}

#[test]
fn a_recursive_one_is_locked_again_by_its_holder_alone() {
    let mutex = Mutex::with(libc::pthread_mutexattr_settype, libc::PTHREAD_MUTEX_RECURSIVE);
    assert_eq!((mutex.lock(), mutex.lock()), (0, 0));
    assert_eq!(
        thread::scope(|scope| scope.spawn(|| mutex.try_lock()).join().unwrap()),
        libc::EBUSY
    );
    assert_eq!((mutex.unlock(), mutex.unlock()), (0, 0));
    mutex.count_in(THREADS, TURNS);
}

#[test]
fn one_that_checks_says_what_is_wrong() {
    let mutex = Mutex::with(libc::pthread_mutexattr_settype, libc::PTHREAD_MUTEX_ERRORCHECK);
    assert_eq!((mutex.lock(), mutex.lock()), (0, libc::EDEADLK));
    assert_eq!(thread::scope(|scope| scope.spawn(|| mutex.unlock()).join().unwrap()), libc::EPERM);
    assert_eq!(mutex.unlock(), 0);
    mutex.count_in(THREADS, TURNS);
}

#[test]
fn a_robust_one_tells_that_its_holder_has_died() {
    let mutex = Mutex::with(libc::pthread_mutexattr_setrobust, libc::PTHREAD_MUTEX_ROBUST);
    assert_eq!(thread::scope(|scope| scope.spawn(|| mutex.lock()).join().unwrap()), 0);
    assert_eq!(mutex.lock(), libc::EOWNERDEAD);
    // SAFETY: this thread has it.
    assert_eq!(unsafe { libc::pthread_mutex_consistent(mutex.raw()) }, 0);
    assert_eq!(mutex.unlock(), 0);
    mutex.count_in(THREADS, TURNS);
}

#[test]
fn one_that_lends_its_priority_excludes() {
    Mutex::with(libc::pthread_mutexattr_setprotocol, libc::PTHREAD_PRIO_INHERIT)
        .count_in(THREADS, TURNS / 4);
}

#[test]
fn one_that_processes_share_excludes() {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, of two processes; the count is written under the mutex.
    unsafe {
        let memory = libc::mmap(null_mut(), 4096, access, kind, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        let mutex = memory.cast::<pthread_mutex_t>();
        let count = memory.cast::<u64>().add(256);
        initialize(mutex, libc::pthread_mutexattr_setpshared, libc::PTHREAD_PROCESS_SHARED);
        let count_up = || {
            for _ in 0..TURNS {
                assert_eq!(libc::pthread_mutex_lock(mutex), 0);
                *count += 1;
                assert_eq!(libc::pthread_mutex_unlock(mutex), 0);
            }
        };
        let child = libc::fork();
        if child == 0 {
            libc::alarm(300);
        }
        count_up();
        if child == 0 {
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!((status, *count), (0, 2 * TURNS as u64));
    }
}
