//! The child's side: carries out exchanges in several threads.

use super::{
    hold::{Gate, Held, MAX_HELD},
    messages::{Exchanged, Request, Task, read_line, write_line},
    pool::Pool,
};
use crate::{
    error::{Error, IoContext},
    file_id::FileId,
    remap::{
        Operation, Process, Refusal, RemapError, Report, Segment, exchange, hold_and_exchange,
    },
    schedule::{Cpu, Schedule, Step},
    sys::{self, Urgency},
    users::Use,
};
use nearside_linux::threads::shared_cpu_of_process;
use nix::sys::signal::{SigSet, Signal};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    collections::BTreeSet,
    io,
    num::NonZero,
    os::fd::AsFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

/// The pause between two attempts to attach a process whose threads do not stop in time: on a busy
/// host a thread may have to wait for a CPU first. Each attempt is one short stop.
const PAUSE: Duration = Duration::from_millis(20);

/// Threads for the next requests are started once none has come for so long: a writer may wait.
const FILL_AFTER: Duration = Duration::from_millis(5);

/// The pause between two attempts to detach one that cannot be stopped for now. A writer waits.
const DETACH_PAUSE: Duration = Duration::from_millis(1);

/// The most threads of a task that look at processes, one at a time, and exchange files in them.
/// Those that hold one come in addition.
const MAX_THREADS: usize = 16;

/// The child: carries out the tasks of its standard input until the helper has gone.
///
/// # Errors
/// If standard input does not come from the helper.
pub fn serve() -> Result<(), Error> {
    let doing = || "serving the replicator".to_owned();
    let ending = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
    ending.into_iter().collect::<SigSet>().thread_block().doing(doing)?;
    let pool = Arc::new(Pool::of(MAX_HELD + cpus().min(MAX_THREADS)));
    let mut held = Held::default();
    let served = answer_all(&pool, &mut held);
    // The helper may have been killed while processes were held.
    held.finish();
    match served {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        served => served.doing(doing),
    }
}

fn answer_all(pool: &Arc<Pool>, held: &mut Held) -> io::Result<()> {
    let (mut requests, mut answers) = (io::stdin().lock(), io::stdout().lock());
    loop {
        _ = sys::set_urgency(Urgency::WithThreads);
        if !has_input(&requests, FILL_AFTER) {
            pool.fill();
        }
        let Some(request) = read_line(&mut requests)? else { return Ok(()) };
        let answer = match request {
            Request::Exchange(task) => carry_out(task, pool, held),
            Request::Finish => held.finish(),
        };
        write_line(&mut answers, &answer)?;
    }
}

/// Whether input comes within some time. Requests come one at a time, so none is in the buffer.
fn has_input(input: &impl AsFd, within: Duration) -> bool {
    let within = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
    !matches!(poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&within)), Ok(0))
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Each process with its outcome, as far as that is known.
pub(super) fn carry_out(task: Task, pool: &Arc<Pool>, held: &mut Held) -> Vec<(u32, Exchanged)> {
    let urgency = match task.operation {
        Operation::Attach => Urgency::Ordinary,
        Operation::Detach => Urgency::WithThreads,
    };
    // The helper tells if it may not set its own.
    _ = sys::set_urgency(urgency);
    let may_be_held = if task.holds { MAX_HELD } else { 0 };
    let work = Arc::new(Work {
        threads: task.processes.len().min(cpus()).min(MAX_THREADS),
        files: task.files(),
        schedule: Mutex::new(Schedule::of(&task.processes, may_be_held)),
        allowed: sched_getaffinity(None).ok(),
        gate: held.gate(),
        pool: Arc::clone(pool),
        task,
    });
    let (tell, reports) = mpsc::channel();
    for _ in 0..work.threads {
        let (work, tell) = (Arc::clone(&work), tell.clone());
        // Not joined: one that has gone to a busy CPU may wait there after others have done all.
        let _ = pool.start(move || {
            _ = sys::set_urgency(urgency);
            work.run(&tell);
        });
    }
    drop(tell);
    held.add(&work.task.processes, reports)
}

