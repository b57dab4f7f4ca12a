//! Kinds of mutexes and their uses: with the C library by itself, and below the object.
#![allow(unsafe_code, reason = "mutexes of the C library")]
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

mod kinds;
mod mutex;
mod others;
mod queued;
mod uses;

use std::{env, path::PathBuf, process::Command};

/// The object, which cargo makes beside this test.
fn object() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    deps.join("libnearside_locks_preload.so")
}

/// Runs tests of this file below the object, and returns what it says at the end.
fn report(choice: &str, which: &[&str]) -> String {
    let output = Command::new("timeout")
        .args(["900", "env", "NEARSIDE_LOCKS_REPORT=1"])
        .arg(format!("NEARSIDE_LOCKS={choice}"))
        .arg(format!("LD_PRELOAD={}", object().display()))
        .arg(env::current_exe().unwrap())
        .args(["--test-threads", "1"])
        .args(which)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{choice}: {}\n{said}\n{errors}", output.status);
    errors.lines().rfind(|line| line.starts_with("nearside-locks: ")).unwrap_or_default().into()
}

const ALL: &[&str] = &["--skip", "below_the_object"];

/// Mutexes with a place, those with a queue at the end, and how often a thread has queued.
fn counts(report: &str) -> (u32, u32, u32) {
    let words = report.split([' ', ',']);
    let numbers: Vec<_> = words.filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers.len(), 3, "{report:?}");
    (numbers[0], numbers[1], numbers[2])
}

#[test]
fn all_hold_below_the_object_with_queues() {
    let (mutexes, queues, queued) = counts(&report("on", ALL));
    assert!(mutexes > 0 && queues == mutexes && queued > 0, "{mutexes} {queues} {queued}");
}

#[test]
fn each_of_these_queues_below_the_object() {
    for case in queued::CASES {
        let (_, _, queued) = counts(&report("on", &["--exact", &format!("queued::{case}")]));
        // Each has two waiters and more. (The first wait of all is that of `Mutex::wanted`, which
        // does not queue yet.)
        assert!(queued >= 2, "{case}: {queued}");
    }
}

#[test]
fn all_hold_below_the_object_that_measures() {
    let (mutexes, _, _) = counts(&report("auto", ALL));
    assert!(mutexes > 0);
}

#[test]
fn all_hold_below_the_object_without_queues() {
    assert_eq!(report("off", ALL), "nearside-locks: no mutex has a queue");
}

#[test]
fn a_word_that_it_does_not_know_is_said_below_the_object() {
    let output = Command::new("env")
        .arg(format!("LD_PRELOAD={}", object().display()))
        .args(["NEARSIDE_LOCKS=yes", "/bin/echo", "runs"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"runs\n", "{errors}");
    let expected = "nearside-locks: NEARSIDE_LOCKS=\"yes\": expected auto, on or off\n";
    assert!(errors.ends_with(expected), "{errors}");
}
