//! A host whose cgroup v2 tree has no cpu, cpuset or memory controller.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "shared/without_controllers.rs"]
mod without_controllers;

use nearside_lab::read;

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/sys/devices/system/node/online"), "0-3");
    assert!(read("/proc/self/mounts").contains("cgroup2 /sys/fs/cgroup cgroup2"));
}
