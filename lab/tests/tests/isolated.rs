//! A host booted with `isolcpus=`: sched_ext refuses to work there, and homes are kept by CPU
//! affinity.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{Domain, await_that, daemon::Daemon, json, read, run, status, stderr, words};

#[test]
fn the_reason_for_no_scheduler_is_reported_once_and_homes_are_kept() {
    assert_eq!(read("/sys/devices/system/cpu/isolated"), "7");
    let mut daemon = Daemon::start("scheduler = \"auto\"");
    let domain = Domain::start(
        "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 8",
    );
    let cpus = |domain: &Domain| status(domain.process(), "Cpus_allowed_list");
    await_that("it says why", || daemon.said().contains("CPUs 7 are isolated (isolcpus=)"));
    assert_eq!(cpus(&domain), "2-3");
    let output = run(words("set db --nodes 2"));
    assert!(output.status.success(), "{}", stderr(&output));
    await_that("it is bound to its new home", || cpus(&domain) == "4-5");
    assert_eq!(daemon.said().matches("isolcpus=").count(), 1, "{}", daemon.said());
    domain.end();
    daemon.stop();
}

#[test]
fn the_doctor_reports_the_isolated_cpus() {
    let doctor = json("doctor");
    let finding = doctor["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["topic"] == "sched_ext");
    let finding = finding.unwrap_or_else(|| panic!("{doctor:#}"));
    assert_eq!(finding["state"], "missing");
    assert!(finding["found"].as_str().unwrap().contains("isolcpus="), "{finding}");
}
