//! SIGKILL of the replicator and of the daemon at random instants of a file's life.

use super::{
    automatic::{on_node_0, runs_from},
    helper::{Python, Replicator, add, await_state, plugin, status},
};
use nearside_lab::{await_that, daemon::Daemon, json, run, words};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

#[test]
fn files_open_run_and_can_be_written_after_six_kills() {
    kill_often(6);
}

/// The copies have left the namespace of a package manager, and what runs there keeps them mapped.
#[test]
fn a_kill_while_a_package_manager_runs_leaves_no_process_on_a_copy() {
    let path = plugin("killed-upgrade.so");
    let mut replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("killed-upgrade", 1);
    domain.exec(&format!(
        "import mmap, os, subprocess\nfile = open('{path}', 'rb', 0)\n\
         mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)"
    ));
    let original = fs::metadata(&path).unwrap().dev().to_string();
    let shown = format!("os.stat('{path}').st_dev");
    assert_ne!(domain.eval(&shown), original);
    // It reads its input to the end.
    domain.exec("dpkg = subprocess.Popen(['dpkg', '--set-selections'], stdin=subprocess.PIPE)");
    await_that("the copy has left", || domain.eval(&shown) == original);
    assert_ne!(domain.eval("os.fstat(file.fileno()).st_dev"), original);
    replicator.kill();
    fs::write(&path, "000001").unwrap();
    replicator.succeed();
    assert_eq!(
        domain.eval("(mapped[:6], os.pread(file.fileno(), 6, 0))"),
        "(b'000001', b'000001')"
    );
    domain.exec("dpkg.stdin.close()\ndpkg.wait()");
    replicator.stop();
}

/// A process that runs from a copy of a file that was renamed over goes on with the former text.
#[test]
fn a_kill_after_a_file_was_replaced_leaves_those_who_use_the_former_one_alone() {
    let path = plugin("killed-replaced.so");
    let mut replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("killed-replaced", 1);
    domain.exec(&format!(
        "import mmap, os\nfile = open('{path}', 'rb', 0)\n\
         mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nformer = mapped[:]"
    ));
    let original = fs::metadata(&path).unwrap().dev().to_string();
    assert_ne!(domain.eval("os.fstat(file.fileno()).st_dev"), original);
    let new = format!("{path}.new");
    fs::write(&new, [7; 1 << 16]).unwrap();
    fs::rename(&new, &path).unwrap();
    await_state(&path, "replicated");
    assert_eq!(domain.eval("mapped[:] == former"), "True");
    replicator.kill();
    replicator.succeed();
    assert_eq!(domain.eval("mapped[:] == former"), "True");
    assert_eq!(domain.eval(&format!("open('{path}', 'rb').read(1)")), r"b'\x07'");
    replicator.stop();
}

/// Numbers that look random and are the same in each run (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Text of two homes. The daemon asks for copies of it.
struct Shared {
    path: String,
    domains: [(u32, Python); 2],
}

impl Shared {
    fn start() -> Self {
        let path = on_node_0("killed-shared.so");
        let domains = [1, 3].map(|node| {
            let mut python = Python::at_home(&format!("killed{node}"), node);
            python.load(&[], &path);
            (node, python)
        });
        Self { path, domains }
    }

    fn await_copies(&mut self) {
        let Self { path, domains } = self;
        await_that("both homes run from copies", || {
            domains.iter_mut().all(|(node, python)| runs_from(python, path, *node))
        });
        assert_eq!(status(path).unwrap()["automatic"], true);
    }

    /// A writer that changes nothing makes the copies go, and return.
    fn open_for_writing(&self) {
        fs::File::options().write(true).open(&self.path).unwrap();
    }

    /// Both processes give this answer.
    fn answer(&mut self, expression: &str, expected: &str, when: &str) {
        for (_, python) in &mut self.domains {
            assert_eq!(python.eval(expression), expected, "{when}");
        }
    }
}

