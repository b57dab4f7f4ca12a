//! Four nodes under systemd, whose cgroups are its own.

use std::process::Command;

#[test]
fn systemd_runs_a_scope() {
    let init = std::fs::read_to_string("/proc/1/comm").unwrap();
    assert_eq!(init.trim(), "systemd");
    let output = Command::new("systemd-run")
        .args([
            "--scope",
            "--quiet",
            "--unit=nearside-smoke",
            "--property=AllowedMemoryNodes=1",
            "cat",
            "/proc/self/cgroup",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let cgroup = String::from_utf8(output.stdout).unwrap();
    assert!(cgroup.trim().ends_with("nearside-smoke.scope"), "{cgroup}");
}
