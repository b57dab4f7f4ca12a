//! Requests to the daemon: commands, the API, its lock, its rights and its configuration.

use crate::shared::interval;
use nearside_lab::{
    Domain, Signal, await_that,
    daemon::{AUDIT, CONFIG, Daemon, SOCKET, ask, get},
    json, nearside, read, run, stderr, stdout, words,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

#[test]
fn a_held_lock_names_its_holder_and_the_loop_goes_on() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32",
    );
    await_that("it is seen", || ask("GET", "/domains/db", None).unwrap().0 == 200);
    let holder = ["--no-fork", "/run/nearside/lock", "sleep", "100000"];
    let mut holder = Command::new("flock").args(holder).spawn().unwrap();
    let put = || ask("PUT", "/domains/db/affinity", Some(&json!({"nodes": [3]}))).unwrap();
    let held = || {
        read("/proc/locks")
            .lines()
            .any(|line| line.contains("FLOCK") && line.contains(&holder.id().to_string()))
    };
    await_that("it holds the lock", held);
    let (code, answer) = put();
    let says = format!("process {} (sleep) holds /run/nearside/lock", holder.id());
    assert!(code == 409 && answer["error"].as_str().unwrap().contains(&says), "{code} {answer}");
    let before = interval();
    await_that("intervals pass", || interval() > before + 3);
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(put().0, 200);
    await_that("memory has come home", || domain.filled_mib() == BTreeMap::from([(3, 32)]));
    domain.end();
    daemon.stop();
}

#[test]
fn a_second_daemon_is_refused_with_the_first_ones_process() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let second = run(["daemon", "--config", CONFIG]);
    assert_eq!(second.status.code(), Some(1));
    assert!(
        stderr(&second).contains(&format!("process {} holds", daemon.child.id())),
        "{}",
        stderr(&second)
    );
    get("/health");
    daemon.stop();
}

#[test]
fn a_bad_configuration_keeps_the_old_one_and_names_the_mistake() {
    let mut daemon = Daemon::start("scheduler = \"off\"");
    fs::write(CONFIG, "intervall = \"1s\"\n").unwrap();
    daemon.signal(Signal::HUP);
    await_that("it says why", || daemon.said().contains("stays in force"));
    assert!(daemon.said().contains("intervall"), "{}", daemon.said());
    get("/domains");
    // The audit log is reopened all the same, also without any configuration.
    for (refused_before, has_config) in [(1, true), (2, false)] {
        if !has_config {
            fs::remove_file(CONFIG).unwrap();
        }
        fs::remove_file(AUDIT).unwrap();
        daemon.signal(Signal::HUP);
        await_that("it says why again", || {
            daemon.said().matches("stays in force").count() > refused_before
        });
        assert!(Path::new(AUDIT).exists(), "{}", daemon.said());
    }
    fs::write(CONFIG, "intervall = \"1s\"\n").unwrap();
    let bad = run(["daemon", "--config", CONFIG, "--check-config"]);
    assert_eq!(bad.status.code(), Some(1));
    daemon.stop();
}

