use super::*;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Mutex, mpsc},
};

/// The store's folder; set in a copy of this program that a test starts.
const FOLDER: &str = "NEARSIDE_TEST_LOCK";
/// The task of the copy: `hold`, `execute` or `repeat`.
const ACT: &str = "NEARSIDE_TEST_LOCK_ACT";

fn own(folder: &Path) -> Folder {
    Folder::make(&folder.join("own")).unwrap()
}

/// Waits for the lock, and calls `arrived` once it is in line.
fn take_after(own: &Folder, arrived: impl FnOnce()) -> Held {
    let lock = own.lock_file(LOCK).unwrap();
    let (proc, path) = (Path::new("/proc"), own.path().join(LOCK));
    let (notify, meanwhile) = (&mut |_: &_| {}, &mut || {});
    let wait = &mut Wait { at_most: None, proc, notify, meanwhile };
    let mut waiting =
        Waiting { began: Instant::now(), was_notified: true, wait, lock: &lock, path, ahead: None };
    let ticket = waiting.draw(own.make_below(QUEUE).unwrap()).unwrap();
    arrived();
    waiting.turn(&ticket).unwrap();
    Held { _lock: lock, _ticket: ticket }
}

/// Waits for the lock without a bound.
fn take_forever(own: &Folder, notify: &mut dyn FnMut(&LockWait)) -> Held {
    let proc = Path::new("/proc");
    take(own, &mut Wait { at_most: None, proc, notify, meanwhile: &mut || {} }).unwrap()
}

fn take_within(own: &Folder, bound: Duration, meanwhile: &mut dyn FnMut()) -> Result<Held, Error> {
    let (at_most, proc) = (Some(bound), Path::new("/proc"));
    take(own, &mut Wait { at_most, proc, notify: &mut |_| {}, meanwhile })
}

fn take_now(own: &Folder) -> Result<Held, Error> {
    take_within(own, Duration::ZERO, &mut || {})
}

/// A process in line.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(test: &str, folder: &Path, act: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("store::lock::tests::{test}"), "--nocapture"])
            .envs([(FOLDER, folder.as_os_str()), (ACT, OsStr::new(act))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Starts a process and waits until it is in line.
    fn arrive(test: &str, folder: &Path, act: &str) -> Self {
        let mut process = Self::start(test, folder, act);
        process.await_line("in line");
        process
    }

    fn await_line(&mut self, expected: &str) {
        let mut line = String::new();
        // The test harness has written to the same line before.
        while !line.trim_end().ends_with(expected) {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "{expected:?} never came");
        }
    }

    /// Makes the holder continue and release the lock.
    fn go_on(&mut self) {
        writeln!(self.child.stdin.as_ref().unwrap()).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Runs the copy's task. False in the test itself.
fn is_child() -> bool {
    let Some(folder) = std::env::var_os(FOLDER) else { return false };
    let own = own(Path::new(&folder));
    let act = std::env::var(ACT).unwrap();
    if act == "repeat" {
        let alone = own.lock_file("alone").unwrap();
        loop {
            let held = take_after(&own, || {});
            let is_alone = alone.try_lock().unwrap();
            rustix::fs::flock(&alone, FlockOperation::Unlock).unwrap();
            drop(held);
            // Printed only now, because the lock must not wait for the reader of this output.
            println!("{}", if is_alone { "alone" } else { "together" });
        }
    }
    let _held = take_after(&own, || println!("in line"));
    println!("held");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if act == "execute" {
        panic!("{}", crate::sys::execute(Command::new("sleep").arg("100000")));
    }
    true
}

#[test]
fn waiters_get_the_lock_in_the_order_of_arrival() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path());
    let order = Mutex::new(Vec::new());
    let held = take_now(&own).unwrap();
    thread::scope(|scope| {
        for number in 0..20 {
            let (arrived, arrival) = mpsc::channel();
            let (own, order) = (&own, &order);
            scope.spawn(move || {
                let _held = take_after(own, || arrived.send(()).unwrap());
                order.lock().unwrap().push(number);
            });
            arrival.recv().unwrap();
        }
        drop(held);
    });
    assert_eq!(order.into_inner().unwrap(), Vec::from_iter(0..20));
    assert_eq!(names(&own.make_below(QUEUE).unwrap()).unwrap().count(), 0);
}

