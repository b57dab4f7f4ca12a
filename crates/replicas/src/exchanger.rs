//! The process that stops others to exchange what they map.
//!
//! A tracer that is killed during a stop leaves its process with the registers of an injected call.
//! The helper may be killed at any time. So a child does this: it blocks the signals that end
//! services, finishes the exchange it is at, and ends once the helper has gone.

use crate::{
    census::Census,
    error::{Error, IoContext},
    file_id::FileId,
    remap::{Exchange, Keep, Operation, Process, Refusal, RemapError, Report, Segment, exchange},
    schedule::{Cpu, Schedule, Step},
    sys::{self, Urgency},
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

/// The pause between two attempts to attach a process whose threads do not stop in time: on a busy
/// host a thread may have to wait for a CPU first. Each attempt is one short stop.
const PAUSE: Duration = Duration::from_millis(20);

/// Attempts to detach a process that cannot be stopped for now, and the pause between two. A writer
/// waits.
const DETACH_ATTEMPTS: u32 = 16;
const DETACH_PAUSE: Duration = Duration::from_millis(1);

/// The hidden subcommand of the program that calls [`serve`].
pub const COMMAND: &str = "replicator-exchange";

/// Looks for users of files. A domain whose processes come and go all the time is not looked at
/// without end, since a writer waits.
const MAX_LOOKS: usize = 16;

/// The most threads that exchange, each in one process at a time.
const MAX_THREADS: usize = 16;

/// Processes, and what is to be exchanged in them.
pub(crate) type ToDetach = (Vec<u32>, Vec<Exchange>);

/// Exchanges of the same files in some processes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Task {
    processes: Vec<u32>,
    operation: Operation,
    exchanges: Vec<Exchange>,
    /// Attempts to stop a process.
    attempts: u32,
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
        /// Whether another attempt is of use.
        again: bool,
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

    /// Whether the process has used a copy, and another attempt would change nothing.
    fn is_settled(&self) -> bool {
        match self {
            Self::Done { .. } => self.is_final(),
            Self::LeftAlone { again, .. } => !again,
            Self::Unconcerned | Self::Gone => false,
        }
    }

    /// Why the process still uses a copy.
    pub(crate) fn still_uses(self) -> Option<String> {
        match self {
            Self::Done { kept, .. } => kept,
            Self::Unconcerned | Self::Gone => None,
            Self::LeftAlone { why, .. } => Some(why),
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

    /// Brings processes from originals to copies. Returns each with its outcome.
    pub(crate) fn attach(
        &self,
        processes: Vec<u32>,
        exchanges: Vec<Exchange>,
        attempts: u32,
    ) -> Vec<(u32, Exchanged)> {
        self.exchange(Task { processes, operation: Operation::Attach, exchanges, attempts })
    }

    /// Returns processes from copies to originals. `look` names the processes of a census, with
    /// what is to be exchanged in them.
    pub(crate) fn detach(&self, mut look: impl FnMut(&Census) -> Vec<ToDetach>) -> Detached {
        let exchange = |processes, exchanges| {
            let operation = Operation::Detach;
            self.exchange(Task { processes, operation, exchanges, attempts: DETACH_ATTEMPTS })
        };
        detach_in_looks(|| Ok(look(&Census::take()?)), exchange)
    }

    /// Exchanges files in processes. A child that has ended is replaced by another one, which gets
    /// the same task: what is exchanged already is not found again.
    fn exchange(&self, task: Task) -> Vec<(u32, Exchanged)> {
        if task.processes.is_empty() {
            return Vec::new();
        }
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ask = || {
            let mut it = running.take().map_or_else(Running::start, Ok)?;
            let answer = it.ask(&task);
            match answer {
                Ok(_) => *running = Some(it),
                Err(_) => it.end(),
            }
            answer
        };
        let has_ended = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe)
        };
        let answer = ask().or_else(|error| {
            if !has_ended(&error) {
                return Err(error);
            }
            log!("the exchanger: {error}; another one takes its task");
            ask()
        });
        answer.unwrap_or_else(|error| {
            let files = task.files();
            let why = |process| format!("process {process}: the exchanger: {error}");
            let outcome = |process| match Found::of(process, &task, &files) {
                Ok(_) => Exchanged::LeftAlone { why: why(process), again: true },
                Err(outcome) => outcome,
            };
            task.processes.iter().map(|process| (*process, outcome(*process))).collect()
        })
    }
}

