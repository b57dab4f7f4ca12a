//! Monitors of QEMU, asked beside the caller. A guest can make its monitor hang, so that the
//! control loop must not wait for an answer: a thread asks, and a later look takes what it heard.

use super::qmp::{ANSWER_WITHIN, own_socket, threads_of_vcpus};
use crate::store::Process;
use nearside_libvirt::VcpuId;
use nearside_vmm::Vm;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The pause after a first failure, as long as libvirt's after a time-out. Each further failure of
/// the same QEMU doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(30);

/// The doublings of the pause at most: to some four hours.
const MAX_DOUBLINGS: u32 = 9;

/// Threads at one time. A thread lasts longer than its bound only if the kernel holds it, as a path
/// on a FUSE file system can.
const MAX_THREADS: usize = 64;

/// The thread of each vCPU, or the reason why they are unknown.
type Answer = Result<BTreeMap<VcpuId, i32>, String>;

/// How to wait for a monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Asks {
    /// The caller waits for the answer, for half a second at most.
    #[default]
    InPlace,
    /// A thread waits.
    Beside,
}

/// The threads of vCPUs as a monitor tells them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It has been asked and has had no time to answer.
    NotYet,
    /// Its answer, or the reason why there is none.
    Threads(Answer),
}

/// The monitors that were asked.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    asks: Asks,
    /// By process: a pause outlives the socket, which the guest's owner can make anew.
    asked: Mutex<BTreeMap<QemuProcess, Asked>>,
}

/// A process of QEMU, told from a later process with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuProcess {
    number: i32,
    start_time_ticks: u64,
}

/// The state of a question.
#[derive(Debug, Default)]
struct Asked {
    waiting: Option<Question>,
    /// The failures in a row.
    failures: u32,
    /// The last failure, and the time of the next question.
    failed: Option<(String, Instant)>,
}

#[derive(Debug)]
struct Question {
    thread: JoinHandle<Answer>,
    begun: Instant,
}

impl Monitors {
    /// Lets threads ask from now on.
    pub(crate) fn ask_beside(&mut self) {
        self.asks = Asks::Beside;
    }

    /// The threads of a QEMU's vCPUs; none if it has no monitor that Nearside may ask.
    pub(crate) fn told(&self, vm: &Vm, process: i32, proc: &Path) -> Option<Told> {
        let socket = own_socket(vm)?;
        if self.asks == Asks::InPlace {
            return Some(Told::Threads(threads_of_vcpus(&socket, process, proc)));
        }
        Some(self.told_beside(socket, process, proc, Instant::now()))
    }

    fn told_beside(&self, socket: PathBuf, number: i32, proc: &Path, now: Instant) -> Told {
        let Some(process) = QemuProcess::read(number, proc) else {
            return Told::Threads(Err("QEMU has ended".into()));
        };
        // The state left by a panicking thread is still true.
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(&process) {
            // A thread that hangs counts, even if its QEMU has ended.
            let hangs = |asked: &Asked| {
                asked.waiting.as_ref().is_some_and(|question| !question.thread.is_finished())
            };
            all.retain(|it, asked| hangs(asked) || it.runs(proc));
        }
        let threads = all.values().filter(|asked| asked.waiting.is_some()).count();
        let asked = all.entry(process).or_default();
        if let Some(told) = asked.taken(&socket, now) {
            return told;
        }
        if threads >= MAX_THREADS {
            let why = format!("{threads} other monitors have not answered yet");
            return Told::Threads(Err(why));
        }
        let proc = proc.to_path_buf();
        asked.begin(now, move || threads_of_vcpus(&socket, number, &proc))
    }

    /// Waits until each question has its answer.
    #[cfg(test)]
    fn settle(&self) {
        for asked in self.asked.lock().unwrap().values_mut() {
            if let Some(Question { thread, begun }) = asked.waiting.take() {
                let answer = thread.join().unwrap();
                let thread = thread::spawn(|| answer);
                while !thread.is_finished() {
                    thread::yield_now();
                }
                asked.waiting = Some(Question { thread, begun });
            }
        }
    }
}

impl QemuProcess {
    /// The process with this number; none if it has ended.
    pub(crate) fn read(number: i32, proc: &Path) -> Option<Self> {
        let process = Process::read(proc, u32::try_from(number).ok()?)?;
        let start_time_ticks = process.start_time_ticks;
        process.lives().then_some(Self { number, start_time_ticks })
    }

    /// False once it has ended, even if another process has its number.
    pub(crate) fn runs(&self, proc: &Path) -> bool {
        Self::read(self.number, proc).as_ref() == Some(self)
    }
}

impl Asked {
    /// Takes what is known without a new question; none if it is time for one.
    fn taken(&mut self, socket: &Path, now: Instant) -> Option<Told> {
        if let Some(question) = self.waiting.take_if(|it| it.thread.is_finished()) {
            let ended = || Err("the thread that asked has ended".into());
            let answer = question.thread.join().unwrap_or_else(|_| ended());
            return Some(self.learn(answer, now));
        }
        if let Some(question) = &self.waiting {
            let is_late = now.saturating_duration_since(question.begun) > 4 * ANSWER_WITHIN;
            return Some(match is_late {
                true => Told::Threads(Err(format!("{}: the path hangs", socket.display()))),
                false => Told::NotYet,
            });
        }
        let (why, _) = self.failed.as_ref().filter(|(_, again)| now < *again)?;
        Some(Told::Threads(Err(why.clone())))
    }

