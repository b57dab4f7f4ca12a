//! Two that would move the same memory: root's `set --move-memory`, and the daemon beside it.

use crate::shared::interval;
use nearside_lab::{
    Domain, MIB, await_that,
    daemon::{Daemon, ask, get},
    json, run, status, stderr, stdout, words,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const SIZE_MIB: u64 = 32;

/// A strict domain on node 1, and a daemon that would move its memory fast.
fn start() -> (Daemon, Domain) {
    let daemon = Daemon::start("scheduler = \"off\"\nrate = \"4G\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy strict --nodes 1",
        &format!("--mib {SIZE_MIB}"),
    );
    await_that("it is at home", || {
        let (code, db) = ask("GET", "/domains/db", None).unwrap();
        code == 200 && db["status"]["debt_bytes"] == 0
    });
    (daemon, domain)
}

/// The bytes of the domain that the daemon has moved.
fn moved_by_daemon() -> f64 {
    let metrics = get("/metrics");
    let lines = metrics.as_str().unwrap().lines();
    let name = "nearside_domain_moved_bytes_total{domain=\"db\"}";
    let line = lines.filter_map(|line| line.strip_prefix(name)).next();
    line.unwrap_or_else(|| panic!("{metrics}")).trim().parse().unwrap()
}

fn show() -> Value {
    json("show db --interval 0")
}

fn assert_at_home(domain: &Domain) {
    assert_eq!(domain.filled_mib(), BTreeMap::from([(2, SIZE_MIB)]));
    assert_eq!(status(domain.process(), "Mems_allowed_list"), "2");
    let show = show();
    assert_eq!((&show["mover"], &show["record"]["moving_to"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_command_moves_all_memory_alone_and_the_daemon_none() {
    let (daemon, domain) = start();
    let before = moved_by_daemon();
    let mut mover = domain.slow_move("db", 2, 1);
    let pid = mover.id();
    let expected = json!({"pid": pid, "to_nodes": [2], "rate_bytes_per_s": MIB});
    let seen = show();
    assert_eq!((&seen["mover"], &seen["record"]["moving_to"]), (&expected, &json!([2])), "{seen}");
    let text = stdout(&run(words("show db --interval 0")));
    let says = format!("moves to node 2 (nearside set, process {pid}, at most 1 MiB/s)");
    assert!(text.contains(&says), "{text}");
    await_that("the daemon says who moves it", || {
        let db = get("/domains/db");
        db["mover"] == expected && db["status"]["debt_blocker"]["because"] == "has-mover"
    });
    let began = interval();
    await_that("intervals pass", || interval() > began + 3);
    assert_eq!(moved_by_daemon(), before);
    assert_eq!(mover.try_wait().unwrap(), None, "it has ended before the daemon could move");
    let output = mover.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert_at_home(&domain);
    // The kernel's counters of memory lag: a page may seem to be left for the daemon.
    assert!(moved_by_daemon() < before + MIB as f64);
    domain.end();
    daemon.stop();
}

#[test]
fn the_daemon_completes_the_move_of_a_killed_command() {
    let (daemon, domain) = start();
    let mut mover = domain.slow_move("db", 2, 1);
    mover.kill().unwrap();
    mover.wait().unwrap();
    assert!(show()["mover"].is_null());
    let all = BTreeMap::from([(2, SIZE_MIB)]);
    await_that("memory has come home", || domain.filled_mib() == all);
    await_that("the move is over", || show()["record"]["moving_to"].is_null());
    await_that("it may have memory nowhere else", || {
        status(domain.process(), "Mems_allowed_list") == "2"
    });
    assert!(moved_by_daemon() > 0.0);
    domain.end();
    daemon.stop();
}

#[test]
fn of_two_commands_the_later_takes_the_move_over() {
    let (daemon, domain) = start();
    let before = moved_by_daemon();
    let earlier = domain.slow_move("db", 2, 1);
    let later = run(words("set db --nodes 2 --move-memory --rate unlimited"));
    assert_eq!(later.status.code(), Some(0), "{}", stderr(&later));
    assert_at_home(&domain);
    let earlier = earlier.wait_with_output().unwrap();
    assert_eq!(earlier.status.code(), Some(1), "{}", stdout(&earlier));
    let said = stderr(&earlier);
    // The later one may have ended by the time that the earlier one looks.
    let reasons = ["moves its memory now", "another command has ended the move"];
    assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
    assert!(moved_by_daemon() < before + MIB as f64);
    domain.end();
    daemon.stop();
}