/// The outcome of a detachment.
#[derive(Debug, Default)]
pub(crate) struct Detached {
    /// Why some processes still use a copy.
    pub(crate) still: Vec<String>,
    /// The processes that have used a copy, and go on with the original or keep what they map.
    pub(crate) settled: BTreeSet<u32>,
}

/// A process may fork before it is stopped or ends, so each look is at those that the ones before
/// have not found.
fn detach_in_looks(
    mut look: impl FnMut() -> io::Result<Vec<ToDetach>>,
    exchange: impl Fn(Vec<u32>, Vec<Exchange>) -> Vec<(u32, Exchanged)>,
) -> Detached {
    // Processes that use no copy, or keep what they still map of one.
    let mut asked = BTreeSet::new();
    // One that has ended and not been waited for has no memory at the next look either.
    let mut gone = BTreeSet::new();
    let mut done = Detached::default();
    for _ in 0..MAX_LOOKS {
        let mut found = false;
        let looked = look();
        if let Err(error) = &looked {
            done.still.push(format!("perhaps a process (none can be listed: {error})"));
        }
        for (mut processes, exchanges) in looked.unwrap_or_default() {
            processes.retain(|process| !asked.contains(process));
            found |= !processes.is_empty();
            for (process, outcome) in exchange(processes, exchanges) {
                if outcome.is_final() || outcome == Exchanged::Gone && !gone.insert(process) {
                    asked.insert(process);
                }
                if outcome.is_settled() {
                    done.settled.insert(process);
                }
                done.still.extend(outcome.still_uses());
            }
        }
        if !found {
            break;
        }
    }
    done
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
    // The helper tells if it may not set its own.
    _ = sys::set_urgency(match task.operation {
        Operation::Attach => Urgency::Ordinary,
        Operation::Detach => Urgency::WithThreads,
    });
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
        (*process, outcome.unwrap_or_else(|| Exchanged::LeftAlone { why: why(), again: true }))
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
    let pause = match task.operation {
        Operation::Attach => PAUSE,
        Operation::Detach => DETACH_PAUSE,
    };
    for _ in 1..task.attempts {
        let Err(error) = &result else { break };
        if !is_soon_over(error, task.operation) {
            break;
        }
        thread::sleep(pause);
        result = attempt();
    }
    match result {
        Ok(report) => {
            let locks = report.lost_locks.len();
            if locks > 0 {
                log!("process {process}: {locks} of its locks have gone");
            }
            Exchanged::done(process, &report)
        }
        Err(RemapError::Refused { why: Refusal::Gone, .. }) => Exchanged::Gone,
        Err(error) => Exchanged::LeftAlone { why: error.to_string(), again: passes(&error) },
    }
}

/// Whether to wait for the end of the cause. A process that did not stop for a writer has had its
/// time. A vfork may last for an instant, and the exchanger of a killed helper ends its exchange.
fn is_soon_over(error: &RemapError, operation: Operation) -> bool {
    let RemapError::Refused { why, .. } = error else { return false };
    match (operation, why) {
        (Operation::Attach, Refusal::DoesNotStop { .. }) => true,
        (Operation::Attach, _) | (Operation::Detach, Refusal::DoesNotStop { .. }) => false,
        (Operation::Detach, why) => !why.lasts(),
    }
}

