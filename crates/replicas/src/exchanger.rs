//! The process that stops others to exchange what they map.
//!
//! A tracer that is killed during a stop leaves its process with the registers of an injected call.
//! The helper may be killed at any time. So a child does this: it blocks the signals that end
//! services, finishes the exchange it is at, and ends once the helper has gone.

use crate::{
    error::{Error, IoContext},
    file_id::FileId,
    remap::{Exchange, Keep, Operation, Process, Refusal, RemapError, Report, Segment, exchange},
    schedule::{Cpu, Schedule, Step},
    users::Use,
};
use nearside_linux::threads::shared_cpu_of_process;
use nix::sys::signal::{SigSet, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader, Read, Write},
    num::NonZero,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// The longest message in either direction, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Where the helper finds the program that calls [`serve`]: in itself, even once a package upgrade
/// has replaced its file.
const PROGRAM: &str = "/proc/self/exe";

/// Attempts to attach a process whose threads do not stop in time: on a busy host a thread may have
/// to wait for a CPU first. Each attempt is one short stop.
const ATTEMPTS: u32 = 8;

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The hidden subcommand of the program that calls [`serve`].
pub const COMMAND: &str = "replicator-exchange";

/// Looks for users of files. A process may fork before it is stopped or ends, so each look is at
/// those that the ones before have not found. A domain whose processes come and go all the time is
/// not looked at without end, since a writer waits.
pub(crate) const MAX_LOOKS: usize = 16;

/// The most threads that exchange, each in one process at a time.
const MAX_THREADS: usize = 16;

/// Exchanges of the same files in some processes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Task {
    processes: Vec<u32>,
    operation: Operation,
    exchanges: Vec<Exchange>,
}

/// The outcome for a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exchanged {
    /// Its mappings were exchanged, as far as they can be.
    Done {
        /// The addresses that map another file than before, in bytes.
        bytes: u64,
        /// How long its threads were stopped, in microseconds.
        stopped_us: u64,
        /// The addresses that map a copy as before, in bytes.
        kept_bytes: u64,
        /// A mapping that keeps a copy, with the reason, other than pages written by the process.
        kept: Option<String>,
    },
    /// It uses none of the files.
    Unconcerned,
    /// It has ended.
    Gone,
    /// It was left as it was.
    LeftAlone {
        /// The reason.
        why: String,
    },
}

/// The child, as the helper holds it.
#[derive(Debug)]
pub(crate) struct Exchanger {
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    tasks: ChildStdin,
    answers: BufReader<ChildStdout>,
    child: Child,
}

impl Task {
    /// The files that processes are to give up.
    fn files(&self) -> BTreeSet<FileId> {
        self.exchanges.iter().map(|exchange| exchange.from).collect()
    }
}

impl Exchanged {
    fn done(process: u32, report: &Report) -> Self {
        let kept = report.kept.iter().find(|kept| kept.why != Keep::PrivatePages);
        let kept = kept.map(|kept| {
            let addresses = &kept.segment.addresses;
            format!("process {process}: {:x}-{:x}: {}", addresses.start, addresses.end, kept.why)
        });
        Self::Done {
            bytes: report.changed.iter().map(Segment::bytes).sum(),
            stopped_us: report.stopped.as_micros().try_into().unwrap_or(u64::MAX),
            kept_bytes: report.kept.iter().map(|kept| kept.bytes).sum(),
            kept,
        }
    }

    /// Whether it is of no use to ask again. A process amid `execve(2)` has no mapping yet. One
    /// that uses none of the files gets none any more, since no path names them.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Done { bytes, kept_bytes, .. } => bytes + kept_bytes > 0,
            Self::Gone => false,
            Self::Unconcerned | Self::LeftAlone { .. } => true,
        }
    }

    /// Why the process still uses a copy.
    pub(crate) fn still_uses(self) -> Option<String> {
        match self {
            Self::Done { kept, .. } => kept,
            Self::Unconcerned | Self::Gone => None,
            Self::LeftAlone { why } => Some(why),
        }
    }
}

impl Exchanger {
    /// Starts the child.
    ///
    /// # Errors
    /// If there is no memory for another process.
    pub(crate) fn start() -> Result<Self, Error> {
        let running = Running::start().doing(|| "starting the exchanger".into())?;
        Ok(Self { running: Mutex::new(Some(running)) })
    }

    /// Exchanges files in processes. Returns each with its outcome. A child that has ended is
    /// replaced for the next task.
    pub(crate) fn exchange(
        &self,
        processes: Vec<u32>,
        exchanges: &[Exchange],
        operation: Operation,
    ) -> Vec<(u32, Exchanged)> {
        if processes.is_empty() {
            return Vec::new();
        }
        let task = Task { processes, operation, exchanges: exchanges.to_vec() };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = match running.take() {
            Some(it) => Ok(it),
            None => Running::start(),
        };
        let answer = asked.and_then(|mut it| {
            let answer = it.ask(&task);
            match answer {
                Ok(_) => *running = Some(it),
                Err(_) => it.end(),
            }
            answer
        });
        answer.unwrap_or_else(|error| {
            let files = task.files();
            let why = |process| format!("process {process}: the exchanger: {error}");
            let outcome = |process| match Found::of(process, &task, &files) {
                Ok(_) => Exchanged::LeftAlone { why: why(process) },
                Err(outcome) => outcome,
            };
            task.processes.iter().map(|process| (*process, outcome(*process))).collect()
        })
    }
}

