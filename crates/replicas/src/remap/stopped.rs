//! A process whose threads are all stopped, and system calls made by one of them.
//!
//! A thread is stopped with `PTRACE_SEIZE` and `PTRACE_INTERRUPT`, which send no signal. It then
//! stands where signals are delivered (`get_signal` in `kernel/signal.c`), before the kernel
//! decides about restarting an interrupted call. So a thread whose registers are as they were goes
//! on as if nothing had happened, and a process that was stopped by `SIGSTOP` stays so.
//!
//! For the calls of the process, one thread gets new registers and all signals blocked. Stops at
//! entry and end (`PTRACE_SYSCALL`) use no signal either, unlike single steps, which would reset a
//! handler of `SIGTRAP`. Shadow stacks are not concerned: no call or return is executed.

use super::{
    error::RemapError,
    maps::Segment,
    process::Process,
    refusal::Refusal,
    registers::{calling, is_64_bit, is_in_syscall, restarting, result, wants_restart},
};
use crate::sys::{self, Resume};
use libc::user_regs_struct;
use nix::{
    sys::ptrace::{self, Options},
    unistd::Pid,
};
use rustix::process::{WaitOptions, WaitStatus, wait};
use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    hint::spin_loop,
    io,
    marker::PhantomData,
    os::unix::fs::FileExt,
    thread,
    time::{Duration, Instant},
};

/// The time between looks at the clock while stops are awaited.
const LOOK: Duration = Duration::from_millis(5);

/// The time in which a stop is looked for without sleep. Most threads with a CPU of their own
/// stop within that, and to sleep and be woken takes longer. `sched_yield` would cost far more on a
/// busy host: with each call the caller gives up a whole slice of its share (`yield_task_fair` in
/// `kernel/sched/fair.c`).
const SPIN: Duration = Duration::from_micros(20);

/// The number of stops that are awaited asleep once [`SPIN`] has passed in vain. The thread
/// probably waits for the CPU of its tracer.
const STOPS_ASLEEP: u32 = 8;

/// The time in which a thread may still stop after it was too late for an exchange. A stop that no
/// tracer sees would fail its call.
const LATE: Duration = Duration::from_secs(1);

/// `PTRACE_O_SUSPEND_SECCOMP`
const SUSPEND_SECCOMP: libc::c_int = 1 << 21;

/// `PTRACE_EVENT_STOP`, in the place where a wait status has it.
const EVENT_STOP: i32 = libc::PTRACE_EVENT_STOP << 16;

/// The signal of stops at system calls, with `PTRACE_O_TRACESYSGOOD`.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// The instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The bytes of a segment in which that instruction is searched for.
const SEARCHED_BYTES: usize = 1 << 20;

/// Calls that are made again after an interruption; each is one signal that stops the process.
const MAX_RESTARTS: u32 = 16;

/// The address of an instruction that makes system calls: in the vDSO, or in text that no exchange
/// concerns.
pub(crate) fn find_syscall(
    process: &Process,
    segments: &[Segment],
    is_exchanged: impl Fn(&Segment) -> bool,
) -> Result<u64, RemapError> {
    let memory = process.open_file("mem")?;
    let is_vdso = |segment: &&Segment| segment.is_named("[vdso]");
    let others = segments.iter().filter(|segment| {
        segment.protection.execute && segment.file.is_some() && !is_exchanged(segment)
    });
    for segment in segments.iter().filter(is_vdso).chain(others) {
        let mut text = vec![0; SEARCHED_BYTES.min(segment.bytes() as usize)];
        let Ok(read) = memory.read_at(&mut text, segment.addresses.start) else { continue };
        text.truncate(read);
        if let Some(at) = text.windows(2).position(|two| two == SYSCALL) {
            return Ok(segment.addresses.start + at as u64);
        }
    }
    Err(process.refused(Refusal::NoSyscallInstruction))
}

