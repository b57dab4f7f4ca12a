//! The replicator, domains that run from its copies, and where their text lies.

use nearside_lab::{Signal, await_that, nearside, run, send, stderr, words};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

const SOCKET: &str = "/run/nearside-replicas/socket";
pub(crate) const PYTHON: &str = "/usr/bin/python3.11";

/// There is one replicator a host.
static ONE: Mutex<()> = Mutex::new(());

/// A replicator that answers. Dropping this kills it.
pub(crate) struct Replicator {
    pub(crate) child: Child,
    /// Its log.
    said: Arc<Mutex<String>>,
    /// Held until it has ended.
    one: Option<MutexGuard<'static, ()>>,
}

impl Replicator {
    pub(crate) fn start(flags: &str) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut replicator = Self::again(flags);
        replicator.one = Some(one);
        replicator
    }

    /// The next one of a test that has killed one.
    pub(crate) fn again(flags: &str) -> Self {
        Self::spawn_as(&mut nearside(), flags)
    }

    /// Starts the next one in place of this one, which was killed.
    pub(crate) fn succeed(&mut self) {
        let mut next = Self::again("");
        std::mem::swap(&mut self.child, &mut next.child);
        std::mem::swap(&mut self.said, &mut next.said);
    }

    /// One without this capability, as setpriv(1) names it.
    pub(crate) fn without(capability: &str) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("setpriv");
        let without = format!("-{capability}");
        command.args(["--bounding-set", &without]).arg(nearside().get_program());
        let mut replicator = Self::spawn_as(&mut command, "");
        replicator.one = Some(one);
        replicator
    }

    fn spawn_as(command: &mut Command, flags: &str) -> Self {
        let command = command.arg("replicator").args(words(flags)).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        // Where it may do less than elsewhere it says so first.
        let mut before = String::new();
        while !before.contains("answers") {
            assert_ne!(said.read_line(&mut before).unwrap(), 0, "{before}");
        }
        // Later lines go to the log of the test, too.
        let log = Arc::<Mutex<String>>::default();
        let keep = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                eprintln!("{line}");
                keep.lock().unwrap_or_else(PoisonError::into_inner).push_str(&(line + "\n"));
            }
        });
        Self { child, said: log, one: None }
    }

    /// Its log since it answers.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The process that exchanges what others map.
    pub(crate) fn exchanger(&self) -> u32 {
        let parent = format!("PPid:\t{}\n", self.child.id());
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let mut processes = numbers.filter_map(|it| it.file_name().to_str()?.parse().ok());
        let is_it = |process: &u32| {
            let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}"));
            read("status").is_ok_and(|it| it.contains(&parent))
                && read("cmdline").is_ok_and(|it| it.contains("replicator-exchange"))
        };
        processes.find(is_it).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn stop(mut self) {
        send(self.child.id(), Signal::TERM);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        assert!(!fs::exists(SOCKET).unwrap());
    }
}

impl Drop for Replicator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number of nodes.
pub(crate) fn nodes() -> u32 {
    let names = fs::read_dir("/sys/devices/system/node").unwrap().flatten();
    let names = names.filter_map(|it| it.file_name().into_string().ok());
    let nodes = names.filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    nodes.max().map_or(1, |last| last + 1)
}

/// Adds files, and waits until each has the state.
pub(crate) fn add(flags: &str, files: &[String], state: &str) {
    let output =
        run(words("replicate add").chain(words(flags)).map(str::to_owned).chain(files.to_vec()));
    assert!(output.status.success(), "{}", stderr(&output));
    for file in files {
        await_state(file, state);
    }
}

pub(crate) fn await_state(file: &str, state: &str) {
    await_that(&format!("{file} is {state}"), || {
        status(file).is_some_and(|it| it["state"] == state)
    });
}

/// Fills a file with bytes of 7, whose pages in memory lie on all nodes alike.
pub(crate) fn write_on_all_nodes(path: &str, bytes: u64) {
    let write = format!("open('{path}', 'wb').write(bytes([7]) * {bytes})");
    let spread = ["--interleave=all", PYTHON, "-c", &write];
    assert!(Command::new("numactl").args(spread).status().unwrap().success());
}

/// The lab's overlay of /usr is mounted over its lower layer, so a file in that layer alone has no
/// copies. A change of its owner, to the same one, brings it to the upper layer.
pub(crate) fn bring_to_the_upper_layer(files: &[String]) {
    for file in files {
        let owner = fs::metadata(file).unwrap().uid();
        std::os::unix::fs::chown(file, Some(owner), None).unwrap();
    }
}

/// The file's report, if it has one.
pub(crate) fn status(file: &str) -> Option<Value> {
    let report = nearside_lab::json("replicate status");
    report["files"].as_array().unwrap().iter().find(|it| it["path"] == file).cloned()
}

/// A Python process that evaluates lines. It ends when this is dropped.
pub(crate) struct Python {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

pub(crate) const LOOP: &str = "import sys
for line in sys.stdin:
    try: print(repr(eval(line)), flush=True)
    except Exception as error: print(repr(error), flush=True)";

impl Python {
    /// In a domain of its own at home on a node.
    pub(crate) fn at_home(name: &str, node: u32) -> Self {
        let flags = format!("run --quiet --name {name} --nodes {node} --memory 40M --");
        let command = &mut nearside();
        Self::spawn(command.args(words(&flags)).args([PYTHON, "-S", "-c", LOOP]))
    }

