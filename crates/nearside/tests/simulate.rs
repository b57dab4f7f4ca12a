//! `nearside simulate`: the built binary on the scenarios of the repository and the machines of the
//! lab.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

#[path = "../../topology/tests/common/mod.rs"]
mod common;

use serde_json::{Value, json};
use std::{
    fs,
    process::{Command, Output},
};

const WAREHOUSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/warehouse-16.toml");
const SKEWED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/skewed-16.toml");
const X460: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/machines/x460-small.toml");

fn simulate(scenario: &str, flags: &[&str]) -> Output {
    let mut nearside = Command::new(env!("CARGO_BIN_EXE_nearside"));
    nearside.args(["simulate", scenario]).args(flags).output().unwrap()
}

/// Standard output and standard error of a run that must succeed.
fn shown(scenario: &str, flags: &[&str]) -> (String, String) {
    let output = simulate(scenario, flags);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{scenario} {flags:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn failed(output: &Output) -> (Option<i32>, String) {
    assert!(output.stdout.is_empty(), "nothing but the message is printed");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn contenders_are_compared() {
    let (report, notes) = shown(WAREHOUSE, &["--machine", X460]);
    let rows: Vec<Vec<&str>> =
        report.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
    let names: Vec<&str> = rows[1..5].iter().map(|row| row[0]).collect();
    assert_eq!(
        (names.as_slice(), notes.as_str()),
        (["stock", "pins", "nearside", "bound:"].as_slice(), ""),
        "{report}"
    );
    let (again, _) = shown(WAREHOUSE, &["--machine", X460]);
    assert_eq!(report, again);
    let (alone, _) = shown(WAREHOUSE, &["--machine", X460, "--under", "nearside,nearside"]);
    assert_eq!(alone.matches("nearside ").count(), 1, "{alone}");
}

#[test]
fn json_has_every_domain_and_the_decisions() {
    let (report, _) =
        shown(SKEWED, &["--machine", X460, "--under", "stock,nearside", "--format", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["domains_count"], &report["interval_ns"]),
        (&json!(16), &json!(100_000_000))
    );
    let nearside = &report["contenders"][1];
    assert_eq!((&nearside["contender"], &nearside["is_done"]), (&json!("nearside"), &json!(true)));
    assert_eq!(nearside["domains"][3]["name"], "late-3");
    assert!(
        nearside["domains"][3]["nodes"].is_array()
            && nearside["domains"][3]["start_ns"] == 300_000_000
    );
    let decisions = nearside["decisions"].as_array().unwrap();
    assert_eq!(json!(decisions.len()), nearside["home_changes"]);
    assert!(
        decisions[0]["because"].as_str().unwrap().contains(" of CPU time a second; "),
        "{}",
        decisions[0]
    );
    assert_eq!(report["contenders"][0]["domains"][0]["nodes"], Value::Null);
}

#[test]
fn unfinished_work_is_reported_at_the_time_limit() {
    let (report, _) = shown(WAREHOUSE, &["--machine", X460, "--seconds", "1", "--under", "pins"]);
    assert!(report.contains("\npins: 80 % of the work was done at the time limit\n"), "{report}");
}

#[test]
fn a_host_without_latencies_goes_by_its_distances() {
    let root = common::unpacked("two-sockets").unwrap();
    let (report, notes) = shown(WAREHOUSE, &["--sysfs", root.path().to_str().unwrap()]);
    assert!(report.contains(" nearside "), "{report}");
    let expected =
        "nearside: note: unknown latencies: assumes 100 ns for a local line, others by distance\n";
    assert!(notes.contains(expected), "{notes}");
}

#[test]
fn invalid_input_is_reported() {
    let broken = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        &broken,
        fs::read_to_string(WAREHOUSE).unwrap().replace("threads = 2", "threads = -2"),
    )
    .unwrap();
    let path = broken.path().to_str().unwrap();
    let (code, message) = failed(&simulate(path, &["--machine", X460]));
    let expected = ": domain.threads: a whole number from 1 to 1024 threads is expected, not -2\n";
    assert!(
        message.starts_with(&format!("nearside: {path}:")) && message.ends_with(expected),
        "{message}"
    );
    assert_eq!(code, Some(1));

    fs::write(&broken, fs::read_to_string(WAREHOUSE).unwrap().replace("mib = 16", "mib = 160"))
        .unwrap();
    let (code, message) = failed(&simulate(path, &["--machine", X460, "--under", "nearside"]));
    assert_eq!(code, Some(1));
    assert!(message.starts_with("nearside: nearside cannot place warehouse-"), "{message}");

    let cases: [&[&str]; 4] =
        [&["--under", "xen"], &["--seconds", "0"], &["--hmat"], &["--seed", "-1"]];
    for flags in cases {
        assert_eq!(failed(&simulate(WAREHOUSE, flags)).0, Some(2), "{flags:?}");
    }
}
