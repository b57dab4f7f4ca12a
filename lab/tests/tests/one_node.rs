//! No NUMA, no cost: on one node domains run and nothing is bound.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{
    Domain, MIB, Own, await_that, by_node,
    daemon::{Daemon, get},
    json, read, run, status, stderr, stdout, words,
};

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/sys/devices/system/node/online"), "0");
}

#[test]
fn a_domain_runs_unbound_and_is_seen() {
    let policies = [
        "strict",
        "preferred",
        "preferred-many",
        "interleave",
        "weighted-interleave",
        "restrictive",
        "local",
    ];
    for policy in policies {
        let domain =
            Domain::start(&format!("--name plain --memory 32M --policy {policy}"), "--mib 16");
        assert_eq!(domain.policy(), "default", "{policy}");
        assert_eq!(
            status(domain.process(), "Cpus_allowed_list"),
            read("/sys/devices/system/cpu/online"),
            "{policy}"
        );
        for file in ["cpuset.cpus", "cpuset.mems"] {
            assert_eq!(
                read(&format!("/sys/fs/cgroup/nearside/plain/{file}")),
                "",
                "{policy}: {file}"
            );
        }
        let list = json("list");
        assert_eq!(list["domains"][0]["name"], "plain");
        domain.end();
    }
}

#[test]
fn a_domain_can_be_entered_and_shown_and_is_at_home() {
    let limits = "--cpu-limit 1.5 --memory-limit 64M";
    let flags =
        format!("--name plain --memory 32M --nodes 0 --affinity hard --policy strict {limits}");
    let domain = Domain::start(&flags, "--mib 16");
    assert_eq!(read("/sys/fs/cgroup/nearside/plain/cpu.max"), "150000 100000");
    assert_eq!(read("/sys/fs/cgroup/nearside/plain/memory.max"), (64 * MIB).to_string());
    let joined = Domain::join("plain", "--mib 8");
    assert_eq!(read(&format!("/proc/{}/cgroup", joined.process())), "0::/nearside/plain");
    assert_eq!(joined.policy(), "default");

    let shown = json("show plain --interval 0");
    assert_eq!(
        (&shown["local_share"], &shown["debt_bytes"]),
        (&1.0.into(), &0.into()),
        "{shown:#}"
    );
    assert_eq!(
        by_node(&shown["mapped"]["memory"]["anonymous"]),
        Own::of([domain.process(), joined.process()]).bytes
    );
    assert!(shown["mapped"]["policies"].as_object().unwrap().keys().eq(["default"]), "{shown:#}");
    assert_eq!(
        (&shown["usage"]["processes"], &shown["home"]["nodes"]),
        (&2.into(), &vec![0].into()),
        "{shown:#}"
    );
    for unbound in ["cpus", "memory_nodes", "policy_nodes"] {
        assert!(shown["record"][unbound].is_null(), "{unbound}: {shown:#}");
    }
    domain.end();
    joined.end();
}

#[test]
fn a_domain_is_at_home_already_and_cannot_go_elsewhere() {
    let domain = Domain::start("--name plain --memory 32M --policy strict", "--mib 16");
    for flags in ["", "--move-memory", "--dry-run"] {
        let output = run(words(&format!("set plain --nodes 0 {flags}")));
        assert_eq!(output.status.code(), Some(0), "{flags}: {}", stderr(&output));
        assert!(
            stdout(&output).contains("this machine has one node"),
            "{flags}: {}",
            stdout(&output)
        );
        assert_eq!(stderr(&output), "", "{flags}");
    }
    let report = json("set plain --nodes 0 --move-memory");
    assert_eq!(
        (&report["moved_bytes"], &report["nodes"]),
        (&0.into(), &vec![0].into()),
        "{report}"
    );
    assert_eq!(json("set plain --nodes 0 --dry-run")["steps"], serde_json::json!([]));
    for (line, code) in
        [("set plain --nodes 1", 2), ("run --name other --memory 8M --nodes 0-1 -- true", 125)]
    {
        let output = run(words(line));
        assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains("node 1"), "{line}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{line}");
    }
    assert_eq!(domain.policy(), "default");
    assert_eq!(
        status(domain.process(), "Cpus_allowed_list"),
        read("/sys/devices/system/cpu/online")
    );
    assert_eq!(read("/sys/fs/cgroup/nearside/plain/cpuset.mems"), "");
    domain.end();
}

#[test]
fn on_one_node_no_notice_of_a_fallback_binding_is_given() {
    let output = run(words("run --name plain --memory 8M -- true"));
    assert!(output.status.success());
    assert_eq!(stderr(&output), "");
}

#[test]
fn claims_count_on_one_node() {
    let machine_bytes = json("topology")["nodes"][0]["memory_bytes"].as_u64().unwrap();
    let most = format!("run --name most --memory {} -- true", machine_bytes + MIB);
    let output = run(words(&most));
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("more than the whole machine"), "{}", stderr(&output));
    let available = json("stat")["nodes"][0]["available_bytes"].as_u64().unwrap();
    let two_thirds = available * 2 / 3 / MIB;
    let first = Domain::start(&format!("--name first --memory {two_thirds}M"), "--mib 1");
    assert_eq!(
        run(words(&format!("run --name second --memory {two_thirds}M -- true"))).status.code(),
        Some(125)
    );
    first.end();
    assert!(
        run(words(&format!("run --name second --memory {two_thirds}M -- true"))).status.success()
    );
}

#[test]
fn the_commands_that_only_look_work() {
    for line in
        ["topology", "list", "stat", "stat --heap --all", "doctor", "place --cpus 1 --memory 8M"]
    {
        let output = run(words(line));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(!stdout(&output).is_empty(), "{line}");
    }
}

#[test]
fn the_daemon_leaves_everything_as_it_is() {
    let daemon = Daemon::start("");
    let domain = Domain::start("--name plain --cpus 1 --memory 32M", "--mib 16");
    let seen_at = || get("/health")["interval"].as_u64().unwrap();
    await_that("the domain is seen", || get("/domains")["domains"][0]["name"] == "plain");
    let since = seen_at();
    await_that("some intervals have passed", || seen_at() > since + 10);
    assert_eq!(read("/sys/kernel/sched_ext/state"), "disabled");
    assert_eq!(read("/sys/fs/cgroup/nearside/plain/cpuset.cpus"), "");
    assert_eq!(
        status(domain.process(), "Cpus_allowed_list"),
        read("/sys/devices/system/cpu/online")
    );
    domain.end();
    daemon.stop();
}
