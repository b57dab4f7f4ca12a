//! SIGKILL of `nearside run` leaves no claim, at any point. Each point is one at which the start is
//! held up, so that the kill cannot miss it. The remains prove that it did not.

use nearside_lab::{Look, await_that, nearside, read, run, stderr, waits_for_lock, words, write};
use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

const GROUP: &str = "/sys/fs/cgroup/nearside/doomed";
const RECORD: &str = "/run/nearside/domains/doomed.json";

/// The state after a killed start: its last program, and its remains.
/// behind.
#[derive(Debug, PartialEq)]
struct Left {
    program: &'static str,
    group: bool,
    record: bool,
}

fn start(told_to: Stdio) -> Child {
    let mut command = nearside();
    let command =
        command.args(words("run --name doomed --memory 100M --policy strict -- sleep 1000"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(told_to).spawn().unwrap()
}

fn program(child: &Child) -> String {
    read(&format!("/proc/{}/comm", child.id()))
}

fn kill(mut child: Child) -> Left {
    child.kill().unwrap();
    // Its name can be read until it is waited for, and is its last once it is dead.
    await_that("the killed start is dead", || {
        let stat = read(&format!("/proc/{}/stat", child.id()));
        stat.rsplit(')').next().unwrap().starts_with(" Z")
    });
    let program = if program(&child) == "sleep" { "sleep" } else { "nearside" };
    child.wait().unwrap();
    Left { program, group: Path::new(GROUP).exists(), record: Path::new(RECORD).exists() }
}

/// A killed start has no claim, and the next start sweeps up after it.
fn assert_no_claim_is_left() {
    Look::take().assert_nothing_is_promised();
    let next = run(words("run -q --name sweeper --memory 1M -- true"));
    assert!(next.status.success(), "{}", stderr(&next));
    assert!(!Path::new(GROUP).exists() && !Path::new(RECORD).exists());
}

/// A process that holds the lock until its input ends.
fn hold_lock() -> Child {
    let mut flock = Command::new("flock");
    let flock = flock.args(["/run/nearside/lock", "-c", "echo locked; read line"]);
    let mut holder = flock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    holder
}

#[test]
fn while_it_waits_for_the_lock() {
    assert_no_claim_is_left();
    let mut holder = hold_lock();
    let doomed = start(Stdio::null());
    await_that("it waits for the lock", || waits_for_lock(doomed.id()));
    assert_eq!(kill(doomed), Left { program: "nearside", group: false, record: false });
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_no_claim_is_left();
}

/// Stops each process that enters a group below Nearside's, until this is dropped.
struct Frozen;

impl Frozen {
    const FILE: &str = "/sys/fs/cgroup/nearside/cgroup.freeze";

    fn freeze() -> Self {
        write(Self::FILE, "1");
        Self
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        write(Self::FILE, "0");
    }
}

/// `docker pause` and `systemctl freeze` do this to a start that waits in line.
#[test]
fn a_frozen_waiter_holds_up_no_other_start() {
    let group = Path::new("/sys/fs/cgroup/paused");
    fs::create_dir(group).unwrap();
    let mut holder = hold_lock();
    let waiter = start(Stdio::null());
    await_that("it is in line", || waits_for_lock(waiter.id()));
    write(group.join("cgroup.procs").to_str().unwrap(), &waiter.id().to_string());
    write(group.join("cgroup.freeze").to_str().unwrap(), "1");
    let events = group.join("cgroup.events");
    await_that("it is frozen", || {
        fs::read_to_string(&events).is_ok_and(|text| text.contains("frozen 1"))
    });
    drop(holder.stdin.take());
    holder.wait().unwrap();
    let other = run(words("run --name other --memory 1M -- true"));
    assert!(other.status.success(), "{}", stderr(&other));
    kill(waiter);
    await_that("its group is empty", || fs::remove_dir(group).is_ok());
    assert_no_claim_is_left();
}

#[test]
fn between_its_group_and_its_record() {
    assert_no_claim_is_left();
    let frozen = Frozen::freeze();
    let doomed = start(Stdio::null());
    let entered =
        || fs::read_to_string(format!("{GROUP}/cgroup.procs")).is_ok_and(|list| !list.is_empty());
    await_that("it enters its group", entered);
    assert_eq!(kill(doomed), Left { program: "nearside", group: true, record: false });
    drop(frozen);
    assert_no_claim_is_left();
}

#[test]
fn between_its_record_and_its_command() -> io::Result<()> {
    // It prints that it stands in for soft affinity, the last thing before the command, into a full
    // pipe.
    let (mut full, _other_end) = UnixStream::pair()?;
    full.set_nonblocking(true)?;
    while full.write(&[0; 4096]).is_ok() {}
    full.set_nonblocking(false)?;
    let doomed = start(Stdio::from(OwnedFd::from(full)));
    // "1" is write(2), to descriptor 2.
    let call = format!("/proc/{}/syscall", doomed.id());
    await_that("it cannot get rid of its notice", || read(&call).starts_with("1 0x2 "));
    // The claim is in force until it dies.
    assert_eq!(Look::take().names(), ["doomed"]);
    assert_eq!(kill(doomed), Left { program: "nearside", group: true, record: true });
    assert_no_claim_is_left();
    Ok(())
}

#[test]
fn when_it_has_become_its_command() {
    let doomed = start(Stdio::null());
    await_that("the command runs", || program(&doomed) == "sleep");
    assert_eq!(Look::take().names(), ["doomed"]);
    assert_eq!(kill(doomed), Left { program: "sleep", group: true, record: true });
    assert_no_claim_is_left();
}

#[test]
fn at_any_moment_between() {
    let begin = Instant::now();
    let doomed = start(Stdio::null());
    await_that("the command runs", || program(&doomed) == "sleep");
    let whole = begin.elapsed();
    kill(doomed);
    for step in 0..16 {
        let doomed = start(Stdio::null());
        thread::sleep(whole * step / 14);
        let left = kill(doomed);
        Look::take().assert_nothing_is_promised();
        // The next start of the same name finds the remains that the sweep leaves.
        assert!(left.group || !left.record, "{left:?}");
    }
    assert_no_claim_is_left();
}
