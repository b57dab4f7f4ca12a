//! The daemon and its BPF scheduler: attached, detached, stalled, killed.

use crate::shared::{SPINNING, scheduler_state};
use nearside_lab::{Domain, await_that, daemon::Daemon, run, status, stdout, words};
use std::{collections::BTreeMap, fs};

#[test]
fn with_the_scheduler_a_home_is_preferred_and_the_stand_in_lifted() {
    let mut daemon = Daemon::start("");
    let allowed = |domain: &Domain| status(domain.process(), "Cpus_allowed_list");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 32 --spin",
    );
    await_that("the scheduler is attached", || {
        assert_eq!(daemon.child.try_wait().unwrap(), None, "{}", daemon.said());
        fs::read_to_string("/sys/kernel/sched_ext/state").unwrap().trim() == "enabled"
    });
    await_that("the stand-in is lifted", || allowed(&domain) == "0-7");
    await_that("the log says so", || daemon.said().contains("scheduler attached"));
    let scheduled_by = |who: &str| {
        let frame = stdout(&run(words("top --once --interval 0")));
        assert!(frame.contains(&format!("scheduled by {who} ")), "{frame}");
    };
    scheduled_by("nearside");
    daemon.stop();
    // On a slow host, detaching takes longer than the daemon waits.
    await_that("the scheduler is detached", || scheduler_state() == "disabled");
    await_that("its home's CPUs stand in", || allowed(&domain) == "2-3");
    scheduled_by("Linux");
    domain.end();
}

#[test]
fn a_daemon_killed_with_the_scheduler_leaves_the_stock_one_and_the_next_attaches_again() {
    let mut daemon = Daemon::start("");
    let domain = Domain::start(SPINNING.0, SPINNING.1);
    for _ in 0..3 {
        await_that("the stand-in is lifted", || {
            status(domain.process(), "Cpus_allowed_list") == "0-7"
        });
        assert_eq!(scheduler_state(), "enabled");
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        await_that("the stock scheduler is back", || scheduler_state() == "disabled");
        daemon = Daemon::start("");
        await_that("the next one attaches it", || scheduler_state() == "enabled");
    }
    assert_eq!(domain.filled_mib(), BTreeMap::from([(1, 32)]));
    daemon.stop();
    await_that("the scheduler is detached", || scheduler_state() == "disabled");
    await_that("its home's CPUs stand in", || {
        status(domain.process(), "Cpus_allowed_list") == "2-3"
    });
    domain.end();
}

#[test]
fn a_stalling_scheduler_is_retried_ever_later_and_bindings_stand_in_meanwhile() {
    let mut daemon =
        Daemon::start_with("--stall-scheduler-after-ms 500 --scheduler-watchdog-ms 1000", "");
    let domain = Domain::start(SPINNING.0, SPINNING.1);
    for intervals in [1, 2, 4] {
        let said = format!("it is tried again in {intervals} intervals");
        await_that(&said, || daemon.said().contains(&said));
    }
    assert!(daemon.said().contains("stall"), "{}", daemon.said());
    await_that("its home's CPUs stand in", || {
        status(domain.process(), "Cpus_allowed_list") == "2-3"
    });
    domain.end();
    daemon.stop();
}
