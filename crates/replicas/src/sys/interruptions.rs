//! Calls that may wait without end, and signals that interrupt them.

use nix::{
    sys::{
        ptrace,
        signal::{
            SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction,
        },
        timer::{Expiration, Timer, TimerSetTimeFlags},
    },
    time::ClockId,
    unistd::{Pid, gettid},
};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::{
    io, ptr,
    sync::atomic::{AtomicI32, AtomicPtr, Ordering, compiler_fence},
    time::Duration,
};

/// Signals that interrupt a call in which this thread waits, again and again.
#[derive(Debug)]
pub(crate) struct Interruptions {
    _timer: Timer,
}

impl Interruptions {
    /// Takes the signal `SIGALRM` from this process for it.
    ///
    /// # Errors
    /// `EAGAIN` if no more signals may be queued (`RLIMIT_SIGPENDING`).
    pub(crate) fn every(period: Duration) -> io::Result<Self> {
        let action = SigAction::new(SigHandler::Handler(handle), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler uses what its own thread has set, allocates nothing, and makes
        // system calls alone, which change no errno.
        unsafe { sigaction(Signal::SIGALRM, &action) }?;
        SigSet::from(Signal::SIGALRM).thread_unblock()?;
        let notify = SigevNotify::SigevThreadId {
            signal: Signal::SIGALRM,
            thread_id: gettid().as_raw(),
            si_value: 0,
        };
        let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(notify))?;
        // A period of 0 would be none.
        let period = Expiration::Interval(period.max(Duration::from_millis(1)).into());
        timer.set(period, TimerSetTimeFlags::empty())?;
        Ok(Self { _timer: timer })
    }
}

thread_local! {
    /// The threads that this one traces, while it waits in `PTRACE_SEIZE`; null at other times.
    static TRACED: AtomicPtr<Vec<AtomicI32>> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// Waits for the threads of [`Seizing`] that have ended, if there are any, and notes each by its
/// number with a minus.
extern "C" fn handle(_: libc::c_int) {
    let traced = TRACED.with(|traced| traced.load(Ordering::Relaxed));
    // SAFETY: `Seizing::seize` has set the pointer in this thread, and neither changes nor moves
    // the vector until it has set it to null again.
    let Some(traced) = (unsafe { traced.as_ref() }) else { return };
    for thread in traced {
        let number = thread.load(Ordering::Relaxed);
        if has_ended(number, WaitIdOptions::NOWAIT) && has_ended(number, WaitIdOptions::empty()) {
            thread.store(-number, Ordering::Relaxed);
        }
    }
}

/// Whether a thread that this one traces has ended. The kernel tells of stops, too, whatever is
/// asked for (`wait_task_stopped` in `kernel/exit.c`), so `NOWAIT` leaves these to others.
fn has_ended(thread: i32, more: WaitIdOptions) -> bool {
    if thread <= 0 {
        return false;
    }
    let of_threads = WaitIdOptions::from_bits_retain((libc::__WALL | libc::__WNOTHREAD) as u32);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | of_threads | more;
    let Some(thread) = rustix::process::Pid::from_raw(thread) else { return false };
    let status = waitid(WaitId::Pid(thread), options).ok().flatten();
    status.is_some_and(|status| status.exited() || status.killed() || status.dumped())
}

/// The threads of a process that this one seizes (`PTRACE_SEIZE`).
///
/// A thread amid `execve` holds a lock that `PTRACE_SEIZE` takes (`cred_guard_mutex`), and waits
/// until all other threads have gone. One that is traced has gone when its tracer has waited for it
/// (`exit_notify` in `kernel/exit.c`). So a tracer that seizes one thread after the other may wait
/// for the lock without end, unless it waits for those that have ended meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Seizing {
    /// By number, with a minus once they have ended.
    seized: Vec<AtomicI32>,
    interruptions: Option<Interruptions>,
}

