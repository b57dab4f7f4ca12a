//! Runs Nearside as a user would.

use rustix::process::Pid;
pub use rustix::process::Signal;
use serde_json::Value;
use std::{
    ffi::OsStr,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The binary under test.
pub fn nearside() -> Command {
    Command::new(
        std::env::var_os("NEARSIDE_BIN")
            .expect("NEARSIDE_BIN names the binary: run the tests with lab/test"),
    )
}

/// Runs nearside to its end as a user without any privilege.
pub fn run_as_nobody<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let become_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command
        .args(become_nobody)
        .arg(nearside().get_program())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs nearside to its end.
pub fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    nearside().args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Words of a command line without quotes.
pub fn words(line: &str) -> std::str::SplitWhitespace<'_> {
    line.split_whitespace()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sends a process a signal. Not every system has a program for that.
pub fn send(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.try_into().unwrap()).unwrap();
    rustix::process::kill_process(process, signal).unwrap();
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The answer of a nearside command with `--format json`.
pub fn json(line: &str) -> Value {
    let output = run(words(line).chain(["--format", "json"]));
    assert!(output.status.success(), "nearside {line}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("nearside {line}: {error}: {}", stdout(&output)))
}

/// Names of the domains whose records count, as `nearside list` shows them.
pub fn domains() -> Vec<String> {
    let list = json("list");
    let domains = list["domains"].as_array().unwrap().iter();
    domains.map(|domain| domain["name"].as_str().unwrap().to_owned()).collect()
}

/// Whether a process is in line for the lock, or holds it: its ticket is named `NUMBER-PID`.
pub fn waits_for_lock(process: u32) -> bool {
    let own = format!("-{process}");
    let Ok(tickets) = std::fs::read_dir("/run/nearside/queue") else { return false };
    tickets.flatten().any(|ticket| ticket.file_name().to_string_lossy().ends_with(&own))
}

/// Waits for a condition that no event announces. A test that waits in vain fails by name instead
/// of hanging its guest.
pub fn await_that(what: &str, is_so: impl FnMut() -> bool) {
    await_or_tell(what, is_so, state_of_nearside);
}

/// [`await_that`] with what a test that waited in vain tells.
pub(crate) fn await_or_tell(
    what: &str,
    mut is_so: impl FnMut() -> bool,
    state: impl FnOnce() -> String,
) {
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() > Duration::from_secs(900) {
            panic!("waited in vain: {what}\n{}", state());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// State of all domains and copies for the output of a failed test: both streams and the exit
/// status of each command. Each has a time limit of a minute, because the daemon or the replicator
/// may hang.
fn state_of_nearside() -> String {
    let ask = |line: &str| {
        let mut command = Command::new("timeout");
        command
            .arg("60")
            .arg(nearside().get_program())
            .args(words(line))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let said = |line: &str| {
        let output = ask(line);
        format!("$ nearside {line}: {}\n{}{}", output.status, stdout(&output), stderr(&output))
    };
    let list: Value =
        serde_json::from_slice(&ask("list --interval 0 --format json").stdout).unwrap_or_default();
    let names = list["domains"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|domain| domain["name"].as_str());
    let each = names.map(|name| {
        said(&format!("why {name}")) + &said(&format!("show {name} --interval 0 --format json"))
    });
    let all = ["list --interval 0", "replicate status", "doctor"].map(said).concat();
    all + &each.collect::<String>()
}
