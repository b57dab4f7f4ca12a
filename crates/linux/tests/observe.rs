//! Observing a made-up host.
#![allow(clippy::unwrap_used)]

use nearside_linux::{Host, Paths};
use nearside_policy::Machine;
use nearside_topology::Topology;
use std::{fs, path::Path};

/// A host of one node, below a folder, as far as observing it goes.
fn made_up(root: &Path) -> Host {
    let file = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let tree = root.join("cg");
    file(
        "proc/self/mountinfo",
        &format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", tree.display()),
    );
    file("proc/sys/kernel/random/boot_id", "b\n");
    file("cg/cgroup.controllers", "memory\n");
    file("sys/devices/system/cpu/online", "0-1\n");
    file("sys/devices/system/node/node0/cpulist", "0-1\n");
    file("sys/devices/system/node/node0/distance", "10\n");
    file(
        "sys/devices/system/node/node0/meminfo",
        "Node 0 MemTotal: 4096 kB\nNode 0 MemFree: 1024 kB\n",
    );
    Host::open(Paths { root: root.into(), state: root.join("run/nearside") }).unwrap()
}

#[test]
fn domains_are_offered_the_cpus_and_nodes_of_the_group_above() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = made_up(folder.path());
    assert_eq!(host.allowed(), None, "no cpuset controller");
    let file = |path: &str, text: &str| {
        fs::create_dir_all(folder.path().join(path).parent().unwrap()).unwrap();
        fs::write(folder.path().join(path), text).unwrap();
    };
    file("cg/cpuset.cpus.effective", "0-1\n");
    file("cg/cpuset.mems.effective", "0\n");
    assert_eq!(host.allowed().unwrap().by, "/");
    file("cg/nearside/cpuset.cpus.effective", "1\n");
    file("cg/nearside/cpuset.mems.effective", "0\n");
    assert_eq!(host.allowed().unwrap().by, "/nearside");
    let cpus = |topology: &Topology| topology.cpus_of_nodes(&topology.node_set()).to_string();
    file("cg/cpuset.cpus.isolated", "1\n");
    assert_eq!(host.allowed().unwrap().isolated_cpus.to_string(), "1");
    file("cg/cpuset.cpus.isolated", "\n");
    let offered = host.observe().unwrap().topology;
    assert_eq!((cpus(&host.topology().unwrap()), cpus(&offered)), ("0-1".into(), "1".into()));
    assert_eq!(offered.withheld.cpus.to_string(), "0");
}

#[test]
fn unreadable_memory_files_are_noted_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = made_up(folder.path());
    let free_bytes = host.topology().unwrap().nodes[0].state.unwrap().free_bytes;
    host.observe().unwrap();
    // CPUs without caches are normal in virtual machines, so no note is given.
    let notices = host.take_notices();
    assert_eq!((free_bytes, notices.len()), (1 << 20, 1), "{notices:?}");
    assert!(
        notices[0].contains("proc/zoneinfo: No such file") && notices[0].contains("watermarks"),
        "{notices:?}"
    );
    assert!(host.take_notices().is_empty());
}