impl Running {
    fn start() -> io::Result<Self> {
        let mut program = Command::new(PROGRAM);
        program.arg0("nearside").arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A group of its own: the terminal's Ctrl-C ends the helper alone.
        let mut child = program.process_group(0).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(tasks), Some(answers)) => {
                Ok(Self { tasks, answers: BufReader::new(answers), child })
            }
            _ => Err(io::Error::other("it was started without pipes")),
        }
    }

    fn ask(&mut self, task: &Task) -> io::Result<Vec<(u32, Exchanged)>> {
        write_line(&mut self.tasks, task)?;
        read_line(&mut self.answers)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"))
    }

    /// Lets it end, and waits for that.
    fn end(self) {
        let Self { tasks, answers, mut child } = self;
        drop((tasks, answers));
        let _ = child.wait();
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.take() {
            running.end();
        }
    }
}

/// The child: carries out the tasks of its standard input until the helper has gone.
///
/// # Errors
/// If standard input does not come from the helper.
pub fn serve() -> Result<(), Error> {
    let doing = || "serving the replicator".to_owned();
    let ending = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
    ending.into_iter().collect::<SigSet>().thread_block().doing(doing)?;
    let (mut tasks, mut answers) = (io::stdin().lock(), io::stdout().lock());
    while let Some(task) = read_line(&mut tasks).doing(doing)? {
        match write_line(&mut answers, &carry_out(task)) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.doing(doing)?,
        }
    }
    Ok(())
}

/// Each process with its outcome.
fn carry_out(task: Task) -> Vec<(u32, Exchanged)> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let work = Arc::new(Work {
        threads: task.processes.len().min(cpus).min(MAX_THREADS),
        files: task.files(),
        schedule: Mutex::new(Schedule::of(&task.processes)),
        allowed: sched_getaffinity(None).ok(),
        task,
    });
    let (send, outcomes) = mpsc::channel();
    for _ in 0..work.threads {
        let (work, send) = (Arc::clone(&work), send.clone());
        // Not joined: one that has gone to a busy CPU may wait there after others have done all.
        let run = move || work.run(|process, outcome| drop(send.send((process, outcome))));
        let _ = thread::Builder::new().spawn(run);
    }
    drop(send);
    let processes = &work.task.processes;
    let mut done: BTreeMap<_, _> = outcomes.iter().take(processes.len()).collect();
    // A thread that fails has no outcome.
    let outcome = |process: &u32| {
        let why = || format!("process {process}: the exchanger failed");
        let outcome = done.remove(process);
        (*process, outcome.unwrap_or_else(|| Exchanged::LeftAlone { why: why() }))
    };
    processes.iter().map(outcome).collect()
}

/// A task that several threads carry out.
#[derive(Debug)]
struct Work {
    task: Task,
    /// The files that processes are to give up.
    files: BTreeSet<FileId>,
    threads: usize,
    schedule: Mutex<Schedule<Found>>,
    /// The CPUs that this process may use.
    allowed: Option<CpuSet>,
}

impl Work {
    /// Takes one process after the other, and tells the outcome of each.
    fn run(&self, tell: impl Fn(u32, Exchanged)) {
        let schedule = || self.schedule.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = None;
        loop {
            let step = schedule().next(own);
            match step {
                Some(Step::Look(process)) => match Found::of(process, &self.task, &self.files) {
                    Ok(found) => {
                        let cpu = self.cpu_of(process);
                        schedule().found(found, cpu);
                    }
                    Err(outcome) => tell(process, outcome),
                },
                Some(Step::Exchange(found)) => {
                    tell(found.process, exchange_in(found, &self.task));
                }
                Some(Step::GoTo(cpu)) => {
                    // Where it may not go, it works from where it is.
                    go_to(cpu);
                    own = Some(cpu);
                }
                None => return,
            }
        }
    }

    /// The CPU to exchange files of a process on.
    fn cpu_of(&self, process: u32) -> Option<Cpu> {
        // A single thread stays where it is: an exchange in one process beside idle CPUs took
        // 2.2 ms so, and 2.5 ms on the process's CPU.
        let folder = PathBuf::from(format!("/proc/{process}"));
        let cpu = (self.threads > 1).then(|| shared_cpu_of_process(&folder)).flatten()?.0 as Cpu;
        self.allowed
            .as_ref()
            .is_some_and(|set| cpu < CpuSet::MAX_CPU && set.is_set(cpu))
            .then_some(cpu)
    }
}

/// A process to exchange files in.
#[derive(Debug)]
struct Found {
    process: u32,
    /// Its segments when it was looked at. None to attach, which looks at no process before.
    segments: Option<Vec<Segment>>,
}

