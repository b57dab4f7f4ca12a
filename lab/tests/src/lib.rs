//! What the tests in the lab share: running Nearside as a user would, and looking at the kernel's
//! own files to see what came of it.
//!
//! The readers here are on purpose not those of the product.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

pub mod daemon;
mod look;
mod memory;
mod starts;

pub use look::{Look, by_node};
pub use memory::{Mapping, Own, charged, mapping, node_memory, own_memory};
pub use starts::{
    Levelling, assert_refused, assert_the_kernel_has_what_is_promised, end, go_on, parallel_starts,
};

use rustix::process::Pid;
pub use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

pub const MIB: u64 = 1 << 20;

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

/// What a nearside command answers with `--format json`.
pub fn json(line: &str) -> Value {
    let output = run(words(line).chain(["--format", "json"]));
    assert!(output.status.success(), "nearside {line}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("nearside {line}: {error}: {}", stdout(&output)))
}

/// The program that fills memory, next to the binary under test.
pub fn toucher() -> String {
    std::env::var("NEARSIDE_TOUCHER")
        .expect("NEARSIDE_TOUCHER names the toucher: run the tests with lab/test")
}

/// A domain that has filled its memory and holds it; it ends when this is dropped.
#[derive(Debug)]
pub struct Domain {
    pub child: Child,
    pub address: u64,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Domain {
    /// `nearside run FLAGS -- toucher ARGUMENTS`, once its memory is filled.
    pub fn start(flags: &str, toucher_arguments: &str) -> Self {
        Self::wrapped(nearside().arg("run").args(words(flags)).arg("--"), toucher_arguments)
    }

    /// One more process of a domain: `nearside exec NAME -- toucher ARGUMENTS`, once its memory is
    /// filled.
    pub fn join(name: &str, toucher_arguments: &str) -> Self {
        Self::wrapped(nearside().args(["exec", name, "--"]), toucher_arguments)
    }

    /// What comes of a command to which the toucher's is added, once its memory is filled.
    pub fn wrapped(command: &mut Command, toucher_arguments: &str) -> Self {
        let command = command.arg(toucher()).args(words(toucher_arguments));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("ready ")
            .unwrap_or_else(|| panic!("{command:?}: not ready: {line:?}"));
        let (address, stdin) = (u64::from_str_radix(address, 16).unwrap(), child.stdin.take());
        Self { child, address, stdin, stdout }
    }

    /// Sends it a line and gives its answer.
    pub fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Bytes by node of the mapping it filled.
    pub fn filled(&self) -> BTreeMap<u32, u64> {
        mapping(self.process(), self.address).bytes
    }

    /// MiB by node of the memory it filled. The kernel may have merged a neighbouring page or two
    /// into the mapping, so parts of a MiB are dropped; a node with a single page is still there,
    /// with 0.
    pub fn filled_mib(&self) -> BTreeMap<u32, u64> {
        self.filled().into_iter().map(|(node, bytes)| (node, bytes / MIB)).collect()
    }

    /// The memory policy of the memory it filled, in the kernel's words.
    pub fn policy(&self) -> String {
        mapping(self.process(), self.address).policy
    }

    pub fn end(mut self) {
        drop(self.stdin.take());
        self.child.wait().unwrap();
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of `NAME:` in `/proc/PID/status`.
pub fn status(process: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("{name} in status")).trim().to_owned()
}

/// A file of the kernel's.
pub fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

pub fn write(path: &str, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// Names of the domains that count, as `nearside list` sees them.
pub fn domains() -> Vec<String> {
    let list = json("list");
    let domains = list["domains"].as_array().unwrap().iter();
    domains.map(|domain| domain["name"].as_str().unwrap().to_owned()).collect()
}

/// Bytes that can still be promised on each node, as `nearside stat` shows them. By the next look
/// some MiB may have come or gone.
pub fn unclaimed_bytes() -> Vec<u64> {
    Look::take().nodes("unclaimed_bytes")
}

/// Waits for what no event tells of. A test that waits in vain fails by name instead of hanging its
/// guest.
pub fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(
            begin.elapsed() < Duration::from_secs(900),
            "waited in vain: {what}\n{}",
            what_nearside_says()
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// For whoever has nothing but a failed test's output: what each command says on both channels and
/// how it ends, within a minute each, for it may be the daemon that hangs.
fn what_nearside_says() -> String {
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
    said("list --interval 0") + &each.collect::<String>()
}

/// Sets aside huge pages of 2 MiB on a node.
pub fn huge_pages(node: u32, count: u64) {
    let pool =
        format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages");
    // Free memory in smaller pieces does not serve.
    write("/proc/sys/vm/compact_memory", "1");
    write(&pool, &count.to_string());
    assert_eq!(read(&pool), count.to_string(), "huge pages on node {node}");
}