/// Acts as an operator and programs do, again and again, until it is told to stop.
fn live(path: &str, domain: u32, shared: &Shared, ended: &AtomicBool) {
    let mut number = 0;
    while !ended.load(Ordering::Relaxed) {
        // A helper that is killed lets some of these fail.
        let _ = run(words(&format!("replicate add --no-wait {path}")));
        let _ = run(words(&format!("replicate attach {domain} --node 2")));
        fs::write(path, format!("{number:06}")).unwrap();
        if number % 3 == 2 {
            let _ = run(words(&format!("replicate remove {path}")));
            shared.open_for_writing();
        }
        number += 1;
    }
}

fn daemon() -> Daemon {
    Daemon::start("scheduler = \"off\"\nreplicate_text = true")
}

fn records() -> Vec<serde_json::Value> {
    let shown = ["killed1", "killed3"].map(|name| json(&format!("show {name} --interval 0")));
    shown.iter().flat_map(|shown| [shown["home"].clone(), shown["claim"].clone()]).collect()
}

/// Kills the replicator, the daemon or both.
pub(crate) fn kill_often(kills: u32) {
    let path = plugin("killed-often.so");
    let program = "/tmp/killed-often";
    fs::copy(fs::canonicalize("/usr/bin/true").unwrap(), program).unwrap();
    let mut domain = Python::in_namespace(2);
    domain.load(&[], &path);
    // Domains that start beside a replicator have namespaces of their own.
    let (mut daemon, mut replicator) = (Some(daemon()), Replicator::start(""));
    let mut shared = Shared::start();
    let before = records();
    assert!(before.iter().all(serde_json::Value::is_object), "{before:?}");
    let mut random = Random(7);
    for kill in 0..kills {
        // In the other half, the kill may come while the copies are being made.
        if random.below(2) == 0 {
            shared.await_copies();
        }
        let ended = AtomicBool::new(false);
        let killed = random.below(3);
        let (kills_replicator, kills_daemon) = (killed != 1, killed != 0);
        thread::scope(|scope| {
            add("", &[program.to_owned()], "replicated");
            scope.spawn(|| live(&path, domain.child.id(), &shared, &ended));
            // The moment is to be random, so there is no event to wait for.
            thread::sleep(Duration::from_millis(random.below(1_500)));
            if kills_daemon {
                // Dropping it sends SIGKILL.
                daemon = None;
            }
            if kills_replicator {
                replicator.kill();
            }
            ended.store(true, Ordering::Relaxed);
        });
        // Without a helper all is as on a host that never had one.
        let content = format!("{kill:06}");
        fs::write(&path, &content).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        assert!(Command::new(program).status().unwrap().success());
        shared.open_for_writing();
        let when = format!("kill {kill}");
        let ran = format!("__import__('subprocess').run('{program}').returncode");
        assert_eq!(domain.eval(&ran), "0", "{when}");
        shared.answer(&ran, "0", &when);
        shared.domains.iter_mut().for_each(|(_, python)| python.load(&[], &shared.path));
        if kills_replicator {
            replicator.succeed();
        }
        let (read, expected) = (format!("open('{path}', 'rb').read(6)"), format!("b'{content}'"));
        assert_eq!(domain.eval(&read), expected, "{when}");
        shared.answer(&read, &expected, &when);
        let mounts = "open('/proc/self/mountinfo').read().count('nearside-text')";
        if kills_replicator {
            assert_eq!(domain.eval(mounts), "0", "{when}");
        }
        // A daemon that lives has the next replicator make copies.
        if kills_replicator && kills_daemon {
            shared.answer(mounts, "0", &when);
        }
        if kills_daemon {
            daemon = Some(self::daemon());
        }
        assert_eq!(records(), before, "{when}");
    }
    shared.await_copies();
    add("", std::slice::from_ref(&path), "replicated");
    await_state(&path, "replicated");
    replicator.stop();
    if let Some(daemon) = daemon {
        daemon.stop();
    }
}
