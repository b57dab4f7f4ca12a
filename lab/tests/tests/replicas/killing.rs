//! SIGKILL of the replicator and of the daemon at random instants of a file's life.

use super::helper::{Python, Replicator, add, await_state, plugin};
use nearside_lab::{daemon::Daemon, json, run, words};
use std::{
    fs,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

#[test]
fn files_open_run_and_can_be_written_after_six_kills() {
    kill_often(6);
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

/// Acts as an operator and programs do, again and again, until it is told to stop.
fn live(path: &str, domain: u32, ended: &AtomicBool) {
    let mut number = 0;
    while !ended.load(Ordering::Relaxed) {
        // A helper that is killed lets some of these fail.
        let _ = run(words(&format!("replicate add {path}")));
        let _ = run(words(&format!("replicate attach {domain} --node 2")));
        fs::write(path, format!("{number:06}")).unwrap();
        if number % 3 == 2 {
            let _ = run(words(&format!("replicate remove {path}")));
        }
        number += 1;
    }
}

fn daemon() -> Daemon {
    Daemon::start("scheduler = \"off\"")
}

/// Kills the replicator, the daemon or both.
pub(crate) fn kill_often(kills: u32) {
    let path = plugin("killed-often.so");
    let program = "/tmp/killed-often";
    fs::copy(fs::canonicalize("/usr/bin/true").unwrap(), program).unwrap();
    let mut domain = Python::in_namespace(2);
    domain.load(&[], &path);
    let mut at_home = Python::at_home("killed", 1);
    let record = || {
        let shown = json("show killed --interval 0");
        [shown["home"].clone(), shown["claim"].clone()]
    };
    let (mut daemon, mut replicator) = (Some(daemon()), Replicator::start(""));
    let before = record();
    assert!(before.iter().all(serde_json::Value::is_object), "{before:?}");
    let mut random = Random(7);
    for kill in 0..kills {
        let ended = AtomicBool::new(false);
        let killed = random.below(3);
        let (kills_replicator, kills_daemon) = (killed != 1, killed != 0);
        thread::scope(|scope| {
            add("", &[program.to_owned()], "replicated");
            scope.spawn(|| live(&path, domain.child.id(), &ended));
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
        let ran = format!("__import__('subprocess').run('{program}').returncode");
        let read = format!("open('{path}', 'rb').read(6)");
        for python in [&mut domain, &mut at_home] {
            assert_eq!(python.eval(&ran), "0", "{kill}");
        }
        if kills_replicator {
            replicator.succeed();
        }
        for python in [&mut domain, &mut at_home] {
            assert_eq!(python.eval(&read), format!("b'{content}'"), "{kill}");
        }
        if kills_replicator {
            let mounts = "open('/proc/self/mountinfo').read().count('nearside-text')";
            assert_eq!(domain.eval(mounts), "0", "{kill}");
        }
        if kills_daemon {
            daemon = Some(self::daemon());
        }
        assert_eq!(record(), before, "{kill}");
    }
    add("", std::slice::from_ref(&path), "replicated");
    await_state(&path, "replicated");
    replicator.stop();
    if let Some(daemon) = daemon {
        daemon.stop();
    }
}
