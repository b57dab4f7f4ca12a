//! A host whose cgroup v2 tree has no cpu, cpuset or memory controller, as on hybrid layouts: what can work works, and
//! what cannot is said once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{Domain, MIB, domains, json, read, run, status, stderr, words};
use std::collections::BTreeMap;

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    let controllers = read("/sys/fs/cgroup/cgroup.controllers");
    for absent in ["cpu", "cpuset", "memory"] {
        assert!(!controllers.split_whitespace().any(|found| found == absent), "{absent} is in {controllers}");
    }
}

#[test]
fn policy_and_affinity_hold_without_cpusets() {
    let domain = Domain::start("--name bare --cpus 2 --memory 64M --policy strict --nodes 1", "--mib 32 --threads 2");
    assert_eq!(domain.policy(), "bind:1");
    assert_eq!(domain.filled_mib(), BTreeMap::from([(1, 32)]));
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "2-3");
    domain.end();
}

#[test]
fn what_cannot_work_is_said_once() {
    let output = run(words("run --name bare --memory 8M --policy strict --nodes 1 -- true"));
    assert!(output.status.success());
    assert_eq!(stderr(&output).matches("no cpuset controller").count(), 1, "{}", stderr(&output));
    for (flag, controller) in [("--cpu-limit 1", "cpu controller"), ("--memory-limit 8M", "memory controller")] {
        let output = run(words(&format!("run --name bare --memory 8M {flag} -- true")));
        assert_eq!(output.status.code(), Some(125), "{flag}");
        assert!(stderr(&output).contains(controller), "{flag}: {}", stderr(&output));
    }
    let output = run(words("run --name bare --memory 8M --policy restrictive --nodes 1 -- true"));
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("restrictive needs the cpuset controller"), "{}", stderr(&output));
    assert_eq!(domains(), [""; 0]);
}

#[test]
fn claims_count_by_what_processes_map() {
    let before = json("stat")["nodes"][1]["unclaimed_bytes"].as_u64().unwrap();
    let domain = Domain::start("--name bare --memory 128M --policy strict --nodes 1", "--mib 100");
    let during = json("stat")["nodes"][1]["unclaimed_bytes"].as_u64().unwrap();
    // 100 MiB are used and 28 more are promised: 128 in all, not 228.
    assert!((120 * MIB..180 * MIB).contains(&before.saturating_sub(during)), "{before} before, {during} during");
    domain.end();
}

#[test]
fn a_domains_pages_can_be_moved() {
    let domain = Domain::start("--name bare --cpus 2 --memory 64M --policy preferred --nodes 1", "--mib 32");
    let output = run(words("set bare --nodes 2 --move-memory"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(domain.filled_mib(), BTreeMap::from([(2, 32)]));
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "4-5");
    domain.end();
}

#[test]
fn the_commands_that_only_look_work() {
    for line in ["topology", "list", "stat", "stat --all", "doctor"] {
        let output = run(words(line));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
    }
}
