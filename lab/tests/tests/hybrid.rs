//! A host as systemd lays it out with `systemd.unified_cgroup_hierarchy=0`: the controllers are on
//! version 1, and beside them is a version 2 without any.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "shared/without_controllers.rs"]
mod without_controllers;

use nearside_lab::{Domain, json, read};

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/sys/devices/system/node/online"), "0-3");
    let mounts = read("/proc/self/mounts");
    assert!(mounts.contains("cgroup2 /sys/fs/cgroup/unified cgroup2"), "{mounts}");
    assert!(
        mounts.lines().any(|line| line.contains(" cgroup ") && line.contains("cpuacct")),
        "{mounts}"
    );
}

#[test]
fn a_domain_is_a_group_of_version_2_alone() {
    let domain = Domain::start("-q --name bare --memory 8M", "--mib 1");
    let groups = read(&format!("/proc/{}/cgroup", domain.process()));
    let (version_2, version_1): (Vec<_>, Vec<_>) =
        groups.lines().partition(|line| line.starts_with("0::"));
    assert_eq!(version_2, ["0::/nearside/bare"]);
    assert!(!version_1.is_empty() && version_1.iter().all(|line| line.ends_with(":/")), "{groups}");
    domain.end();
}

#[test]
fn the_doctor_knows_the_layout() {
    let doctor = json("doctor");
    assert_eq!(doctor["can_run"], true);
    let finding = doctor["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["topic"] == "cgroup layout");
    let finding = finding.unwrap_or_else(|| panic!("{doctor:#}"));
    assert_eq!(finding["state"], "limited");
    assert!(finding["found"].as_str().unwrap().contains("/sys/fs/cgroup/unified"), "{finding}");
}