#[test]
fn processes_behind_a_killed_one_move_up() {
    if is_child() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let arrive = |act| Process::arrive("processes_behind_a_killed_one_move_up", folder.path(), act);
    let mut first = arrive("hold");
    first.await_line("held");
    let (mut second, third) = (arrive("hold"), arrive("hold"));
    let (mut fourth, mut fifth) = (arrive("execute"), arrive("hold"));
    third.kill();
    first.go_on();
    second.await_line("held");
    assert!(first.child.wait().unwrap().success());
    assert!(take_now(&own(folder.path())).is_err());
    second.kill();
    fourth.await_line("held");
    fourth.go_on();
    // It has the lock although the fourth's program still runs.
    fifth.await_line("held");
    assert!(fourth.child.try_wait().unwrap().is_none());
    fifth.go_on();
    fifth.child.wait().unwrap();
    fourth.kill();
    let last = take_now(&own(folder.path())).unwrap();
    let queue = own(folder.path()).make_below(QUEUE).unwrap();
    assert_eq!(names(&queue).unwrap().collect::<Vec<_>>(), [last._ticket.name]);
}

#[test]
fn kills_at_any_instant_leave_the_lock_free_and_one_holder_at_a_time() {
    if is_child() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "kills_at_any_instant_leave_the_lock_free_and_one_holder_at_a_time";
    let mut running: Vec<_> =
        (0..4).map(|_| Process::start(test, folder.path(), "repeat")).collect();
    for round in 0..12 {
        let mut line = String::new();
        let mut process = running.remove(0);
        // Each process is killed after a different number of turns, at a random point of the next.
        for _ in 0..=round {
            process.await_line("alone");
        }
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        while process.output.read_line(&mut line).unwrap() > 0 {}
        assert!(!line.contains("together"), "{line}");
        if round < 8 {
            running.push(Process::start(test, folder.path(), "repeat"));
        }
    }
    take_now(&own(folder.path())).unwrap();
}

#[test]
fn stopped_waiters_are_passed_and_keep_their_place() {
    if is_child() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let arrive = || {
        let test = "stopped_waiters_are_passed_and_keep_their_place";
        Process::arrive(test, folder.path(), "hold")
    };
    let mut first = arrive();
    first.await_line("held");
    let (mut second, mut third, mut fourth) = (arrive(), arrive(), arrive());
    kill_process(second.pid(), Signal::STOP).unwrap();
    waitpid(Some(second.pid()), WaitOptions::UNTRACED).unwrap();
    first.go_on();
    third.await_line("held");
    kill_process(second.pid(), Signal::CONT).unwrap();
    waitpid(Some(second.pid()), WaitOptions::CONTINUED).unwrap();
    third.go_on();
    second.await_line("held");
    second.go_on();
    fourth.await_line("held");
    fourth.go_on();
    for mut process in [first, second, third, fourth] {
        assert!(process.child.wait().unwrap().success());
    }
}

#[test]
fn a_waiter_that_notifies_is_passed() {
    let folder = tempfile::tempdir().unwrap();
    let own = &own(folder.path());
    let held = take_now(own).unwrap();
    let (described, description) = mpsc::channel();
    let (go_on, passed) = mpsc::channel();
    // A failure here ends the channel, and with it the other thread.
    thread::scope(move |scope| {
        scope.spawn(move || {
            let notify = &mut |wait: &LockWait| {
                described.send(wait.clone()).unwrap();
                passed.recv().unwrap();
            };
            take_forever(own, notify);
        });
        let wait = description.recv().unwrap();
        let holder = wait.holder.clone().unwrap();
        assert_eq!(holder.pid, std::process::id());
        assert_eq!(wait.to_string(), {
            let (pid, lock) = (holder.pid, wait.lock.display());
            format!("process {pid} ({}) holds {lock}", holder.command.unwrap())
        });
        drop(held);
        // The process is in line and writes to a full terminal. It blocks no other process.
        take_forever(own, &mut |_| {});
        go_on.send(()).unwrap();
    });
}

#[test]
fn a_wait_for_the_process_ahead_names_it_while_the_lock_is_free() {
    let named = |pid, command: &str| Some(Holder { pid, command: Some(command.into()) });
    let wait = |holder, ahead| LockWait { holder, ahead, lock: "/run/lock".into() }.to_string();
    assert_eq!(wait(named(7, "a"), named(8, "b")), "process 7 (a) holds /run/lock");
    assert_eq!(wait(None, named(8, "b")), "process 8 (b) is ahead in line for /run/lock");
    assert_eq!(wait(None, None), "another process holds /run/lock");
}

