//! No NUMA, no cost: on one node domains run and nothing is bound.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{Domain, MIB, json, read, run, status, stderr, stdout, words};

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/sys/devices/system/node/online"), "0");
}

#[test]
fn a_domain_runs_unbound_and_is_seen() {
    for policy in ["strict", "preferred", "preferred-many", "interleave", "restrictive", "local"] {
        let domain = Domain::start(&format!("--name plain --memory 32M --policy {policy}"), "--mib 16");
        assert_eq!(domain.policy(), "default", "{policy}");
        assert_eq!(status(domain.process(), "Cpus_allowed_list"), read("/sys/devices/system/cpu/online"), "{policy}");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            assert_eq!(read(&format!("/sys/fs/cgroup/nearside/plain/{file}")), "", "{policy}: {file}");
        }
        let list = json("list");
        assert_eq!(list["domains"][0]["name"], "plain");
        domain.end();
    }
}

#[test]
fn no_notice_of_a_stand_in_is_given_where_there_is_nothing_to_stand_in_for() {
    let output = run(words("run --name plain --memory 8M -- true"));
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
}

#[test]
fn claims_count_here_too() {
    let machine_bytes = json("topology")["nodes"][0]["memory_bytes"].as_u64().unwrap();
    let most = format!("run --name most --memory {} -- true", machine_bytes + MIB);
    let output = run(words(&most));
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("more than the whole machine"), "{}", stderr(&output));
    let unclaimed = json("stat")["nodes"][0]["unclaimed_bytes"].as_u64().unwrap();
    let two_thirds = unclaimed * 2 / 3 / MIB;
    let first = Domain::start(&format!("--name first --memory {two_thirds}M"), "--mib 1");
    assert_eq!(run(words(&format!("run --name second --memory {two_thirds}M -- true"))).status.code(), Some(125));
    first.end();
    assert!(run(words(&format!("run --name second --memory {two_thirds}M -- true"))).status.success());
}

#[test]
fn the_commands_that_only_look_work() {
    for line in ["topology", "list", "stat", "stat --heap --all", "doctor", "place --cpus 1 --memory 8M"] {
        let output = run(words(line));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(!stdout(&output).is_empty(), "{line}");
    }
}
