//! On a cgroup v2 tree without cpu, cpuset and memory controllers, everything else works, and each
//! limit is reported once.

use nearside_lab::{
    Domain, Look, MIB, own_memory, read, run, run_as_nobody, status, stderr, stdout, words,
};
use nearside_linux::{Host, Paths};
use std::{collections::BTreeMap, path::Path};

/// The mount point of the tree.
fn tree() -> String {
    let mounts = read("/proc/self/mounts");
    let mount = mounts.lines().find(|line| line.starts_with("cgroup2 ")).expect("a cgroup v2 tree");
    mount.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn the_tree_has_none_of_the_controllers() {
    let controllers = read(&format!("{}/cgroup.controllers", tree()));
    for absent in ["cpu", "cpuset", "memory"] {
        assert!(
            !controllers.split_whitespace().any(|found| found == absent),
            "{absent} is in {controllers}"
        );
    }
}

#[test]
fn policy_and_affinity_hold_without_cpusets() {
    let domain = Domain::start(
        "--name bare --cpus 2 --memory 64M --policy strict --nodes 1",
        "--mib 32 --threads 2",
    );
    assert_eq!(domain.policy(), "bind:1");
    assert_eq!(domain.filled_mib(), BTreeMap::from([(1, 32)]));
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "2-3");
    let processes = read(&format!("{}/nearside/bare/cgroup.procs", tree()));
    assert_eq!(processes, domain.process().to_string());
    let (own, off_home) = own_memory(&tree(), "bare", 1);
    assert!(own >= 32 * MIB && off_home == 0, "{off_home} of {own} bytes lie off node 1");
    domain.end();
}

#[test]
fn limits_of_the_host_are_reported_once() {
    for dry in ["", "--dry-run"] {
        let output = run(words(&format!(
            "run {dry} --name bare --memory 8M --policy strict --nodes 1 -- true"
        )));
        assert!(output.status.success());
        assert_eq!(
            stderr(&output).matches("no cpuset controller").count(),
            1,
            "{dry}: {}",
            stderr(&output)
        );
    }
    let cases = [
        ("--cpu-limit 1", "cpu controller"),
        ("--memory-limit 8M", "memory controller"),
        ("--policy restrictive", "cpuset controller"),
    ];
    for (flag, controller) in cases.into_iter().flat_map(|(flag, controller)| {
        [flag.to_owned(), format!("{flag} --dry-run")].map(|flags| (flags, controller))
    }) {
        let output = run(words(&format!("run --name refused --memory 8M {flag} -- true")));
        assert_eq!(output.status.code(), Some(125), "{flag}");
        assert!(stderr(&output).contains(controller), "{flag}: {}", stderr(&output));
        assert!(!Path::new(&format!("{}/nearside/refused", tree())).exists(), "{flag}");
    }
    Look::take().assert_nothing_is_promised();
}

#[test]
fn claims_count_by_mapped_memory() {
    let domain = Domain::start("--name bare --memory 128M --policy strict --nodes 1", "--mib 100");
    let look = Look::take();
    // 100 MiB and some of the program's own are used, and the rest is outstanding: 128 in all, not
    // 228.
    let used: u64 = look.domain("bare", "resident_bytes").values().sum();
    assert!((100 * MIB..110 * MIB).contains(&used), "{look:?}");
    assert_eq!(
        look.domain("bare", "outstanding_bytes"),
        BTreeMap::from([(1, 128 * MIB - used)]),
        "{look:?}"
    );
    domain.end();
    Look::take().assert_nothing_is_promised();
}

#[test]
fn a_domains_pages_can_be_moved() {
    let domain =
        Domain::start("--name bare --cpus 2 --memory 64M --policy preferred --nodes 1", "--mib 32");
    let output = run(words("set bare --nodes 2 --move-memory"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(domain.filled_mib(), BTreeMap::from([(2, 32)]));
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "4-5");
    domain.end();
}

#[test]
fn threads_that_are_started_while_others_are_bound_do_not_escape() {
    let domain = Domain::start(
        "--name bare --cpus 2 --memory 64M --policy preferred --nodes 1",
        "--mib 8 --restless",
    );
    // Many times, since a race would lie between two instructions.
    for (node, cpus) in [(2, "4-5"), (3, "6-7"), (1, "2-3")].repeat(3) {
        let output = run(words(&format!("set bare --nodes {node}")));
        assert!(output.status.success(), "{}", stderr(&output));
        let tasks = std::fs::read_dir(format!("/proc/{}/task", domain.process())).unwrap();
        for task in tasks.map(|task| task.unwrap().path()) {
            // A thread that has ended has passed its affinity on to the next.
            let Ok(text) = std::fs::read_to_string(task.join("status")) else { continue };
            let allowed =
                text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
            assert_eq!(allowed, cpus, "{}: {}", task.display(), stderr(&output));
        }
    }
    domain.end();
}

#[test]
fn a_programs_own_affinity_outlives_nearsides_binding() {
    let domain =
        Domain::start("--quiet --name bare --cpus 2 --memory 64M --nodes 1", "--mib 8 --spin");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", domain.process())).unwrap();
    let tasks: Vec<String> =
        tasks.map(|task| task.unwrap().file_name().into_string().unwrap()).collect();
    let allowed = |task: &String| status(task.parse().unwrap(), "Cpus_allowed_list");
    let pin = |task: &str, cpus: &str| {
        let pinned =
            std::process::Command::new("taskset").args(["-pc", cpus, task]).output().unwrap();
        assert!(pinned.status.success(), "{}", stderr(&pinned));
    };
    let [pinned, free] = [&tasks[0], &tasks[1]];
    assert_eq!((allowed(pinned), allowed(free)), ("2-3".into(), "2-3".into()));
    pin(pinned, "2");
    let mut host = Host::open(Paths::default()).unwrap();
    assert!(host.begin().unwrap().unbind("bare").unwrap());
    assert_eq!((allowed(pinned), allowed(free)), ("2".into(), "0-7".into()));
    pin(pinned, "5");
    assert!(host.begin().unwrap().bind_to_home("bare").unwrap());
    assert_eq!((allowed(pinned), allowed(free)), ("5".into(), "2-3".into()));
    let moved = run(words("set bare --nodes 3"));
    assert!(moved.status.success(), "{}", stderr(&moved));
    assert_eq!((allowed(pinned), allowed(free)), ("5".into(), "6-7".into()));
    domain.end();
}

#[test]
fn the_commands_that_only_look_work() {
    for line in ["topology", "place --cpus 1 --memory 8M", "list", "stat", "stat --all", "doctor"] {
        let output = run(words(line));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(!stdout(&output).is_empty(), "{line}");
    }
}

#[test]
fn hidden_memory_is_reported_as_hidden_not_as_none() {
    let domain = Domain::start("-q --name bare --memory 16M --policy strict --nodes 1", "--mib 8");
    let output = run_as_nobody(words("list --format json"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("CAP_SYS_PTRACE").count(), 1, "{}", stderr(&output));
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bare = &listed["domains"][0];
    assert_eq!(bare["usage"]["memory_seen"], "hidden", "{listed}");
    assert!(bare["local_share"].is_null() && bare["debt_bytes"].is_null(), "{listed}");
    domain.end();
}
