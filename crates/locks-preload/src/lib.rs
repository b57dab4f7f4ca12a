//! A shared object for `LD_PRELOAD`: the waiters of a program's pthread mutexes queue by NUMA node
//! before they go to the C library's mutex.
//!
//! It replaces `pthread_mutex_lock` alone. A thread that finds a mutex held takes a
//! [`FairMutex`](nearside_locks::FairMutex) of that address first, then the mutex itself, and then
//! lets the next one go there. The mutex stays the C library's, and so do its unlock, its waits
//! with a time limit, and condition variables. README.md has the use.
//!
//! `room.rs` has the queue before one mutex, `trial.rs` when it has one, `rooms.rs` those of a
//! process, and `c_library.rs` the mutex.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

#[allow(unsafe_code, reason = "the C library's functions, and words of its mutex")]
mod c_library;
#[allow(unsafe_code, reason = "raw locks")]
mod room;
#[allow(unsafe_code, reason = "memory that children find empty")]
mod rooms;
mod trial;

use c_library::Mutex;
use libc::{c_int, pthread_mutex_t};
use room::Choice;
use rooms::Report;
use std::{
    env,
    fmt::Arguments,
    io::{self, Write},
    mem,
};

/// Whether mutexes have queues: `auto` (by default: those that have more turns with one), `on` or
/// `off`.
const CHOICE: &str = "NEARSIDE_LOCKS";

/// If it is set, the process says at its end how many mutexes have a queue, and how often a thread
/// has queued.
const REPORT: &str = "NEARSIDE_LOCKS_REPORT";

/// Locks a mutex, as `pthread_mutex_lock(3)` has it.
///
/// # Safety
/// That of the C library.
#[allow(unsafe_code, reason = "a function of C")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's promise is the same.
    let mutex = unsafe { Mutex::new(mutex) };
    match rooms::is_uncontended(mutex) {
        true => mutex.lock(),
        false => lock_wanted(mutex),
    }
}

#[cold]
fn lock_wanted(mutex: Mutex) -> c_int {
    match rooms::all() {
        Some(rooms) if mutex.is_plain() => rooms.lock(mutex),
        _ => mutex.lock(),
    }
}

#[allow(unsafe_code, reason = "the dynamic linker calls it before the program")]
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static BEGIN: extern "C" fn() = begin;

#[allow(unsafe_code, reason = "the C library calls it after the program")]
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    c_library::find();
    let choice = match env::var_os(CHOICE) {
        None => Choice::Measured,
        Some(word) if word == "auto" => Choice::Measured,
        Some(word) if word == "on" => Choice::Always,
        Some(word) if word == "off" => return,
        Some(word) => return say(format_args!("{CHOICE}={word:?}: expected auto, on or off")),
    };
    if let Err(why) = rooms::begin(choice) {
        say(format_args!("no mutex has a queue: {why}"));
    }
}

extern "C" fn end() {
    if env::var_os(REPORT).is_none() {
        return;
    }
    match rooms::all().map(rooms::Rooms::report) {
        Some(Report { mutexes, queues, queued }) => say(format_args!(
            "mutexes with a place: {mutexes}, with a queue now: {queues}, times that a thread has \
             queued: {queued}"
        )),
        None => say(format_args!("no mutex has a queue")),
    }
}

#[allow(unsafe_code, reason = "functions of C")]
fn say(what: Arguments<'_>) {
    // A program without standard error goes on, and one whose standard error nobody reads.
    // SAFETY: a zeroed action has the default handler; the program's own is there again below.
    unsafe {
        let mut ignore: libc::sigaction = mem::zeroed();
        let mut before: libc::sigaction = mem::zeroed();
        ignore.sa_sigaction = libc::SIG_IGN;
        libc::sigaction(libc::SIGPIPE, &raw const ignore, &raw mut before);
        _ = writeln!(io::stderr(), "nearside-locks: {what}");
        libc::sigaction(libc::SIGPIPE, &raw const before, std::ptr::null_mut());
    }
}