#[test]
fn readers_may_read_and_others_are_refused_and_recorded() {
    let daemon = Daemon::start("scheduler = \"off\"\n[api]\nread_group = \"65534\"");
    let _ = fs::remove_file(AUDIT);
    daemon.signal(Signal::HUP);
    await_that("the audit log is there", || Path::new(AUDIT).exists());
    assert_eq!(fs::metadata(AUDIT).unwrap().permissions().mode() & 0o777, 0o600);
    let as_nobody = |script: &str| {
        let become_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c"];
        let output = Command::new("setpriv").args(become_nobody).arg(script).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let request = |method: &str, path: &str| {
        as_nobody(&format!(
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect('{SOCKET}')\n\
             s.sendall(b'{method} {path} HTTP/1.1\\r\\nHost: x\\r\\n')\n\
             s.sendall(b'Connection: close\\r\\n\\r\\n')\n\
             print(s.makefile().readline().split()[1])"
        ))
    };
    assert_eq!(request("GET", "/domains"), "200");
    assert_eq!(request("DELETE", "/domains/db/affinity"), "403");
    let log = fs::read_to_string(AUDIT).unwrap();
    let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!((&line["uid"], &line["status"]), (&json!(65534), &json!(403)), "{log}");
    daemon.stop();
}

#[test]
fn commands_ask_the_daemon_and_do_without_one_that_does_not_answer() {
    let daemon = Daemon::start("scheduler = \"off\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32",
    );
    // A domain becomes idle only after it has touched its memory.
    await_that("it rests", || {
        ask("GET", "/why/db", None).is_some_and(|(_, why)| why["status"]["place"] == "idle")
    });
    let once = |arguments: &str| {
        let output = run(words(arguments));
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    // When the host stands still, the daemon seems not to answer, or its loop to have died.
    let said = |arguments: &str| {
        let mut said = (String::new(), String::new());
        await_that("the daemon answers in time", || {
            said = once(arguments);
            !["no answer within", "has not ended an interval"]
                .iter()
                .any(|notice| said.1.contains(notice))
        });
        said
    };
    let (why, show) = (said("why db").0, said("show db --interval 0").0);
    assert!(why.contains("Control loop") && show.contains("status"), "{why}{show}");
    for command in ["list", "stat --interval 0", "top --once --interval 0"] {
        let (told, notes) = said(command);
        assert!(
            told.contains("status") && told.contains("idle") && notes.is_empty(),
            "{command}: {told}{notes}"
        );
        assert!(!said(&format!("{command} --no-daemon")).0.contains("status"), "{command}");
    }
    await_that("the answer for programs has it, too", || {
        json("list")["domains"][0]["status"]["place"] == "idle"
    });
    assert!(!said("why db --no-daemon").0.contains("daemon"));
    daemon.signal(Signal::STOP);
    for command in ["list", "stat --interval 0", "why db", "top --once --interval 0"] {
        let (told, notes) = once(command);
        assert!(
            told.contains("db") && notes.contains("no answer within"),
            "{command}: {told}{notes}"
        );
        assert!(once(&format!("{command} --no-daemon")).1.is_empty(), "{command}");
    }
    daemon.signal(Signal::CONT);
    domain.end();
    daemon.stop();
}

#[test]
fn members_of_the_admin_group_give_domains_another_home() {
    let daemon = Daemon::start("scheduler = \"off\"\n[api]\nadmin_group = \"65534\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32",
    );
    await_that("it is seen", || {
        ask("GET", "/domains/db", None).is_some_and(|(code, _)| code == 200)
    });
    let set_as = |group: u32, nodes: &str| {
        let group = format!("--regid={group}");
        let mut command = Command::new("setpriv");
        let become_nobody = ["--reuid=65534", &group, "--clear-groups", "--"];
        command
            .args(become_nobody)
            .arg(nearside().get_program())
            .args(["set", "db", "--nodes", nodes])
            .output()
            .unwrap()
    };
    // Without a ready daemon, a command makes the change itself, which this user cannot.
    get("/health");
    let others = set_as(65533, "3");
    assert_eq!(others.status.code(), Some(1), "{}", stderr(&others));
    let members = set_as(65534, "2");
    assert!(
        members.status.success() && stdout(&members).contains("home is node 2"),
        "{}",
        stderr(&members)
    );
    await_that("memory follows", || domain.filled_mib() == BTreeMap::from([(2, 32)]));
    let unknown = set_as(65534, "17");
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
    let log = fs::read_to_string(AUDIT).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |line: &&Value| {
        line["uid"] == 65534 && line["status"] == 200 && line["change"]["domain"] == "db"
    };
    assert_eq!(lines.iter().filter(told).count(), 1, "{log}");
    domain.end();
    daemon.stop();
}