impl Seizing {
    /// The time between looks for threads that have ended.
    const LOOK: Duration = Duration::from_millis(5);

    /// Seizes another thread.
    ///
    /// # Errors
    /// `ESRCH` if it has ended; `EPERM` if it is traced already or may not be traced; `EAGAIN` if
    /// no more signals may be queued (`RLIMIT_SIGPENDING`).
    pub(crate) fn seize(&mut self, thread: i32, options: ptrace::Options) -> nix::Result<()> {
        if !self.seized.is_empty() && self.interruptions.is_none() {
            let interruptions = Interruptions::every(Self::LOOK);
            self.interruptions = Some(interruptions.map_err(|_| nix::Error::EAGAIN)?);
        }
        let set = |traced: *mut _| TRACED.with(|it| it.store(traced, Ordering::Relaxed));
        set((&raw const self.seized).cast_mut());
        // The handler runs in this thread.
        compiler_fence(Ordering::SeqCst);
        let seized = ptrace::seize(Pid::from_raw(thread), options);
        compiler_fence(Ordering::SeqCst);
        set(ptr::null_mut());
        seized.map(|()| self.seized.push(AtomicI32::new(thread)))
    }

    /// Whether seized threads have ended and been waited for, most likely since another one has
    /// executed a program.
    pub(crate) fn have_ended(&self) -> bool {
        self.seized.iter().any(|thread| thread.load(Ordering::Relaxed) < 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        io::Write,
        process::{Command, Stdio},
        sync::mpsc,
        thread,
    };

    #[test]
    fn a_call_that_waits_is_interrupted_as_often_as_it_is_made() {
        let (pipe, _open) = io::pipe().unwrap();
        let _interruptions = Interruptions::every(Duration::from_millis(1)).unwrap();
        for _ in 0..3 {
            let read = rustix::io::read(&pipe, &mut [0; 1]);
            assert_eq!(read, Err(rustix::io::Errno::INTR));
        }
    }

    /// Has two threads, and executes another program once it is told to.
    const SCRIPT: &str = "
import os, signal, threading
threading.Thread(target=signal.pause).start()
input()
os.execv('/bin/sleep', ['sleep', 'infinity'])
";

    #[test]
    fn a_process_whose_threads_are_seized_amid_execve_executes_its_program() {
        let mut command = Command::new("python3");
        let Ok(mut child) = command.args(["-c", SCRIPT]).stdin(Stdio::piped()).spawn() else {
            return;
        };
        let leader = child.id() as i32;
        let folder = format!("/proc/{leader}/task");
        let other = loop {
            let mut threads = fs::read_dir(&folder).unwrap().filter_map(|thread| {
                thread.unwrap().file_name().to_str().and_then(|name| name.parse().ok())
            });
            match threads.find(|&thread: &i32| thread != leader) {
                Some(other) => break other,
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let mut input = child.stdin.take().unwrap();
        let (tell, ended) = mpsc::channel();
        let tracer = thread::spawn(move || {
            let mut seizing = Seizing::default();
            seizing.seize(other, ptrace::Options::empty()).unwrap();
            assert!(!seizing.have_ended());
            writeln!(input).unwrap();
            let status = format!("{folder}/{other}/status");
            while !fs::read_to_string(&status).unwrap().contains("State:\tZ") {
                thread::sleep(Duration::from_millis(1));
            }
            seizing.seize(leader, ptrace::Options::empty()).unwrap();
            tell.send(seizing.have_ended()).unwrap();
        });
        let have_ended = ended.recv_timeout(Duration::from_secs(60));
        let program = fs::read_link(format!("/proc/{leader}/exe")).unwrap();
        child.kill().unwrap();
        tracer.join().unwrap();
        child.wait().unwrap();
        assert_eq!(have_ended, Ok(true));
        assert!(program.ends_with("sleep") || program.ends_with("coreutils"), "{program:?}");
    }
}