    /// On a node of the host, without Nearside.
    pub(crate) fn plain(node: u32) -> Self {
        let cpus = format!("{}-{}", 2 * node, 2 * node + 1);
        let command = &mut Command::new("taskset");
        Self::spawn(command.args(["-c", &cpus, PYTHON, "-S", "-c", LOOP]))
    }

    /// On a node of the host, in a mount namespace of its own.
    pub(crate) fn in_namespace(node: u32) -> Self {
        Self::unshared(node, "private")
    }

    /// .. with this propagation of mounts, as unshare(1) has it.
    pub(crate) fn unshared(node: u32, propagation: &str) -> Self {
        let cpus = format!("{}-{}", 2 * node, 2 * node + 1);
        let command = &mut Command::new("taskset");
        let command = command.args(["-c", &cpus, "unshare", "--mount", "--propagation"]);
        let command = command.arg(propagation);
        Self::spawn(command.args([PYTHON, "-S", "-c", LOOP]))
    }

    /// In a domain, in a mount namespace that is made from the domain's.
    pub(crate) fn at_home_in_namespace(name: &str, node: u32) -> Self {
        let flags = format!("run --quiet --name {name} --nodes {node} --memory 40M --");
        let command = &mut nearside();
        let command = command.args(words(&flags)).args(["unshare", "--mount"]);
        Self::spawn(command.args([PYTHON, "-S", "-c", LOOP]))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut python = Self { child, stdin, stdout };
        assert_eq!(python.eval("1 + 1"), "2");
        python
    }

    pub(crate) fn eval(&mut self, expression: &str) -> String {
        self.ask(expression);
        self.answer()
    }

    /// Asks without waiting for the answer.
    pub(crate) fn ask(&mut self, expression: &str) {
        writeln!(self.stdin, "{expression}").unwrap();
    }

    /// The answer to the oldest question without one.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Executes statements.
    pub(crate) fn exec(&mut self, statements: &str) {
        // Rust's escapes are Python's, too, for this text.
        assert_eq!(self.eval(&format!("exec({statements:?}, globals())")), "None");
    }

    /// Imports these modules, and calls a function of a plugin.
    pub(crate) fn load(&mut self, modules: &[&str], plugin: &str) {
        for module in modules {
            let imported = self.eval(&format!("bool(__import__('{module}'))"));
            assert_eq!(imported, "True", "{module}");
        }
        assert_eq!(
            self.eval(&format!("__import__('ctypes').CDLL('{plugin}').crc32(0, 0, 0)")),
            "0"
        );
    }

    /// Pages of its executable mappings by node, and the paths of these mappings.
    pub(crate) fn text(&self) -> (BTreeMap<u32, u64>, Vec<String>) {
        self.text_of("")
    }

    /// The same for paths that end so.
    pub(crate) fn text_of(&self, end: &str) -> (BTreeMap<u32, u64>, Vec<String>) {
        text_of(self.child.id(), end)
    }
}

/// Pages of the executable mappings of a process by node, and the paths of these mappings, which
/// end so.
pub(crate) fn text_of(process: u32, end: &str) -> (BTreeMap<u32, u64>, Vec<String>) {
    let read = |file| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
    let (maps, numa_maps) = (read("maps"), read("numa_maps"));
    let (mut pages, mut paths) = (BTreeMap::new(), Vec::new());
    for line in maps.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (Some(path), "r-xp") = (fields.get(5), fields[1]) else { continue };
        if !path.starts_with('/') || !path.ends_with(end) {
            continue;
        }
        paths.push((*path).to_owned());
        let start = fields[0].split_once('-').unwrap().0;
        let start = start.trim_start_matches('0');
        let is_it = |line: &&str| line.split(' ').next().unwrap().trim_start_matches('0') == start;
        let Some(line) = numa_maps.lines().find(is_it) else { continue };
        for (node, count) in nodes_of(line) {
            *pages.entry(node).or_default() += count;
        }
    }
    (pages, paths)
}

/// Pages of all mappings of a file in a process, by node.
pub(crate) fn pages_of(process: u32, path: &str) -> BTreeMap<u32, u64> {
    let numa_maps = fs::read_to_string(format!("/proc/{process}/numa_maps")).unwrap();
    let file = format!(" file={path}");
    let mut pages = BTreeMap::new();
    let is_it = |line: &&str| line.contains(&format!("{file} ")) || line.ends_with(&file);
    for (node, count) in numa_maps.lines().filter(is_it).flat_map(nodes_of) {
        *pages.entry(node).or_default() += count;
    }
    pages
}

/// Pages by node, in a line of `numa_maps`.
fn nodes_of(line: &str) -> impl Iterator<Item = (u32, u64)> {
    let words = line.split(' ').filter_map(|word| word.strip_prefix('N')?.split_once('='));
    words.map(|(node, count)| (node.parse().unwrap(), count.parse().unwrap()))
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A plugin of one's own: a file with a name of its own on a file system that has leases.
pub(crate) fn plugin(name: &str) -> String {
    let path = format!("/tmp/{name}");
    let library = fs::canonicalize("/usr/lib/x86_64-linux-gnu/libz.so.1").unwrap();
    fs::copy(library, &path).unwrap();
    path
}

/// The libraries that a Python process maps, without links.
pub(crate) fn libraries_of(python: &Python) -> Vec<String> {
    let (_, mut paths) = python.text();
    paths.sort();
    paths.dedup();
    let real = |path: &String| fs::canonicalize(path).unwrap();
    paths.iter().map(real).map(|path: PathBuf| path.to_str().unwrap().to_owned()).collect()
}
