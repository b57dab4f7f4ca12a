//! A domain in the guest, whose process fills memory and holds it.

use crate::{
    command::{await_that, nearside, words},
    files::MIB,
    memory::mapping,
};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

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

    /// `command` with the toucher's command behind it, once its memory is filled.
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

    /// Sends it a line and returns its answer.
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

    /// A command that moves its memory to a node, at a rate at which it will take long. Returns
    /// once some memory has arrived, while the command still runs. The command reports as JSON.
    pub fn slow_move(&self, name: &str, to: u32, mib_per_s: u64) -> Child {
        let flags = format!("--nodes {to} --move-memory --rate {mib_per_s}M --format json");
        let mut mover = nearside()
            .args(["set", name])
            .args(words(&flags))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        await_that("memory arrives", || {
            assert_eq!(mover.try_wait().unwrap(), None, "the move has ended");
            self.filled_mib().get(&to).is_some_and(|mib| *mib >= 1)
        });
        mover
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
