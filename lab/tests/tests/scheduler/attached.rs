//! The scheduler in a process of its own, and the CPU time that it counts.

use crate::cgroup::{Burnt, Cgroup, program};
use nearside_lab::{await_that, read, words};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The file in which the kernel tells whether a sched_ext scheduler is in charge.
pub(crate) const STATE: &str = "/sys/kernel/sched_ext/state";

/// The scheduler, attached by a process of its own.
pub(crate) struct Attached {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Attached {
    pub(crate) fn start(flags: &str) -> Result<Self, String> {
        let mut child = program("NEARSIDE_ATTACHER")
            .args(words(flags))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, mut stdout) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut text = String::new();
        stdout.read_line(&mut text).unwrap();
        if text.trim() == "attached" {
            return Ok(Self { child, stdin, stdout });
        }
        stdout.read_to_string(&mut text).unwrap();
        child.wait().unwrap();
        Err(text)
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    pub(crate) fn domain(&mut self, group: &Cgroup, nodes: &str, home: u32) {
        assert_eq!(self.ask(&format!("domain {} {nodes} {home}", group.path)), "ok");
    }

    pub(crate) fn statistics(&mut self) -> Value {
        serde_json::from_str(&self.ask("statistics")).unwrap()
    }

    /// CPU time of domains so far, by the scheduler's account: under a sched_ext scheduler 7.3.4
    /// adds time in which a task waited and its CPU idled (`cpu.stat`, the threads' clocks).
    fn used(&mut self, domains: &[&Cgroup]) -> Vec<UsedByNode> {
        let statistics = self.statistics();
        let used = |group: &&Cgroup| {
            let by_node =
                &statistics["domains"][fs::metadata(&group.path).unwrap().ino().to_string()];
            let by_node = by_node.as_object().unwrap().iter();
            UsedByNode(
                by_node.map(|(node, us)| (node.parse().unwrap(), us.as_u64().unwrap())).collect(),
            )
        };
        domains.iter().map(used).collect()
    }

    /// CPUs that domains used on average, for a while.
    fn used_in(&mut self, domains: &[&Cgroup], time: Duration) -> Vec<f64> {
        let (started, before) = (Instant::now(), self.used(domains));
        thread::sleep(time);
        let (ended, after) = (Instant::now(), self.used(domains));
        let passed_us = (ended - started).as_micros() as f64;
        before
            .iter()
            .zip(after)
            .map(|(before, after)| after.since(before).total_us() as f64 / passed_us)
            .collect()
    }

    /// As [`used_in`](Self::used_in), again and again until the result is right: a pause of the
    /// host is charged to the task that runs just then.
    pub(crate) fn used_until(
        &mut self,
        domains: &[&Cgroup],
        time: Duration,
        is_right: impl Fn(&[f64]) -> bool,
    ) {
        let mut seen = vec![];
        for _ in 0..10 {
            let used = self.used_in(domains, time);
            if is_right(&used) {
                return;
            }
            seen.push(used);
        }
        panic!("{seen:?} {}", self.statistics());
    }

    /// The part of a domain's CPU time that it has on a node from now on, for a while.
    pub(crate) fn share_of(&mut self, group: &Cgroup, node: usize) -> f64 {
        let before = &self.used(&[group])[0];
        thread::sleep(Duration::from_millis(500));
        let used = self.used(&[group])[0].since(before);
        // Nothing is no share.
        used.on(node) as f64 / used.total_us().max(1) as f64
    }

    /// Burns in a domain, several times until the burner's and the scheduler's account are right: a
    /// pause of the host is charged to the task that runs just then. Violations of hard affinity
    /// fail at once.
    pub(crate) fn burn_until(
        &mut self,
        group: &Cgroup,
        flags: &str,
        is_right: impl Fn(&Burnt, &UsedByNode) -> bool,
    ) {
        let mut seen = vec![];
        for _ in 0..5 {
            let before = &self.used(&[group])[0];
            let burnt = group.burn(flags).end();
            let used = self.used(&[group])[0].since(before);
            assert_eq!(burnt.violations, 0, "{flags}: {burnt:?}");
            if is_right(&burnt, &used) {
                return;
            }
            eprintln!("{flags}: once more after {burnt:?}");
            seen.push((burnt, used));
        }
        panic!("{flags}: {seen:?} {}", self.statistics());
    }

    pub(crate) fn detach(mut self) {
        assert_eq!(self.ask("exited"), "no");
        let exit = self.ask("detach");
        self.child.wait().unwrap();
        // On a slow host that takes longer than the attacher waits.
        if exit.contains("sched_ext is still") {
            await_that("the stock scheduler is back", || read(STATE) == "disabled");
        } else {
            assert!(exit.contains("unregistered from user space"), "{exit}");
        }
        assert_eq!(read(STATE), "disabled");
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while read(STATE) != "disabled" {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// CPU time of a domain by node, in us.
#[derive(Debug)]
pub(crate) struct UsedByNode(BTreeMap<usize, u64>);

impl UsedByNode {
    pub(crate) fn on(&self, node: usize) -> u64 {
        self.0.get(&node).copied().unwrap_or(0)
    }

    pub(crate) fn total_us(&self) -> u64 {
        self.0.values().sum()
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self(self.0.iter().map(|(&node, us)| (node, us - before.on(node))).collect())
    }
}