/// Where threads tell the outcome of a process.
type Reports = mpsc::Sender<(u32, Exchanged)>;

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
    /// Where stopped processes wait.
    gate: Arc<Gate>,
    pool: Arc<Pool>,
}

impl Work {
    /// Takes one process after the other, and tells the outcome of each.
    fn run(self: &Arc<Self>, reports: &Reports) {
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
                    Err(outcome) => tell(reports, process, outcome),
                },
                Some(Step::Exchange(found)) => {
                    tell(reports, found.process, exchange_in(found, &self.task));
                }
                Some(Step::Hold(found)) => self.hold(found, reports),
                Some(Step::GoTo(cpu)) => {
                    // Where it may not go, it works from where it is.
                    go_to(cpu);
                    own = Some(cpu);
                }
                None => return,
            }
        }
    }

    /// Has a process stopped by a thread that exchanges files in it later.
    fn hold(self: &Arc<Self>, found: Found, reports: &Reports) {
        let process = found.process;
        let (work, its_reports) = (Arc::clone(self), reports.clone());
        let hold = move || {
            let outcome = hold_and_exchange_in(found, &work, &its_reports);
            tell(&its_reports, process, outcome);
        };
        if self.pool.start(hold).is_err() {
            tell(reports, process, Exchanged::failed(process));
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
pub(super) struct Found {
    process: u32,
    /// Its segments when it was looked at. None to attach, which looks at no process before.
    segments: Option<Vec<Segment>>,
}

impl Found {
    /// The outcome instead for a process without any of the files. Most processes of a domain are
    /// such ones, so nothing else is read of these.
    pub(super) fn of(
        process: u32,
        task: &Task,
        files: &BTreeSet<FileId>,
    ) -> Result<Self, Exchanged> {
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

/// Carrying out a task listens until it knows of all processes.
fn tell(reports: &Reports, process: u32, outcome: Exchanged) {
    _ = reports.send((process, outcome));
}

/// Stops a process, and exchanges files in it once the gate is open. This thread traces it.
fn hold_and_exchange_in(found: Found, work: &Work, reports: &Reports) -> Exchanged {
    let Work { task, gate, .. } = work;
    let process = found.process;
    let mut has_waited = false;
    let result = opened(process).and_then(|opened| {
        hold_and_exchange(&opened, &task.exchanges, || {
            has_waited = gate.admits();
            if has_waited {
                tell(reports, process, Exchanged::Held);
                gate.await_open();
            }
        })
    });
    match result {
        Ok(Some(report)) => outcome_of(process, Ok(report)),
        Ok(None) => exchange_in(found, task),
        // One that has been held has had its attempt.
        Err(error) if !has_waited && is_worth_another(&error, task.operation) => {
            thread::sleep(DETACH_PAUSE);
            exchange_in(found, task)
        }
        Err(error) => outcome_of(process, Err(error)),
    }
}

/// Whether a stop that has failed may succeed now.
fn is_worth_another(error: &RemapError, operation: Operation) -> bool {
    is_soon_over(error, operation) || matches!(error, RemapError::Trace { .. })
}

fn opened(process: u32) -> Result<Process, RemapError> {
    Process::open(i32::try_from(process).unwrap_or_default())
}

fn exchange_in(found: Found, task: &Task) -> Exchanged {
    let Found { process, mut segments } = found;
    let are_handed_on = segments.is_some();
    let mut attempt =
        || exchange(&opened(process)?, segments.take(), &task.exchanges, task.operation);
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
    outcome_of(process, result)
}

fn outcome_of(process: u32, result: Result<Report, RemapError>) -> Exchanged {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remap::Exchange;
    use std::{
        fs,
        io::{BufRead, BufReader},
        process::{Child, Command, Stdio},
    };

    fn pool() -> Arc<Pool> {
        let pool = Pool::of(1);
        pool.fill();
        Arc::new(pool)
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
            let task = Task { processes, operation, exchanges, attempts: 1, holds: false };
            carry_out(task, &pool(), &mut Held::default());
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
            let exchanges = Vec::new();
            let task = Task { processes, operation, exchanges, attempts: 1, holds: true };
            let mut held = Held::default();
            assert_eq!(carry_out(task, &pool(), &mut held), [(child.id(), Exchanged::Gone)]);
            assert_eq!(held.finish(), []);
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
        let task = Task::to_detach(vec![child.id()], exchanges, true);
        let mut held = Held::default();
        assert_eq!(carry_out(task, &pool(), &mut held), [(child.id(), Exchanged::Unconcerned)]);
        assert_eq!(held.finish(), []);
        assert!(Exchanged::Unconcerned.is_final());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    /// A process that maps a copy, which is at the path of its original again, and the way back.
    struct Mapping {
        path: PathBuf,
        copy: FileId,
        original: FileId,
        child: Child,
        _folder: tempfile::TempDir,
    }

    impl Mapping {
        /// None without Python. `flags` are those of mmap(2) in addition.
        fn new(flags: libc::c_int) -> Option<Self> {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            fs::write(&path, "text").unwrap();
            let copy = FileId::at(&path).unwrap();
            let script = format!(
                "import mmap, sys\n\
                with open(sys.argv[1], 'rb') as file:\n \
                text = mmap.mmap(file.fileno(), 0, {}, mmap.PROT_READ)\n\
                print(flush=True)\nsys.stdin.read()",
                libc::MAP_PRIVATE | flags
            );
            let mut command = Command::new("python3");
            command.args(["-c", &script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().ok()?;
            let mut maps = BufReader::new(child.stdout.take()?);
            maps.read_line(&mut String::new()).ok()?;
            let new = folder.path().join("original");
            fs::write(&new, "text").unwrap();
            fs::rename(&new, &path).unwrap();
            let original = FileId::at(&path).unwrap();
            Some(Self { path, copy, original, child, _folder: folder })
        }

        fn hold(&self) -> Held {
            let exchange = Exchange { path: self.path.clone(), from: self.copy, to: self.original };
            let mut held = Held::without_haste();
            let process = self.child.id();
            let task = Task::to_detach(vec![process], vec![exchange], true);
            assert_eq!(carry_out(task, &pool(), &mut held), [(process, Exchanged::Held)]);
            held
        }

        /// The copy, and the original.
        fn maps(&self) -> [bool; 2] {
            let maps = |file: FileId| Use::of(&[file].into(), self.child.id());
            [self.copy, self.original].map(|file| matches!(maps(file), Use::Some(_)))
        }

        fn end(mut self) {
            drop(self.child.stdin.take());
            assert!(self.child.wait().unwrap().success());
        }
    }

    /// The letter of its state in proc_pid_stat(5).
    fn state(process: u32) -> char {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    #[test]
    fn a_process_that_is_held_stands_still_with_its_copy_until_the_end() {
        let Some(mapping) = Mapping::new(0) else { return };
        let mut held = mapping.hold();
        assert_eq!(state(mapping.child.id()), 't');
        assert_eq!(mapping.maps(), [true, false]);
        let [(_, Exchanged::Done { bytes: 4096, .. })] = &held.finish()[..] else {
            panic!("it was not exchanged");
        };
        assert_eq!(mapping.maps(), [false, true]);
        assert_eq!(held.finish(), []);
        mapping.end();
    }

    #[test]
    fn a_locked_mapping_returns_to_an_original_that_the_writer_has_emptied() {
        let Some(mapping) = Mapping::new(libc::MAP_LOCKED) else { return };
        let mut held = mapping.hold();
        fs::write(&mapping.path, "").unwrap();
        let [(_, outcome)] = &held.finish()[..] else { panic!("it was not held") };
        assert!(matches!(outcome, Exchanged::Done { bytes: 4096, .. }), "{outcome:?}");
        assert_eq!(mapping.maps(), [false, true]);
        mapping.end();
    }
}