    fn begin(&mut self, now: Instant, ask: impl FnOnce() -> Answer + Send + 'static) -> Told {
        let begun: io::Result<_> = thread::Builder::new().name("monitor".into()).spawn(ask);
        match begun {
            Ok(thread) => {
                self.waiting = Some(Question { thread, begun: now });
                Told::NotYet
            }
            Err(error) => self.learn(Err(format!("no thread can ask QEMU: {error}")), now),
        }
    }

    fn learn(&mut self, answer: Answer, now: Instant) -> Told {
        match &answer {
            Ok(_) => (self.failures, self.failed) = (0, None),
            Err(why) => {
                self.failed = Some((why.clone(), now + pause(self.failures)));
                self.failures = self.failures.saturating_add(1);
            }
        }
        Told::Threads(answer)
    }
}

/// The pause after a failure that so many others came before.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE * (1 << failures.min(MAX_DOUBLINGS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::net::{UnixListener, UnixStream},
    };

    /// Monitors that threads of this process ask, which also listens on the socket.
    struct Scene {
        folder: tempfile::TempDir,
        monitors: Monitors,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            let mut monitors = Monitors::default();
            monitors.ask_beside();
            Self { folder: tempfile::tempdir().unwrap(), monitors, now: Instant::now() }
        }

        fn socket(&self) -> PathBuf {
            self.folder.path().join("nearside.sock")
        }

        fn told(&self) -> Told {
            let this = std::process::id().cast_signed();
            self.monitors.told_beside(self.socket(), this, Path::new("/proc"), self.now)
        }

        /// Asks, waits for the answer and takes it.
        fn answer(&self) -> Answer {
            assert_eq!(self.told(), Told::NotYet);
            self.monitors.settle();
            self.taken()
        }

        fn taken(&self) -> Answer {
            match self.told() {
                Told::Threads(answer) => answer,
                Told::NotYet => panic!("asked again"),
            }
        }
    }

    fn serve(stream: UnixStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let say = |text: &str| (&stream).write_all(text.as_bytes()).unwrap();
        say("{\"QMP\": {}}\n");
        lines.next();
        say("{\"return\": {}}\n");
        lines.next();
        say("{\"return\": [{\"cpu-index\": 0, \"thread-id\": 9}]}\n");
    }

    #[test]
    fn the_caller_does_not_wait_for_the_monitor() {
        let scene = Scene::new();
        let listener = UnixListener::bind(scene.socket()).unwrap();
        for _ in 0..2 {
            // This thread serves the monitor, so that waiting for it would never end well.
            assert_eq!(scene.told(), Told::NotYet);
            serve(listener.accept().unwrap().0);
            scene.monitors.settle();
            assert_eq!(scene.taken(), Ok([(VcpuId(0), 9)].into()), "and then it is asked anew");
        }
    }

    #[test]
    fn a_monitor_that_fails_is_asked_ever_less_often() {
        let mut scene = Scene::new();
        let mut begun = Vec::new();
        let start = scene.now;
        for second in 0..=30 + 60 + 120 {
            scene.now = start + Duration::from_secs(second);
            if scene.told() == Told::NotYet {
                begun.push(second);
                scene.monitors.settle();
                assert!(scene.taken().unwrap_err().contains("No such file"));
            }
            // A socket that is made anew, as a guest's owner can do, is not asked earlier.
            drop(UnixListener::bind(scene.socket()).unwrap());
            std::fs::remove_file(scene.socket()).unwrap();
        }
        assert_eq!(begun, [0, 30, 30 + 60, 30 + 60 + 120]);
        assert_eq!(pause(u32::MAX), FIRST_PAUSE * 512);
    }

    #[test]
    fn another_process_with_the_same_number_is_asked_at_once() {
        let mut scene = Scene::new();
        let proc = scene.folder.path().join("proc/7");
        std::fs::create_dir_all(&proc).unwrap();
        let began = |ticks: u32| {
            let zeros = "0 ".repeat(18);
            std::fs::write(proc.join("stat"), format!("7 (qemu) S {zeros}{ticks} 0\n")).unwrap();
        };
        let told = |scene: &Scene| {
            let proc = scene.folder.path().join("proc");
            scene.monitors.told_beside(scene.socket(), 7, &proc, scene.now)
        };
        began(1);
        assert_eq!(told(&scene), Told::NotYet);
        scene.monitors.settle();
        assert!(matches!(told(&scene), Told::Threads(Err(_))));
        assert!(matches!(told(&scene), Told::Threads(Err(_))), "it pauses");
        began(2);
        assert_eq!(told(&scene), Told::NotYet);
        assert_eq!(scene.monitors.asked.lock().unwrap().len(), 1, "the first one is forgotten");
        scene.now += 5 * ANSWER_WITHIN;
        std::fs::remove_file(proc.join("stat")).unwrap();
        assert_eq!(told(&scene), Told::Threads(Err("QEMU has ended".into())));
    }

    #[test]
    fn what_is_no_socket_fails_at_once() {
        let scene = Scene::new();
        std::fs::write(scene.socket(), "").unwrap();
        assert!(scene.answer().unwrap_err().contains("refused"), "a regular file");
        let fifo = Scene::new();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, fifo.socket(), kind, mode, 0).unwrap();
        assert!(fifo.answer().unwrap_err().contains("refused"), "a FIFO");
    }
}
