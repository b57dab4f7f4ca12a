//! The replicator as run by the shipped unit.

use super::{nearside, systemctl, to_ask};
use nearside_lab::{await_that, run, stderr, stdout, words};
use std::{
    fs,
    io::Write,
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Child, Command, Stdio},
};

const NAME: &str = "nearside-replicator.service";

/// The unit, with the binary under test in the place of the installed one. Dropping this ends it.
struct Unit;

impl Unit {
    fn start() -> Self {
        let unit = format!("{}/../../packaging/systemd/{NAME}", env!("CARGO_MANIFEST_DIR"));
        fs::copy(unit, Path::new("/run/systemd/system").join(NAME)).unwrap();
        fs::write("/usr/bin/nearside-test", "").unwrap();
        let folder = Path::new("/run/systemd/system").join(format!("{NAME}.d"));
        fs::create_dir_all(&folder).unwrap();
        let program = "[Service]\nRestartSec=100ms\nExecStart=\n\
                       ExecStart=/usr/bin/nearside-test replicator\n";
        fs::write(folder.join("test.conf"), program).unwrap();
        let bind = Command::new("mount")
            .arg("--bind")
            .arg(nearside().get_program())
            .arg("/usr/bin/nearside-test")
            .status();
        assert!(bind.unwrap().success());
        systemctl("daemon-reload");
        let unit = Self;
        systemctl(&format!("start {NAME}"));
        unit
    }

    fn property(name: &str) -> String {
        property(name, NAME)
    }
}

fn property(name: &str, unit: &str) -> String {
    let arguments = ["show", "--value", "--property", name, unit];
    stdout(&to_ask("systemctl").args(arguments).output().unwrap()).trim().to_owned()
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = to_ask("systemctl").args(["stop", NAME]).status();
        let _ = Command::new("umount").arg("/usr/bin/nearside-test").status();
    }
}

/// A domain at home on node 2 that runs a shell. Dropping this ends it.
struct Shell(Child);

impl Shell {
    fn start() -> Self {
        let flags = "run --quiet --name text --nodes 2 --memory 32M -- sleep infinity";
        Self(nearside().args(words(flags)).stdin(Stdio::null()).spawn().unwrap())
    }

    /// The device of a file as the domain sees it.
    fn device(&self, path: &str) -> u64 {
        fs::metadata(format!("/proc/{}/root{path}", self.0.id())).unwrap().dev()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another service, with the shipped drop-in.
fn a_service_with_the_drop_in_runs_from_copies() {
    let program = "/tmp/served";
    fs::copy("/usr/bin/sleep", program).unwrap();
    assert!(run(["replicate", "add", program]).status.success());
    await_that("it is replicated", || has_copies(program));
    let drop_in = "packaging/systemd/service.d-nearside-replicas.conf";
    let drop_in = format!("{}/../../{drop_in}", env!("CARGO_MANIFEST_DIR"));
    let drop_in = fs::read_to_string(drop_in).unwrap();
    assert_eq!(drop_in.matches("/usr/bin/nearside ").count(), 1);
    let folder = "/run/systemd/system/served.service.d";
    fs::create_dir_all(folder).unwrap();
    let drop_in = drop_in.replace("/usr/bin/nearside ", "/usr/bin/nearside-test ");
    fs::write(format!("{folder}/nearside-replicas.conf"), drop_in).unwrap();
    let unit = format!("[Service]\nExecStart={program} infinity\n");
    fs::write("/run/systemd/system/served.service", unit).unwrap();
    systemctl("daemon-reload");
    // It is started once ExecStartPost has ended.
    systemctl("start served.service");
    let process = property("MainPID", "served.service");
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let text = maps.lines().find(|it| it.contains("r-xp") && it.ends_with(program)).unwrap();
    let range = text.split(' ').next().unwrap();
    let mapped = fs::metadata(format!("/proc/{process}/map_files/{range}")).unwrap();
    assert_ne!(mapped.dev(), fs::metadata(program).unwrap().dev());
    systemctl("stop served.service");
}

fn has_copies(path: &str) -> bool {
    let report = nearside_lab::json("replicate status");
    let files = report["files"].as_array().unwrap();
    files.iter().any(|it| it["path"] == path && it["state"] == "replicated")
}

#[test]
fn the_replicators_unit_gives_it_all_it_needs_and_its_successor_clears_up() {
    let path = "/tmp/text";
    fs::copy("/usr/bin/sleep", path).unwrap();
    std::os::unix::fs::chown(path, Some(12), Some(34)).unwrap();
    let unit = Unit::start();
    // Under seccomp it could not return containers to the original (PTRACE_O_SUSPEND_SECCOMP).
    let status = fs::read_to_string(format!("/proc/{}/status", Unit::property("MainPID"))).unwrap();
    assert!(status.contains("Seccomp:\t0"), "{status}");
    let output = run(["replicate", "add", path]);
    assert!(output.status.success(), "{}", stderr(&output));
    // The command returns once the copies are complete.
    assert!(has_copies(path));
    // Its policy is SCHED_RR (sched(7)) without CAP_SYS_NICE: field 41 of proc_pid_stat(5).
    let stat = fs::read_to_string(format!("/proc/{}/stat", Unit::property("MainPID"))).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    assert_eq!(after_name.split(' ').nth(41 - 3), Some("2"), "{stat}");
    let original = fs::metadata(path).unwrap().dev();
    let shell = Shell::start();
    await_that("the domain has joined", || shell.device(path) != original);
    // A writer collapses the copies.
    // Not created: in a sticky folder only a file's owner may (`fs.protected_regular`).
    let mut file = fs::File::options().write(true).truncate(true).open(path).unwrap();
    file.write_all(b"written").unwrap();
    drop(file);
    assert_eq!(fs::read(format!("/proc/{}/root{path}", shell.0.id())).unwrap(), b"written");
    await_that("the copies are back", || has_copies(path));
    a_service_with_the_drop_in_runs_from_copies();

    // A killed replicator leaves copies without a lease. systemd starts the next one.
    let process = Unit::property("MainPID");
    systemctl(&format!("kill --signal=KILL {NAME}"));
    await_that("systemd has restarted it", || {
        let now = Unit::property("MainPID");
        now != "0" && now != process && Unit::property("ActiveState") == "active"
    });
    assert_eq!(shell.device(path), original);
    drop(unit);
    assert!(!Path::new("/run/nearside-replicas").exists());
    let output = run(["replicate", "status"]);
    assert!(stderr(&output).contains("no replicator runs"), "{}", stderr(&output));
}
