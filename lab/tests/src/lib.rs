//! What the tests in the lab share: running Nearside as a user would, and looking at the kernel's own files to see
//! what came of it.
//!
//! The readers here are on purpose not those of the product.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use serde_json::Value;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
};

pub const MIB: u64 = 1 << 20;

/// The binary under test.
pub fn nearside() -> Command {
    Command::new(std::env::var_os("NEARSIDE_BIN").expect("NEARSIDE_BIN names the binary: run the tests with lab/test"))
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
    std::env::var("NEARSIDE_TOUCHER").expect("NEARSIDE_TOUCHER names the toucher: run the tests with lab/test")
}

/// A domain that has filled its memory and holds it; it ends when this is dropped.
#[derive(Debug)]
pub struct Domain {
    pub child: Child,
    pub address: String,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Domain {
    /// `nearside run FLAGS -- toucher ARGUMENTS`, once its memory is filled.
    pub fn start(flags: &str, toucher_arguments: &str) -> Self {
        let mut child = nearside()
            .arg("run")
            .args(words(flags))
            .arg("--")
            .arg(toucher())
            .args(words(toucher_arguments))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready ").unwrap_or_else(|| panic!("run {flags}: not ready: {line:?}"));
        let (address, stdin) = (address.to_owned(), child.stdin.take());
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

    /// MiB by node of the memory it filled. The kernel may have merged a neighbouring page or two into the mapping, so
    /// parts of a MiB are dropped; a node with a single page is still there, with 0.
    pub fn filled_mib(&self) -> BTreeMap<u32, u64> {
        mapping(self.process(), &self.address).1.into_iter().map(|(node, bytes)| (node, bytes / MIB)).collect()
    }

    /// The memory policy of the memory it filled, in the kernel's words.
    pub fn policy(&self) -> String {
        mapping(self.process(), &self.address).0
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

/// Policy and bytes by node of the mapping of a process that begins at (or, where the kernel merged it with the one
/// before, holds) an address, from `/proc/PID/numa_maps`.
pub fn mapping(process: u32, address: &str) -> (String, BTreeMap<u32, u64>) {
    let wanted = u64::from_str_radix(address, 16).unwrap();
    let text = fs::read_to_string(format!("/proc/{process}/numa_maps")).unwrap();
    let begins = |line: &&str| line.split(' ').next().and_then(|a| u64::from_str_radix(a, 16).ok()).unwrap_or(u64::MAX);
    let line = text.lines().filter(|line| begins(line) <= wanted).max_by_key(begins).expect("the mapping");
    let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
    let page_bytes = field("kernelpagesize_kB=").unwrap_or(4) * 1024;
    let counts = line.split(' ').filter_map(|word| {
        let (node, count) = word.strip_prefix('N')?.split_once('=')?;
        Some((node.parse().ok()?, count.parse::<u64>().ok()? * page_bytes))
    });
    // "prefer (many):2-3" and "weighted interleave:0-1" are two words.
    let is_policy = |word: &&str| !word.contains('=') && !["huge", "heap", "stack"].contains(word);
    let policy: Vec<_> = line.split(' ').skip(1).take_while(is_policy).collect();
    (policy.join(" "), counts.collect())
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

/// Bytes that can still be promised on each node, as `nearside stat` shows them.
pub fn unclaimed_bytes() -> Vec<u64> {
    let stat = json("stat");
    stat["nodes"].as_array().unwrap().iter().map(|node| node["unclaimed_bytes"].as_u64().unwrap()).collect()
}
