//! Processes to exchange files in: their programs, replicas and mounts. Reads `/proc` without the
//! crate's own readers.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use nearside_replicas::{
    FileId,
    remap::{self, Exchange, Process, Refusal, RemapError, Report},
};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// True if the test can run; says why not otherwise.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: needs root, for mount namespaces and tracing");
    }
    is_root
}

/// True if a program is installed; says so otherwise.
pub fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {text}{errors}");
    text
}

/// Attaches, however long a busy machine keeps a thread of the process from stopping.
#[allow(dead_code, reason = "each test uses a part of this")]
pub fn attach(process: &Process, exchanges: &[Exchange]) -> Result<Report, RemapError> {
    loop {
        match remap::attach(process, exchanges) {
            Err(RemapError::Refused { why: Refusal::DoesNotStop { .. }, .. }) => {}
            attached => return attached,
        }
    }
}

/// A folder with a library and the programs that use it, and one on tmpfs for replicas.
pub struct Stage {
    programs: tempfile::TempDir,
    replicas: tempfile::TempDir,
}

impl Stage {
    pub fn new() -> Self {
        let stage = Self {
            programs: tempfile::tempdir().unwrap(),
            replicas: tempfile::tempdir_in("/dev/shm").unwrap(),
        };
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/victims");
        let library = stage.path("libvictim.so");
        let source = |name: &str| sources.join(name).to_str().unwrap().to_owned();
        let cc = |arguments: &[&str]| run("cc", arguments);
        let library = library.to_str().unwrap();
        cc(&["-O1", "-g", "-shared", "-fPIC", "-o", library, &source("library.c")]);
        for name in ["busy", "odd"] {
            let program = stage.path(name);
            let source = source(&format!("{name}.c"));
            cc(&["-O1", "-g", "-pthread", "-o", program.to_str().unwrap(), &source, library]);
        }
        stage
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.programs.path().join(name)
    }

    /// The paths of a program and its library.
    pub fn files(&self, program: &str) -> Vec<PathBuf> {
        vec![self.path(program), self.path("libvictim.so")]
    }

    /// Starts a program in a mount namespace of its own, and waits until it is ready.
    pub fn start(&self, program: &str, arguments: &[&str]) -> Victim {
        Victim::start(self.path(program).to_str().unwrap(), arguments)
    }

    /// Exchanges to the replicas of files and back, without mounts: each file is opened by a path
    /// of its own.
    pub fn there_and_back(&self, files: &[PathBuf]) -> [Vec<Exchange>; 2] {
        let there = files.iter().map(|file| {
            let replica = self.replica(file);
            let (from, to) = (FileId::at(file).unwrap(), FileId::at(&replica).unwrap());
            Exchange { path: replica, from, to }
        });
        let there: Vec<Exchange> = there.collect();
        let back = there.iter().zip(files);
        let back = back.map(|(exchange, file)| Exchange {
            path: file.clone(),
            from: exchange.to,
            to: exchange.from,
        });
        let back = back.collect();
        [there, back]
    }

    /// A copy of a file on tmpfs.
    pub fn replica(&self, file: &Path) -> PathBuf {
        let flat = file.to_str().unwrap().replace('/', "%");
        let replica = self.replicas.path().join(flat);
        if !replica.exists() {
            fs::copy(file, &replica).unwrap();
        }
        replica
    }
}

/// A running program, killed when it is dropped.
pub struct Victim {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Victim {
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", program])
            .args(arguments)
            // As a service or a container has one.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Domains are in process groups of their own, too.
            .process_group(0)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { input: child.stdin.take(), child, output }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn process(&self) -> Process {
        Process::open(self.pid()).unwrap()
    }

    fn in_namespace(&self, command: &[&str]) {
        let target = self.pid().to_string();
        let mut arguments = vec!["--target", &target, "--mount"];
        arguments.extend(command);
        run("nsenter", &arguments);
    }

    /// Mounts replicas over the files, and returns the exchanges to attach with.
    pub fn mount(&self, stage: &Stage, files: &[PathBuf]) -> Vec<Exchange> {
        let mut script = String::from("set -e\n");
        let exchange = |file: &PathBuf| {
            let replica = stage.replica(file);
            let (from, to) = (FileId::at(file).unwrap(), FileId::at(&replica).unwrap());
            let (source, target) = (replica.display(), file.display());
            script += &format!("mount --bind {source} {target}\n");
            script += &format!("mount -o remount,bind,ro {target}\n");
            Exchange { path: file.clone(), from, to }
        };
        let exchanges = files.iter().map(exchange).collect();
        self.in_namespace(&["sh", "-c", &script]);
        exchanges
    }

    pub fn remount(&self, file: &Path, options: &str) {
        let options = format!("remount,bind,{options}");
        self.in_namespace(&["mount", "-o", &options, file.to_str().unwrap()]);
    }

    /// Unmounts the replicas, and returns the exchanges to detach with.
    pub fn unmount(&self, exchanges: &[Exchange]) -> Vec<Exchange> {
        let paths = exchanges.iter().map(|exchange| exchange.path.to_str().unwrap());
        let umount: Vec<&str> = ["umount", "--lazy"].into_iter().chain(paths).collect();
        self.in_namespace(&umount);
        let back = |attached: &Exchange| Exchange {
            path: attached.path.clone(),
            from: attached.to,
            to: attached.from,
        };
        exchanges.iter().map(back).collect()
    }

    /// The lines of `/proc/PID/maps` that show a path.
    pub fn lines(&self, file: &Path) -> Vec<Line> {
        lines(self.pid(), file)
    }

    /// A value of `/proc/PID/status`.
    pub fn status(&self, name: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        value.trim_start_matches(':').trim().to_owned()
    }

    /// Ends the standard input, and returns the exit code and the last words.
    pub fn finish(mut self) -> (Option<i32>, String) {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub addresses: String,
    pub protection: String,
    pub inode: u64,
    pub name: String,
}

pub fn lines(pid: i32, file: &Path) -> Vec<Line> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(5..)?.join(" ");
        let (addresses, protection) = (words[0].to_owned(), words[1].to_owned());
        let inode = words[4].parse().unwrap();
        name.starts_with(file.to_str()?).then_some(Line { addresses, protection, inode, name })
    };
    text.lines().filter_map(line).collect()
}

pub fn inode(file: &Path) -> u64 {
    fs::metadata(file).unwrap().ino()
}