/// Whether the cause may end while the process executes its program.
fn passes(error: &RemapError) -> bool {
    match error {
        RemapError::Refused { why, .. } => !why.lasts(),
        RemapError::Read { .. } | RemapError::Trace { .. } | RemapError::NoTracer { .. } => true,
        RemapError::OtherFile { .. }
        | RemapError::Open { .. }
        | RemapError::BadPath { .. }
        | RemapError::Call { .. }
        | RemapError::NotUndone { .. } => false,
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
        let task = Task {
            processes: vec![7, 8],
            operation: Operation::Attach,
            exchanges: vec![exchange],
            attempts: 8,
        };
        let mut bytes = Vec::new();
        write_line(&mut bytes, &task).unwrap();
        let mut input = &bytes[..];
        assert_eq!(read_line::<Task>(&mut input).unwrap(), Some(task));
        assert_eq!(read_line::<Task>(&mut input).unwrap(), None);
        // The helper was killed while it wrote.
        assert_eq!(read_line::<Task>(&mut &bytes[..9]).unwrap(), None);
        assert!(read_line::<Task>(&mut &b"{}\n"[..]).is_err());
    }

    /// The scheduling policy of this thread, and of one that it starts: field 41 of
    /// proc_pid_stat(5), numbers of sched(7).
    fn policies() -> [u8; 2] {
        let policy = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let after_name = stat.rsplit_once(") ").unwrap().1;
            after_name.split(' ').nth(41 - 3).unwrap().parse().unwrap()
        };
        [policy(), thread::spawn(policy).join().unwrap()]
    }

    #[test]
    fn threads_are_urgent_while_a_writer_waits() {
        let after = |operation| {
            let (processes, exchanges) = (vec![], vec![]);
            carry_out(Task { processes, operation, exchanges, attempts: 1 });
            policies()
        };
        let in_child = move || [Operation::Detach, Operation::Attach].map(after);
        // Threads of its own: the policy is not for the tests after this one.
        let outcome = thread::spawn(move || {
            sys::set_urgency(Urgency::Thread)?;
            io::Result::Ok((policies(), thread::spawn(in_child).join().unwrap()))
        });
        let (ordinary, round_robin) = (0, 2);
        match outcome.join().unwrap() {
            Ok((helper, child)) => {
                assert_eq!(helper, [round_robin, ordinary]);
                assert_eq!(child, [[round_robin; 2], [ordinary; 2]]);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}"),
        }
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
    fn only_processes_that_have_ended_are_looked_for_again() {
        let asked = Mutex::new(BTreeMap::<u32, usize>::new());
        let exchange = |processes: Vec<u32>, _: Vec<Exchange>| {
            let outcome = |process: u32| {
                *asked.lock().unwrap().entry(process).or_default() += 1;
                match process {
                    1 | 5 => Exchanged::Gone,
                    6 => Exchanged::LeftAlone { why: "it is of 32 bits".into(), again: false },
                    2 => Exchanged::LeftAlone { why: "it is traced".into(), again: true },
                    _ => Exchanged::Unconcerned,
                }
            };
            processes.into_iter().map(|process| (process, outcome(process))).collect()
        };
        // The second look finds the child of process 1, and the third one nobody else. Process 5
        // has ended, and nobody waits for it.
        let mut looks = [vec![1, 2, 3, 5], vec![2, 3, 4, 5, 6], vec![2, 3, 4, 5, 6]].into_iter();
        let done = detach_in_looks(|| Ok(vec![(looks.next().unwrap(), vec![])]), exchange);
        assert_eq!(done.still, ["it is traced", "it is of 32 bits"]);
        assert_eq!(done.settled, [6].into());
        assert_eq!(*asked.lock().unwrap(), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (6, 1)].into());
    }

    #[test]
    fn processes_that_cannot_be_listed_are_no_proof_that_none_uses_a_copy() {
        let look = || Err(io::Error::from_raw_os_error(libc::EMFILE));
        let done = detach_in_looks(look, |_, _| vec![]);
        let [why] = &done.still[..] else { panic!("{done:?}") };
        assert!(why.starts_with("perhaps a process (none can be listed: Too many open"), "{why}");
    }

    #[test]
    fn causes_that_pass_and_those_that_are_soon_over() {
        let refused = |why| RemapError::Refused { pid: 7, why };
        let source = || io::Error::from_raw_os_error(libc::EIO);
        // The cause, whether another attempt later is of use, and whether to wait for its end: to
        // attach, and to detach.
        let table = [
            (refused(Refusal::Vfork { child: 8 }), true, [false, true]),
            (refused(Refusal::SharesMemory { with: 8 }), true, [false, true]),
            (refused(Refusal::AlreadyTraced { tracer: 9 }), true, [false, true]),
            (refused(Refusal::DoesNotStop { thread: 7, waited_ms: 40 }), true, [true, false]),
            (refused(Refusal::Seccomp), false, [false, false]),
            (refused(Refusal::ThirtyTwoBit), false, [false, false]),
            (RemapError::NoTracer { source: source() }, true, [false, false]),
            (RemapError::Open { pid: 7, path: "/a".into(), source: source() }, false, [false; 2]),
        ];
        for (error, later, now) in table {
            let are_over =
                [Operation::Attach, Operation::Detach].map(|it| is_soon_over(&error, it));
            assert_eq!((passes(&error), are_over), (later, now), "{error}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_gone_and_may_have_left_a_child() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        for operation in [Operation::Attach, Operation::Detach] {
            let processes = vec![child.id()];
            let task = Task { processes, operation, exchanges: Vec::new(), attempts: 1 };
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
        let task = Task { processes: vec![child.id()], operation, exchanges, attempts: 1 };
        assert_eq!(carry_out(task), [(child.id(), Exchanged::Unconcerned)]);
        assert!(Exchanged::Unconcerned.is_final());
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
