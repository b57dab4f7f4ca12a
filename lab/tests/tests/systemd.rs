//! Where systemd runs it owns the cgroup tree: domains are scopes of its, and changes go through it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{Domain, MIB, domains, json, read, run, status, stderr, words, write};
use std::{collections::BTreeMap, process::Command};

const GROUP: &str = "/sys/fs/cgroup/nearside.slice/nearside-web.scope";

fn property(name: &str) -> String {
    let unit = "nearside-web.scope";
    let output = Command::new("systemctl").args(["show", "--value", "--property", name, unit]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/proc/1/comm"), "systemd");
}

#[test]
fn a_domain_is_a_scope_with_its_limits_and_its_home() {
    let flags = "--quiet --name web --cpus 2 --memory 64M --policy strict --nodes 2 --cpu-limit 1.5 --memory-limit 96M";
    let domain = Domain::start(flags, "--mib 32 --threads 2");
    assert_eq!(property("ActiveState"), "active");
    assert_eq!(property("Slice"), "nearside.slice");
    assert_eq!(property("AllowedCPUs"), "4-5");
    assert_eq!(property("AllowedMemoryNodes"), "2");
    assert_eq!(read(&format!("{GROUP}/cpu.max")), "150000 100000");
    assert_eq!(read(&format!("{GROUP}/memory.max")), (96 * MIB).to_string());
    assert_eq!(read(&format!("{GROUP}/cpuset.mems")), "2");
    assert_eq!(domain.filled_mib(), BTreeMap::from([(2, 32)]));
    assert_eq!(domains(), ["web"]);

    // systemd knows what it is to be, so it stays when systemd writes everything anew.
    assert!(Command::new("systemctl").arg("daemon-reload").status().unwrap().success());
    assert_eq!(read(&format!("{GROUP}/cpuset.mems")), "2");
    domain.end();
    assert_eq!(domains(), [""; 0]);
}

#[test]
fn a_home_is_changed_through_systemd() {
    let domain = Domain::start("--quiet --name web --cpus 2 --memory 64M --policy strict --nodes 1", "--mib 32");
    let output = run(words("set web --nodes 3 --move-memory"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(domain.filled_mib(), BTreeMap::from([(3, 32)]));
    assert_eq!(property("AllowedMemoryNodes"), "3");
    assert_eq!(property("AllowedCPUs"), "6-7");
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "6-7");
    domain.end();
}

#[test]
fn huge_pages_are_seen_although_systemd_gives_no_controller_for_them() {
    let pool = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";
    write(pool, "20");
    let flags = "--quiet --name web --memory 32M --page-size 2M --policy strict --nodes 1";
    let domain = Domain::start(flags, "--mib 32 --kind huge");
    let own = json("show web")["resident_bytes"]["1"].as_u64();
    assert_eq!(own, Some(32 * MIB));
    domain.end();
    write(pool, "0");
}

#[test]
fn a_command_that_is_not_found_leaves_no_scope() {
    assert_eq!(run(words("run --name web --memory 8M -- /nonexistent")).status.code(), Some(127));
    assert!(!std::path::Path::new(GROUP).exists());
    assert_eq!(domains(), [""; 0]);
}

#[test]
fn two_domains_of_one_name_are_refused_here_too() {
    let domain = Domain::start("--quiet --name web --memory 8M", "--mib 1");
    let second = run(words("run --name web --memory 8M -- true"));
    assert_eq!(second.status.code(), Some(125));
    assert!(stderr(&second).contains("web is running"), "{}", stderr(&second));
    domain.end();
    let third = run(words("run --quiet --name web --memory 8M -- true"));
    assert!(third.status.success(), "{}", stderr(&third));
}