/// A process whose threads are all stopped. Dropping it restores and releases them.
///
/// All of its life happens in one thread of the caller, which has to end right after it: the kernel
/// then releases threads that have not even stopped in [`LATE`].
#[derive(Debug)]
pub(crate) struct Stopped<'p> {
    process: &'p Process,
    /// Its stopped threads.
    threads: BTreeSet<i32>,
    /// Those among them whose call may have to be restarted.
    interrupted: BTreeSet<i32>,
    /// Threads that are to stop and have not.
    late: BTreeSet<i32>,
    /// Whether threads that stop from now on go on at once.
    is_over: bool,
    injector: Option<Injector>,
    since: Instant,
    /// The number of further stops to await asleep.
    stops_asleep: u32,
    /// The time that all threads have to stop.
    deadline: Duration,
    /// Only the thread that traces may make requests.
    not_send: PhantomData<*const ()>,
}

/// The thread that makes the calls, and its state to restore.
#[derive(Debug)]
struct Injector {
    thread: i32,
    /// That of the process, opened after the stop: an `execve` before would have replaced it.
    memory: File,
    /// The address of the instruction that makes system calls.
    instruction: u64,
    registers: user_regs_struct,
    signal_mask: u64,
    /// The place where a restartable sequence announces itself, and its announcement. The kernel
    /// clears it when it sees the thread elsewhere (`rseq_ip_fixup` in `kernel/rseq.c`).
    sequence: Option<(u64, u64)>,
    /// True from the first call on.
    has_moved: bool,
}

impl<'p> Stopped<'p> {
    /// Stops all threads of a process within `deadline`.
    pub(crate) fn stop(
        process: &'p Process,
        suspend_seccomp: bool,
        deadline: Duration,
    ) -> Result<Self, RemapError> {
        let mut stopped = Self {
            process,
            threads: BTreeSet::new(),
            interrupted: BTreeSet::new(),
            late: BTreeSet::new(),
            is_over: false,
            injector: None,
            since: Instant::now(),
            stops_asleep: 0,
            deadline,
            not_send: PhantomData,
        };
        stopped.stop_threads(suspend_seccomp)?;
        if !process.is_alive() {
            return Err(process.refused(Refusal::Gone));
        }
        Ok(stopped)
    }

    /// The number of its threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Seizes and stops threads until there is none that it does not know. New ones come from
    /// threads that still run.
    fn stop_threads(&mut self, suspend_seccomp: bool) -> Result<(), RemapError> {
        let mut options = Options::PTRACE_O_TRACESYSGOOD;
        if suspend_seccomp {
            options |= Options::from_bits_retain(SUSPEND_SECCOMP);
        }
        let mut seized = BTreeSet::new();
        let mut seizing = sys::Seizing::default();
        loop {
            for thread in self.process.threads()? {
                if seized.contains(&thread) {
                    continue;
                }
                let interrupt = |()| ptrace::interrupt(Pid::from_raw(thread));
                match seizing.seize(thread, options).and_then(interrupt) {
                    Ok(()) => {
                        seized.insert(thread);
                        self.late.insert(thread);
                    }
                    Err(error) => self.check_ended(thread, error, suspend_seccomp)?,
                }
                if seizing.have_ended() {
                    return Err(self.process.refused(Refusal::ThreadsEnd));
                }
            }
            if self.late.is_empty() {
                break;
            }
            self.await_late(self.deadline)?;
        }
        match self.threads.is_empty() {
            true => Err(self.process.refused(Refusal::Gone)),
            false => Ok(()),
        }
    }

