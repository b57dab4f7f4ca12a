//! Cgroups with processes that burn CPU time.

use nearside_lab::{words, write};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdout, Command, Stdio},
};

/// A program of the lab, by the variable that `lab/test` sets.
pub(crate) fn program(name: &str) -> Command {
    Command::new(
        std::env::var_os(name)
            .unwrap_or_else(|| panic!("{name} names the program: run the tests with lab/test")),
    )
}

/// A cgroup with the cpu controller; gone when dropped.
pub(crate) struct Cgroup {
    pub(crate) path: String,
}

impl Cgroup {
    pub(crate) fn new(name: &str) -> Self {
        write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset");
        let path = format!("/sys/fs/cgroup/{name}");
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    /// A group below this one, which has no processes of its own then.
    pub(crate) fn below(&self, name: &str) -> Self {
        self.set("cgroup.subtree_control", "+cpu");
        let path = format!("{}/{name}", self.path);
        fs::create_dir(&path).unwrap();
        Self { path }
    }

    pub(crate) fn set(&self, file: &str, value: &str) {
        write(&format!("{}/{file}", self.path), value);
    }

    /// Starts a burner in it, and waits until its threads run.
    pub(crate) fn burn(&self, flags: &str) -> Burner {
        self.burn_nicely(0, flags)
    }

    pub(crate) fn burn_nicely(&self, nice: i32, flags: &str) -> Burner {
        let procs =
            fs::OpenOptions::new().write(true).open(format!("{}/cgroup.procs", self.path)).unwrap();
        let mut command = program("NEARSIDE_BURNER");
        command.args(words(flags));
        let prepare = move || {
            rustix::process::nice(nice)?;
            (&procs).write_all(b"0")
        };
        // SAFETY: a system call and writing to an open file are allowed between fork and exec.
        unsafe { command.pre_exec(prepare) };
        let mut burner = Burner::spawn(&mut command);
        let mut line = String::new();
        burner.stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        burner
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

pub(crate) struct Burner {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// The report of a burner.
#[derive(Debug)]
pub(crate) struct Burnt {
    pub(crate) by_node_us: Vec<u64>,
    pub(crate) by_cpu_us: Vec<u64>,
    pub(crate) violations: u64,
}

impl Burnt {
    pub(crate) fn total_us(&self) -> u64 {
        self.by_node_us.iter().sum()
    }

    pub(crate) fn share(&self, node: usize) -> f64 {
        self.by_node_us[node] as f64 / self.total_us() as f64
    }
}

impl Burner {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    pub(crate) fn kill(self) {}

    /// The numbers of the threads that burn; the first thread of the process waits for them.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let first = self.child.id();
        let threads = fs::read_dir(format!("/proc/{first}/task")).unwrap();
        let number = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap().parse().unwrap()
        };
        threads.map(number).filter(|&number| number != first).collect()
    }

    pub(crate) fn end(mut self) -> Burnt {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert!(self.child.wait().unwrap().success());
        let value: Value = serde_json::from_str(&line).unwrap();
        let numbers = |name: &str| {
            value[name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
        };
        Burnt {
            by_node_us: numbers("node_us"),
            by_cpu_us: numbers("by_cpu_us"),
            violations: value["violations"].as_u64().unwrap(),
        }
    }
}

/// A test that fails leaves nothing behind that takes CPUs from the next.
impl Drop for Burner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