impl Found {
    /// The outcome instead for a process without any of the files. Most processes of a domain are
    /// such ones, so nothing else is read of these.
    fn of(process: u32, task: &Task, files: &BTreeSet<FileId>) -> Result<Self, Exchanged> {
        if task.operation == Operation::Attach {
            return Ok(Self { process, segments: None });
        }
        match Use::of(files, process) {
            Use::Some(segments) => Ok(Self { process, segments: Some(segments) }),
            Use::None => Err(Exchanged::Unconcerned),
            Use::Ended => Err(Exchanged::Gone),
        }
    }
}

/// Tries to keep this thread, and those that it starts, on a CPU.
fn go_to(cpu: Cpu) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let _ = sched_setaffinity(None, &cpus);
}

fn exchange_in(found: Found, task: &Task) -> Exchanged {
    let Found { process, mut segments } = found;
    let are_handed_on = segments.is_some();
    let mut attempt = || {
        let process = Process::open(i32::try_from(process).unwrap_or_default())?;
        exchange(&process, segments.take(), &task.exchanges, task.operation)
    };
    let mut result = attempt();
    // It may have executed another program since its maps were read.
    let is_in_doubt = match &result {
        Ok(report) => report.is_empty(),
        Err(RemapError::Refused { why, .. }) => *why == Refusal::NoSyscallInstruction,
        Err(error) => matches!(error, RemapError::Trace { .. }),
    };
    if are_handed_on && is_in_doubt {
        result = attempt();
    }
    let attempts = if task.operation == Operation::Attach { ATTEMPTS } else { 1 };
    for _ in 1..attempts {
        let Err(RemapError::Refused { why: Refusal::DoesNotStop { .. }, .. }) = result else {
            break;
        };
        thread::sleep(PAUSE);
        result = attempt();
    }
    match result {
        Ok(report) => Exchanged::done(process, &report),
        Err(RemapError::Refused { why: Refusal::Gone, .. }) => Exchanged::Gone,
        Err(error) => Exchanged::LeftAlone { why: error.to_string() },
    }
}

fn write_line(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The next message; none at the end of the input, also in the middle of a line.
fn read_line<T: for<'a> Deserialize<'a>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(MAX_BYTES).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\n") {
        Some(line) => Ok(Some(serde_json::from_slice(line)?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remap::{Kept, maps};

    #[test]
    fn a_task_and_the_end_of_input() {
        let file = |inode| FileId { device: 1, inode };
        let exchange = Exchange { path: "/usr/bin/db".into(), from: file(1), to: file(2) };
        let task =
            Task { processes: vec![7, 8], operation: Operation::Attach, exchanges: vec![exchange] };
        let mut bytes = Vec::new();
        write_line(&mut bytes, &task).unwrap();
        let mut input = &bytes[..];
        assert_eq!(read_line::<Task>(&mut input).unwrap(), Some(task));
        assert_eq!(read_line::<Task>(&mut input).unwrap(), None);
        // The helper was killed while it wrote.
        assert_eq!(read_line::<Task>(&mut &bytes[..9]).unwrap(), None);
        assert!(read_line::<Task>(&mut &b"{}\n"[..]).is_err());
    }

    #[test]
    fn a_sealed_mapping_keeps_its_copy_and_written_pages_are_no_news() {
        let kept = |why| {
            let line = b"7f000-8f000 r-xp 00000000 00:2a 7 /usr/lib/a.so";
            Kept { segment: maps(line).remove(0), bytes: 4096, why }
        };
        let report = |kept| Report { kept, ..Report::default() };
        let written = report(vec![kept(Keep::PrivatePages)]);
        assert!(Exchanged::done(7, &written).is_final());
        assert_eq!(Exchanged::done(7, &written).still_uses(), None);
        let sealed = Keep::Unchangeable("it is sealed (mseal)");
        let sealed = report(vec![kept(Keep::PrivatePages), kept(sealed)]);
        let why = "process 7: 7f000-8f000: it is sealed (mseal)".to_owned();
        assert_eq!(Exchanged::done(7, &sealed).still_uses(), Some(why));
        assert!(!Exchanged::done(7, &report(vec![])).is_final(), "it may have no mapping yet");
    }

    #[test]
    fn a_process_that_has_ended_is_gone_and_may_have_left_a_child() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        for operation in [Operation::Attach, Operation::Detach] {
            let task = Task { processes: vec![child.id()], operation, exchanges: Vec::new() };
            assert_eq!(carry_out(task), [(child.id(), Exchanged::Gone)]);
        }
        assert!(!Exchanged::Gone.is_final());
    }

    #[test]
    fn a_process_without_any_of_the_files_is_left_alone() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let exchanges = vec![Exchange {
            path: "/a".into(),
            from: FileId { device: 0, inode: 0 },
            to: FileId { device: 0, inode: 0 },
        }];
        let operation = Operation::Detach;
        let task = Task { processes: vec![child.id()], operation, exchanges };
        assert_eq!(carry_out(task), [(child.id(), Exchanged::Unconcerned)]);
        assert!(Exchanged::Unconcerned.is_final());
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
