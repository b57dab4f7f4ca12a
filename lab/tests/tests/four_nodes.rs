//! The usual guest: four nodes, cgroup v2 with all controllers, no systemd.

use std::fs;

#[expect(clippy::panic, reason = "a helper of tests")]
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn guest_has_four_nodes_and_every_controller() {
    assert_eq!(read("/sys/devices/system/node/online").trim(), "0-3");
    assert_eq!(
        read("/sys/devices/system/node/node0/distance")
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["10", "15", "30", "30"]
    );
    let controllers = read("/sys/fs/cgroup/cgroup.controllers");
    for wanted in ["cpu", "cpuset", "memory", "hugetlb"] {
        assert!(
            controllers.split_whitespace().any(|found| found == wanted),
            "no {wanted} in {controllers}"
        );
    }
    assert_eq!(
        read("/sys/kernel/sched_ext/state").trim(),
        "disabled",
        "sched_ext is there, and off"
    );
}
