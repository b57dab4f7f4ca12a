//! The commands that read the host, as any user may run them anywhere.
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags, pidfd_open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;
use std::{
    fs::File,
    io::{Read, Write},
    process::{Command, Output, Stdio},
};

fn nearside(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearside")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Whether this host has a tree in which domains are possible.
fn has_cgroup2() -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" - cgroup2 ")
}

#[test]
fn doctor_works_on_any_host_and_its_exit_code_shows_if_run_can() {
    let output = nearside(&["doctor", "--format", "json"]);
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    let can_run = doctor["can_run"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(if can_run { 0 } else { 1 }));
    assert!(doctor["findings"].as_array().unwrap().len() > 10);
    let report = text(&nearside(&["doctor"]).stdout);
    assert!(
        report.contains("kernel") && !report.contains('\x1b'),
        "no colours in a pipe: {report}"
    );
}

#[test]
fn stat_shows_nodes_on_a_host_without_domains() {
    let output = nearside(&["stat", "--heap", "--interval", "0", "--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    let node = &stat["nodes"][0];
    assert!(node["size_bytes"].as_u64().unwrap() >= node["free_bytes"].as_u64().unwrap());
    assert!(stat["domains"].is_array() && stat["heap"].is_array());
    assert!(text(&nearside(&["stat", "--interval", "0"]).stdout).starts_with("Memory"));
}

#[test]
fn top_without_a_terminal_prints_a_frame_only_on_request() {
    let output = nearside(&["top", "--once", "--interval", "0"]);
    let frame = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        frame.contains("node") && frame.contains("domain") && !frame.contains('\x1b'),
        "{frame}"
    );
    let output = nearside(&["top"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("no terminal") && message.contains("nearside stat --format json"),
        "{message}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn top_ends_with_its_terminal_in_silence() {
    for pause in [false, true] {
        // A terminal of its own: the SIGHUP goes to no other process.
        let operator =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&operator).unwrap();
        unlockpt(&operator).unwrap();
        tcsetwinsize(&operator, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
        let terminal = ptsname(&operator, Vec::new()).unwrap();
        let terminal = rustix::fs::open(
            &terminal,
            OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
        let mut top = Command::new(env!("CARGO_BIN_EXE_nearside"))
            .args(["top", "--interval", "0.1"])
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut operator, mut shown) = (File::from(operator), Vec::new());
        let mut await_text = |operator: &mut File, text: &str| {
            let mut bytes = [0; 4096];
            while !String::from_utf8_lossy(&shown).contains(text) {
                let length = operator.read(&mut bytes).unwrap();
                shown.extend_from_slice(&bytes[..length]);
            }
        };
        await_text(&mut operator, "available");
        if pause {
            operator.write_all(b"p").unwrap();
            await_text(&mut operator, "PAUSED");
        }
        drop(operator);
        let process = pidfd_open(Pid::from_child(&top), PidfdFlags::empty()).unwrap();
        let a_minute = Timespec { tv_sec: 60, tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&a_minute)).unwrap();
        if ended == 0 {
            top.kill().unwrap();
        }
        let output = top.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(0), ""),
            "paused: {pause}"
        );
    }
}

#[test]
fn list_has_headings_where_nothing_runs() {
    let output = nearside(&["list", "--interval", "0"]);
    match has_cgroup2() {
        true => assert!(
            text(&output.stdout).trim_start().starts_with("domain"),
            "{}",
            text(&output.stderr)
        ),
        false => assert_eq!(output.status.code(), Some(1)),
    }
}

#[test]
fn an_unknown_domain_is_a_message_and_not_a_panic() {
    for arguments in [
        ["show", "nobody-of-that-name"],
        ["why", "nobody-of-that-name"],
        ["show", "/no/such/group"],
    ] {
        let output = nearside(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let message = text(&output.stderr);
        assert!(message.starts_with("nearside: "), "{message}");
        assert!(!has_cgroup2() || message.contains("there is no "), "{message}");
    }
    assert_eq!(nearside(&["show", "/../../etc"]).status.code(), Some(1));
}

#[test]
fn an_invalid_interval_is_a_usage_error() {
    for interval in ["-1", "soon", "1e9", "NaN", ""] {
        assert_eq!(
            nearside(&["stat", "--interval", interval]).status.code(),
            Some(2),
            "{interval}"
        );
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(["stat", "--heap", "--interval", "0.2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