    /// A thread could not be seized. That is fine if it has ended.
    fn check_ended(
        &self,
        thread: i32,
        error: nix::Error,
        suspend_seccomp: bool,
    ) -> Result<(), RemapError> {
        match error {
            nix::Error::ESRCH => return Ok(()),
            nix::Error::EAGAIN => {
                return Err(self.process.tracing("stop it (timer_create)", error.into()));
            }
            _ => {}
        }
        let status = std::fs::read(self.process.path(&format!("task/{thread}/status")));
        let status = String::from_utf8_lossy(&status.unwrap_or_default()).into_owned();
        let line = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or("Z")
        };
        if line("State:").starts_with(['Z', 'X']) {
            return Ok(());
        }
        if let Some(tracer) = line("TracerPid:").parse().ok().filter(|&tracer| tracer != 0) {
            return Err(self.process.refused(Refusal::AlreadyTraced { tracer }));
        }
        if suspend_seccomp {
            return Err(self.process.refused(Refusal::NotPermitted {
                what: "suspend its seccomp filter",
                needs: "CAP_SYS_PTRACE, CAP_SYS_ADMIN, a kernel with CONFIG_CHECKPOINT_RESTORE, \
                        and no seccomp filter of the caller's own",
            }));
        }
        Err(self.process.tracing("stop it (ptrace)", error.into()))
    }

    /// Waits until the threads have stopped or ended.
    fn await_late(&mut self, deadline: Duration) -> Result<(), RemapError> {
        let mut interruptions = None;
        while let Some(&first) = self.late.first() {
            let spins = self.since.elapsed() < SPIN;
            let may_sleep = !spins && self.since.elapsed() <= deadline;
            if may_sleep && interruptions.is_none() {
                interruptions = sys::Interruptions::every(LOOK).ok();
            }
            let may_block = may_sleep && interruptions.is_some();
            let more = if may_block { 0 } else { libc::WNOHANG };
            match wait(wait_options(libc::__WNOTHREAD | more)) {
                Ok(Some((thread, status))) => {
                    let thread = thread.as_raw_pid();
                    if !status.stopped() {
                        // It has ended.
                        self.late.remove(&thread);
                        self.threads.remove(&thread);
                    } else if status.as_raw() & (0xff << 16) == EVENT_STOP {
                        self.late.remove(&thread);
                        self.threads.insert(thread);
                        self.interrupted.insert(thread);
                        if self.is_over {
                            self.detach();
                        }
                    } else {
                        // A signal arrived first. The thread enters its handler and stops there.
                        let signal = status.stopping_signal().unwrap_or(0);
                        _ = sys::resume(thread, Resume::Run, signal);
                    }
                }
                Ok(None) | Err(rustix::io::Errno::INTR) if self.since.elapsed() > deadline => {
                    let waited_ms = deadline.as_millis() as u64;
                    let why = Refusal::DoesNotStop { thread: first, waited_ms };
                    return Err(self.process.refused(why));
                }
                Ok(None) if spins => spin_loop(),
                // The kernel has no signal left for a timer (`RLIMIT_SIGPENDING`).
                Ok(None) => thread::sleep(LOOK),
                Err(rustix::io::Errno::INTR) => {}
                // Nothing is left to wait for: an `execve` has ended all threads but one.
                Err(_) => return Err(self.process.refused(Refusal::Gone)),
            }
        }
        Ok(())
    }

    /// Keeps the stop from failing calls of threads. One without registers has been killed.
    ///
    /// Not before the first request that has to come anyway: a thread that has told of its stop may
    /// not have left its CPU yet, and then the tracer sleeps for a tick, 4 ms
    /// (`wait_task_inactive` in `kernel/sched/core.c`), while a writer waits.
    fn restart_interrupted(&mut self) {
        for thread in std::mem::take(&mut self.interrupted) {
            let id = Pid::from_raw(thread);
            if let Some(new) = ptrace::getregs(id).ok().as_ref().and_then(restarting) {
                _ = ptrace::setregs(id, new);
            }
        }
    }

    /// Chooses the thread that makes the calls: one in a system call, because such a thread is in
    /// no restartable sequence; else any. `instruction` is what [`find_syscall`] found.
    pub(crate) fn prepare(&mut self, instruction: u64) -> Result<(), RemapError> {
        self.restart_interrupted();
        let mut chosen = None;
        for &thread in &self.threads {
            let registers = ptrace::getregs(Pid::from_raw(thread))
                .map_err(|error| self.process.tracing("read its registers", error.into()))?;
            // A 64-bit program can hold 32-bit code.
            if !is_64_bit(&registers) {
                continue;
            }
            let is_best = is_in_syscall(&registers);
            if is_best || chosen.is_none() {
                chosen = Some((thread, registers));
            }
            if is_best {
                break;
            }
        }
        let Some((thread, registers)) = chosen else {
            return Err(self.process.refused(Refusal::ThirtyTwoBit));
        };
        let trace = |error| self.process.tracing("prepare a thread for system calls", error);
        if sys::dispatches_syscalls(thread).map_err(trace)? {
            return Err(self.process.refused(Refusal::DispatchesSyscalls));
        }
        let memory = OpenOptions::new().read(true).write(true).open(self.process.path("mem"));
        let memory = memory.map_err(|error| self.process.tracing("write its memory", error))?;
        let mut code = [0; SYSCALL.len()];
        memory.read_exact_at(&mut code, instruction).map_err(trace)?;
        if code != SYSCALL {
            return Err(self.process.refused(Refusal::NoSyscallInstruction));
        }
        let sequence = match sys::rseq_address(thread).map_err(trace)? {
            Some(address) => {
                // The field `rseq_cs` of `struct rseq`.
                let place = address + 8;
                let mut value = [0; 8];
                memory.read_exact_at(&mut value, place).map_err(trace)?;
                Some((place, u64::from_ne_bytes(value))).filter(|&(_, value)| value != 0)
            }
            None => None,
        };
        let signal_mask = sys::signal_mask(thread).map_err(trace)?;
        self.injector = Some(Injector {
            thread,
            memory,
            instruction,
            registers,
            signal_mask,
            sequence,
            has_moved: false,
        });
        Ok(())
    }

    /// Makes a system call in the process. The outer error is one of tracing, the inner one the
    /// call's own.
    pub(crate) fn call(
        &mut self,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<Result<u64, io::Error>, RemapError> {
        let Some(injector) = &mut self.injector else {
            return Err(self.process.refused(Refusal::Gone));
        };
        // Until then a tracer that is killed leaves nothing behind.
        if !injector.has_moved {
            sys::set_signal_mask(injector.thread, u64::MAX)
                .map_err(|error| self.process.tracing("prepare it for system calls", error))?;
            injector.has_moved = true;
        }
        let id = Pid::from_raw(injector.thread);
        let call = calling(&injector.registers, injector.instruction, number, arguments);
        let mut restarts = 0;
        loop {
            ptrace::setregs(id, call)
                .map_err(|error| self.process.tracing("set its registers", error.into()))?;
            for _entry_and_end in 0..2 {
                self.run_to_syscall_stop(id.as_raw())?;
            }
            let registers = ptrace::getregs(id)
                .map_err(|error| self.process.tracing("read its registers", error.into()))?;
            match result(&registers) {
                Err(error) if wants_restart(error) && restarts < MAX_RESTARTS => restarts += 1,
                Err(error) => return Ok(Err(io::Error::from_raw_os_error(error))),
                Ok(value) => return Ok(Ok(value)),
            }
        }
    }

    /// Lets the thread run to the next entry to a system call, or the end of one.
    fn run_to_syscall_stop(&mut self, thread: i32) -> Result<(), RemapError> {
        let trace = |error| self.process.tracing("make a system call in it", error);
        let mut signal = 0;
        loop {
            sys::resume(thread, Resume::ToSyscall, signal).map_err(trace)?;
            let stop = self.wait_for_stop(thread)?;
            signal = match stop.stopping_signal() {
                Some(SYSCALL_STOP) => return Ok(()),
                // The process is being stopped or continued. The thread goes on for us alone.
                _ if is_event_stop(stop) => 0,
                // The instruction faulted.
                Some(
                    libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS,
                ) => {
                    return Err(trace(io::Error::from_raw_os_error(libc::EFAULT)));
                }
                // No thread can block SIGSTOP. Delivering it stops the process once it is released.
                Some(other) => other,
                None => 0,
            };
        }
    }

    /// Waits until the thread that makes the calls stops again. The others stay stopped until a
    /// signal kills them all, so the end of any of them ends the call. The kernel tells of the end
    /// of the first thread only after those of all others (`delay_group_leader` in
    /// `kernel/exit.c`).
    fn wait_for_stop(&mut self, thread: i32) -> Result<WaitStatus, RemapError> {
        let since = Instant::now();
        let sleeps = self.stops_asleep > 0;
        self.stops_asleep = self.stops_asleep.saturating_sub(1);
        loop {
            let spins = !sleeps && since.elapsed() < SPIN;
            if !sleeps && !spins {
                self.stops_asleep = STOPS_ASLEEP;
            }
            let more = if spins { libc::WNOHANG } else { 0 };
            match wait(wait_options(libc::__WNOTHREAD | more)) {
                Ok(Some((_, status))) if !status.stopped() => {
                    return Err(self.process.refused(Refusal::Gone));
                }
                Ok(Some((stopped, status))) if stopped.as_raw_pid() == thread => {
                    return Ok(status);
                }
                Ok(Some(_)) => {}
                Ok(None) => spin_loop(),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.process.tracing("wait for it", error.into())),
            }
        }
    }

    /// Writes into the memory of the process.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), RemapError> {
        match &self.injector {
            Some(injector) => self.write_to(&injector.memory, address, bytes),
            None => Err(self.process.refused(Refusal::Gone)),
        }
    }

    fn write_to(&self, memory: &File, address: u64, bytes: &[u8]) -> Result<(), RemapError> {
        let written = memory.write_all_at(bytes, address);
        written.map_err(|error| self.process.tracing("write its memory", error))
    }

    /// Restores and releases all threads. Returns how long they were stopped.
    pub(crate) fn release(mut self) -> Result<Duration, RemapError> {
        self.restore()?;
        self.detach();
        Ok(self.since.elapsed())
    }

    /// Gives the thread that made the calls its own registers and signals again.
    fn restore(&mut self) -> Result<(), RemapError> {
        let Some(injector) = self.injector.take() else { return Ok(()) };
        let thread = injector.thread;
        let trace = |error| self.process.tracing("restore its registers", error);
        if injector.has_moved {
            // Back to where signals are delivered, because the kernel restarts calls only there.
            ptrace::interrupt(Pid::from_raw(thread)).map_err(|error| trace(error.into()))?;
            let mut signal = 0;
            loop {
                sys::resume(thread, Resume::Run, signal).map_err(trace)?;
                let stop = self.wait_for_stop(thread)?;
                if is_event_stop(stop) {
                    break;
                }
                signal = stop.stopping_signal().filter(|&it| it == libc::SIGSTOP).unwrap_or(0);
            }
        }
        ptrace::setregs(Pid::from_raw(thread), injector.registers)
            .map_err(|error| trace(error.into()))?;
        sys::set_signal_mask(thread, injector.signal_mask).map_err(trace)?;
        match injector.sequence {
            Some((place, value)) => self.write_to(&injector.memory, place, &value.to_ne_bytes()),
            None => Ok(()),
        }
    }

    fn detach(&mut self) {
        self.restart_interrupted();
        for thread in std::mem::take(&mut self.threads) {
            // One that cannot be released has been killed.
            _ = ptrace::detach(Pid::from_raw(thread), None);
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // An error was reported already, or the process has been killed.
        _ = self.restore();
        self.detach();
        self.is_over = true;
        _ = self.await_late(self.since.elapsed() + LATE);
    }
}

