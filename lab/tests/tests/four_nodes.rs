//! An operator's view of a machine of four nodes: two CPUs and 768 MiB on each, neighbours in
//! pairs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "four_nodes/claims.rs"]
mod claims;
#[path = "four_nodes/faults.rs"]
mod faults;
#[path = "four_nodes/frames.rs"]
mod frames;
#[path = "four_nodes/keeping.rs"]
mod keeping;
#[path = "four_nodes/killing.rs"]
mod killing;
#[path = "four_nodes/moving.rs"]
mod moving;
#[path = "four_nodes/numad.rs"]
mod numad;
#[path = "four_nodes/partitions.rs"]
mod partitions;
#[path = "four_nodes/policies.rs"]
mod policies;
#[path = "four_nodes/run_vm.rs"]
mod run_vm;
#[path = "four_nodes/running.rs"]
mod running;
#[path = "four_nodes/seeing.rs"]
mod seeing;
#[path = "four_nodes/unfit.rs"]
mod unfit;
#[path = "four_nodes/unprivileged.rs"]
mod unprivileged;

use nearside_lab::read;

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/sys/devices/system/node/online"), "0-3");
    assert_eq!(read("/sys/devices/system/node/node0/distance"), "10 15 30 30");
    let controllers = read("/sys/fs/cgroup/cgroup.controllers");
    for wanted in ["cpu", "cpuset", "memory", "hugetlb"] {
        assert!(
            controllers.split_whitespace().any(|found| found == wanted),
            "no {wanted} in {controllers}"
        );
    }
}
