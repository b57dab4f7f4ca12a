//! `nearside numad` on a made-up host: plain files stand for the kernel's.
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

#[path = "common/made_host.rs"]
mod made_host;

use made_host::Made;
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::{net::UnixDatagram, process::CommandExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

impl Made {
    fn command(&self, size: &str, within_s: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearside"));
        command.args(["numad", "--within", within_s, "--root"]).arg(self.root()).args(["-w", size]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ask(&self, size: &str) -> Output {
        self.command(size, "60").output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn end(mut child: Child) -> (String, String) {
    let (mut answer, mut remark) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut remark).unwrap();
    assert!(child.wait().unwrap().success(), "{remark}");
    (answer, remark)
}

#[test]
fn of_twenty_questions_at_once_the_eight_that_fit_get_memory_of_their_own() {
    let made = Made::new(4);
    let children: Vec<_> = (0..20).map(|_| made.command("2:180", "600").spawn().unwrap()).collect();
    let answers: Vec<_> = children.into_iter().map(end).collect();
    let (promised, refused): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|(_, remark)| remark.is_empty());
    assert_eq!((promised.len(), refused.len()), (8, 12));
    let mut nodes: Vec<_> = promised.into_iter().map(|(answer, _)| answer).collect();
    nodes.sort();
    assert_eq!(nodes, ["0\n", "0\n", "1\n", "1\n", "2\n", "2\n", "3\n", "3\n"]);
    for (answer, remark) in refused {
        assert_eq!(answer, "0-3\n");
        assert!(remark.contains("reserved nothing") && remark.contains("180 MiB"), "{remark}");
    }
    let reservations = made.reservations();
    assert_eq!(reservations.len(), 8);
    let mut promised_mib: BTreeMap<String, u64> = BTreeMap::new();
    for record in reservations.values() {
        let term = &record["lifetime"]["term"];
        assert_eq!(
            (term["boot_id"].as_str(), term["expires_boottime_s"].as_u64()),
            (Some("b"), Some(160))
        );
        for (node, bytes) in record["subject"]["reservation"]["bytes"].as_object().unwrap() {
            *promised_mib.entry(node.clone()).or_default() += bytes.as_u64().unwrap() >> 20;
        }
    }
    assert!(promised_mib.values().all(|&mib| mib == 360), "{promised_mib:?}");
}

#[test]
fn a_reservation_that_has_lapsed_makes_room() {
    let made = Made::new(1);
    assert_eq!(text(&made.ask("2:300").stdout), "0\n");
    assert!(text(&made.ask("2:300").stderr).contains("reserved nothing"));
    made.file("proc/uptime", "160.00 1.00\n");
    let output = made.ask("2:300");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("0\n".into(), String::new()));
    let record = &made.reservations()["numad-1"];
    assert_eq!(record["lifetime"]["term"]["expires_boottime_s"], 220);
}

#[test]
fn with_refuse_a_question_that_does_not_fit_gets_no_nodes() {
    let made = Made::new(1);
    let ask = || made.command("2:300", "60").arg("--refuse").output().unwrap();
    let output = ask();
    assert_eq!((text(&output.stdout), output.status.code()), ("0\n".into(), Some(0)));
    let output = ask();
    assert_eq!((text(&output.stdout), output.status.code()), (String::new(), Some(1)));
    let remark = text(&output.stderr);
    assert!(remark.contains("numad: refused 2 vCPUs and 300 MiB: "), "{remark}");
    assert_eq!(made.reservations().len(), 1);
}

#[test]
fn the_lock_in_other_hands_delays_no_answer() {
    let made = Made::new(4);
    made.file("sys/devices/system/node/has_memory", "0-3\n");
    made.file("sys/devices/system/node/has_cpu", "0-3\n");
    assert_eq!(text(&made.ask("2:300").stdout), "0\n");
    let log = UnixDatagram::bind(made.path("dev/log")).unwrap();
    let lock = fs::File::options().write(true).open(made.path("run/nearside/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let output = made.command("2:300", "2").output().unwrap();
    let remark = text(&output.stderr);
    assert_eq!((text(&output.stdout), output.status.code()), ("0-3\n".into(), Some(0)));
    // A busy machine may take the rest of the bound to read the host.
    let told = ["run/nearside/lock (waited 1.6 s)", "there was no answer after 2 s"];
    assert!(told.iter().any(|told| remark.contains(told)), "{remark}");
    assert_eq!(made.reservations().len(), 1);
    let mut packet = [0; 2048];
    let length = log.recv(&mut packet).unwrap();
    let logged = text(&packet[..length]);
    assert!(logged.starts_with("<28>numad[") && logged.contains("reserved nothing"), "{logged}");
}

#[test]
fn a_host_that_cannot_be_read_in_time_gets_every_node() {
    let made = Made::new(4);
    made.file("sys/devices/system/node/has_memory", "0-2\n");
    made.file("sys/devices/system/node/has_cpu", "0-3\n");
    // Opening a FIFO blocks until its other end is open.
    let boot_id = made.path("proc/sys/kernel/random/boot_id");
    fs::remove_file(&boot_id).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &boot_id,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let output = made.command("2:300", "0.1").output().unwrap();
    assert_eq!((text(&output.stdout), output.status.code()), ("0-3\n".into(), Some(0)));
    assert!(text(&output.stderr).contains("no answer after 0.1 s"), "{}", text(&output.stderr));
    assert!(made.reservations().is_empty());
}

/// An answer that comes too late has reserved nothing, however the two cross each other.
#[test]
fn an_answer_without_a_promise_leaves_no_reservation() {
    let made = Made::new(4);
    made.file("sys/devices/system/node/has_memory", "0-3\n");
    made.file("sys/devices/system/node/has_cpu", "0-3\n");
    let mut promised = 0;
    // From a bound that few answers keep to one that nearly all do.
    for ms in (0..60).map(|step| f64::from(step) * 0.5) {
        let output = made.command("1:8", &format!("{}", ms / 1000.0)).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        promised += usize::from(!text(&output.stderr).contains("reserved nothing"));
        assert_eq!(made.reservations().len(), promised, "a bound of {ms} ms");
    }
}

#[test]
fn an_answer_that_reaches_nobody_leaves_no_reservation() {
    let made = Made::new(2);
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut child = made.command("2:300", "60").stdout(write).spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("the answer reached nobody"), "{said}");
    assert!(made.reservations().is_empty());
}

#[test]
fn a_host_without_a_cgroup_tree_gets_every_node() {
    let made = Made::new(2);
    made.file("proc/self/mountinfo", "");
    let output = made.ask("2:300");
    assert_eq!((text(&output.stdout), output.status.code()), ("0-1\n".into(), Some(0)));
    assert!(text(&output.stderr).contains("cgroup"), "{}", text(&output.stderr));
}

fn as_numad(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearside"));
    command.arg0("/usr/bin/numad").args(arguments).output().unwrap()
}

#[test]
fn a_program_named_numad_answers_as_numad() {
    let made = Made::new(4);
    let root = made.root().to_str().unwrap();
    let output = as_numad(&["--root", root, "-w4:600"]);
    assert_eq!(text(&output.stdout), "0-1\n", "{}", text(&output.stderr));
    assert!(Path::new(&made.path("run/nearside/domains/reservation+numad-1.json")).exists());
}

#[test]
fn options_that_are_not_supported_are_named() {
    for (arguments, said) in [
        (&["-p", "7"][..], "the option -p is not supported"),
        (&["-i", "0"], "the option -i is not supported"),
        (&["-w", "2:500", "-K", "1"], "the option -K is not supported"),
        (&[], "without -w there is nothing to do"),
        (&["-w", "x"], "expected vCPUs and MiB"),
        (&["-w", "0:5"], "at least 1 vCPU"),
    ] {
        let output = as_numad(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(message.contains(said) && output.stdout.is_empty(), "{arguments:?}: {message}");
    }
    let help = as_numad(&["-h"]);
    assert!(help.status.success() && text(&help.stdout).contains("VCPUS[:MIB]"));
}