fn wait_options(more: libc::c_int) -> WaitOptions {
    WaitOptions::from_bits_retain((libc::__WALL | more) as u32)
}

fn is_event_stop(status: WaitStatus) -> bool {
    status.stopped() && status.as_raw() & (0xff << 16) == EVENT_STOP
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::process::{Child, Command, Stdio};

    /// The pause between two looks at a process that a test has started.
    const PAUSE: Duration = Duration::from_micros(20);

    /// Waits for an event without a handler of signals, and ends if the call fails.
    const SCRIPT: &str = "
import ctypes
libc = ctypes.CDLL(None)
libc.epoll_wait(libc.epoll_create1(0), (ctypes.c_char * 12)(), 1, -1)
";

    fn is_waiting(child: &mut Child) -> bool {
        assert!(child.try_wait().unwrap().is_none(), "its call has failed");
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap();
        call.split(' ').next() == Some(&libc::SYS_epoll_wait.to_string())
    }

    #[test]
    fn a_thread_that_stops_too_late_goes_on_with_its_call() {
        // On CPUs of their own: on one CPU a process may run, and stop, before its tracer goes on.
        let allowed = sched_getaffinity(None).unwrap();
        let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        let &[own, other, ..] = &cpus[..] else { return };
        let only = |cpu| {
            let mut set = CpuSet::new();
            set.set(cpu);
            set
        };
        let mut command = Command::new("python3");
        let Ok(mut child) = command.args(["-c", SCRIPT]).stdin(Stdio::null()).spawn() else {
            return;
        };
        while !is_waiting(&mut child) {
            thread::sleep(PAUSE);
        }
        let process = Process::open(child.id() as i32).unwrap();
        sched_setaffinity(rustix::process::Pid::from_raw(process.pid()), &only(other)).unwrap();
        let mut late = 0;
        for _ in 0..100 {
            // Tracing ends with its thread.
            thread::scope(|scope| {
                let stop = || {
                    sched_setaffinity(None, &only(own)).unwrap();
                    Stopped::stop(&process, false, Duration::ZERO).map(drop)
                };
                late += i32::from(scope.spawn(stop).join().unwrap().is_err());
            });
            while !is_waiting(&mut child) {
                thread::sleep(PAUSE);
            }
        }
        assert!(late > 0, "each stop came in time");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A process of two threads that waits in `epoll_wait`.
    fn two_threads() -> Option<(Child, Process)> {
        let script = format!("import threading\nthreading.Thread(target=input).start()\n{SCRIPT}");
        let mut command = Command::new("python3");
        let mut child = command.args(["-c", &script]).stdin(Stdio::piped()).spawn().ok()?;
        while !is_waiting(&mut child) {
            thread::sleep(PAUSE);
        }
        let process = Process::open(child.id() as i32).unwrap();
        assert_eq!(process.threads().unwrap().len(), 2);
        Some((child, process))
    }

    fn stop(process: &Process) -> Result<Stopped<'_>, RemapError> {
        let instruction = find_syscall(process, &process.segments()?, |_| false)?;
        let mut stopped = Stopped::stop(process, false, Duration::from_secs(60))?;
        stopped.prepare(instruction).map(|()| stopped)
    }

    fn kill(process: &Process) {
        nix::sys::signal::kill(Pid::from_raw(process.pid()), nix::sys::signal::SIGKILL).unwrap();
    }

    fn assert_gone(process: &Process, ended: Result<(), RemapError>) {
        let gone: Result<(), _> = Err(process.refused(Refusal::Gone));
        assert_eq!(format!("{ended:?}"), format!("{gone:?}"));
    }

    #[test]
    fn a_process_of_two_threads_that_is_killed_amid_a_call_ends_the_call() {
        let Some((mut child, process)) = two_threads() else { return };
        let is_in_pause = || {
            let call = std::fs::read_to_string(process.path("syscall")).unwrap();
            call.starts_with(&format!("{} ", libc::SYS_pause))
        };
        let ended = thread::scope(|scope| {
            let calling = scope.spawn(|| stop(&process)?.call(libc::SYS_pause, [0; 6]).map(drop));
            while !is_in_pause() {
                assert!(!calling.is_finished(), "it made no call");
                thread::sleep(PAUSE);
            }
            kill(&process);
            calling.join().unwrap()
        });
        assert_gone(&process, ended);
        child.wait().unwrap();
    }

    /// Its threads then count as missing at once, long before the process has ended.
    #[test]
    fn a_process_that_is_killed_between_two_calls_has_ended_for_each_request() {
        type Request = fn(Stopped<'_>) -> Result<(), RemapError>;
        let requests: [Request; 3] = [
            |mut stopped| stopped.call(libc::SYS_getpid, [0; 6]).map(drop),
            |mut stopped| stopped.prepare(0),
            |stopped| stopped.release().map(drop),
        ];
        for request in requests {
            let Some((mut child, process)) = two_threads() else { return };
            let ended = thread::scope(|scope| {
                let calling = scope.spawn(|| {
                    let mut stopped = stop(&process)?;
                    let own = stopped.call(libc::SYS_getpid, [0; 6])?.unwrap();
                    assert_eq!(own, process.pid() as u64);
                    kill(&process);
                    request(stopped)
                });
                calling.join().unwrap()
            });
            assert_gone(&process, ended);
            child.wait().unwrap();
        }
    }
}