#[test]
fn bounded_waits_end_and_name_the_holder() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path());
    let held = take_now(&own).unwrap();
    let mut calls = 0;
    let bound = Duration::from_millis(20);
    let error = take_within(&own, bound, &mut || calls += 1).unwrap_err().to_string();
    let holder = format!("process {} (", std::process::id());
    assert!(error.starts_with(&holder) && error.ends_with("own/lock (waited 0.02 s)"), "{error}");
    assert!(calls > 0);
    drop(held);
    take_now(&own).unwrap();
}

#[test]
fn stale_tickets_and_foreign_files_block_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path());
    let queue = own.make_below(QUEUE).unwrap();
    drop(queue.make_fifo("7-1").unwrap());
    drop(queue.make_fifo(&format!("8-{}", std::process::id())).unwrap());
    fs::write(queue.path().join("9-1"), "").unwrap();
    fs::write(queue.path().join("no ticket"), "").unwrap();
    std::os::unix::fs::symlink("7-1", queue.path().join("10-1")).unwrap();
    let held = take_now(&own).unwrap();
    assert_eq!(held._ticket.name.number, 11);
    let mut left = queue.all_names().unwrap();
    left.sort_unstable();
    left.retain(|name| name.contains('-') && !name.starts_with("11-"));
    assert_eq!(left, ["10-1", "9-1"]);
    drop(held);
    let last = queue.make_fifo(&format!("{}-1", u64::MAX)).unwrap();
    let error = take_now(&own).unwrap_err().to_string();
    assert!(error.contains("no number left"), "{error}");
    drop(last);
}

#[test]
fn one_process_holds_the_lock_even_where_the_queue_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path());
    let held = take_now(&own).unwrap();
    fs::remove_dir_all(own.path().join(QUEUE)).unwrap();
    assert!(take_now(&own).is_err());
    drop(held);
    take_now(&own).unwrap();
}

#[test]
fn the_lock_waits_for_a_holder_without_a_ticket() {
    let folder = tempfile::tempdir().unwrap();
    let own = own(folder.path());
    let foreign = own.lock_file(LOCK).unwrap();
    assert!(foreign.try_lock().unwrap());
    let error = take_now(&own).unwrap_err().to_string();
    assert!(error.contains(&format!("process {} (", std::process::id())), "{error}");
    drop(foreign);
    take_now(&own).unwrap();
}

#[test]
fn control_characters_of_a_command_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("7")).unwrap();
    fs::write(folder.path().join("7/comm"), b"a\xff\\\n").unwrap();
    assert_eq!(Holder::named(folder.path(), 7).to_string(), r"process 7 (a\xff\)");
    let holder = Some(Holder { pid: 7, command: Some("a\u{1b}[2J\u{202e}b".into()) });
    let wait = LockWait { holder, ahead: None, lock: "/run/nearside/lock".into() };
    let expected = "process 7 (a\\u{1b}[2J\\u{202e}b) holds /run/nearside/lock";
    assert_eq!(wait.to_string(), expected);
}

#[test]
fn waiters_in_proc_locks_are_no_holders() {
    let locks = "1: POSIX  ADVISORY  WRITE 5 00:1a:42 0 EOF\n\
                 2: FLOCK  ADVISORY  WRITE 7 00:1a:420 0 EOF\n\
                 3: FLOCK  ADVISORY  WRITE 731 00:1a:42 0 EOF\n\
                 3: -> FLOCK  ADVISORY  WRITE 9 00:1a:42 0 EOF\nx\n";
    let holder_in = |locks: &str| holder_in(locks, rustix::fs::makedev(0, 0x1a), 42);
    assert_eq!(holder_in(locks), Some(731));
    assert_eq!(holder_in("3: -> FLOCK  ADVISORY  WRITE 9 00:1a:42 0 EOF\n"), None);
    assert_eq!(holder_in("3: FLOCK  ADVISORY  WRITE -1 00:1a:42 0 EOF\n"), None);
    let others = "1: FLOCK  ADVISORY  WRITE 5 00:1b:42 0 EOF\n";
    assert_eq!(holder_in(&format!("{others}{locks}")), Some(731), "another filesystem's inode 42");
    assert_eq!(holder_in(others), None, "an unrelated process");
}
