//! For each policy, pages lie where the policy says, read from `/proc/PID/numa_maps`.

use nearside_lab::{
    Domain, Look, MIB, huge_pages, json, nearside, node_memory, own_memory, status, words, write,
};
use std::{collections::BTreeMap, process::Command};

/// Starts a domain that fills memory of a kind, and returns the kernel's policy for that memory,
/// its bytes by node, and the nodes its process may use.
fn filled(flags: &str, kind: &str) -> (String, BTreeMap<u32, u64>, String) {
    let domain = start(flags, kind);
    let mems = status(domain.process(), "Mems_allowed_list");
    let result = (domain.policy(), domain.filled(), mems);
    domain.end();
    result
}

fn start(flags: &str, kind: &str) -> Domain {
    let flags = format!("--quiet --name {kind} --cpus 2 --memory {}M {flags}", size_mib(kind));
    Domain::start(&flags, &format!("--mib {} --kind {kind} --threads 2", size_mib(kind)))
}

fn size_mib(kind: &str) -> u64 {
    // Stacks have a limit.
    if kind == "stack" { 4 } else { 64 }
}

/// The memory of an ordinary process: its mappings, its heap and its stack.
const ORDINARY: [&str; 3] = ["anon", "heap", "stack"];

/// Asserts that memory of a kind lies on these nodes alone, in these parts of 4. Some pages more
/// may have been in use before, and interleaving may begin with any node.
fn assert_parts(kind: &str, bytes: &BTreeMap<u32, u64>, quarters: &[(u32, u64)]) {
    assert!(bytes.keys().eq(quarters.iter().map(|(node, _)| node)), "{kind}: {bytes:?}");
    for (node, quarter) in quarters {
        let expected = size_mib(kind) * MIB / 4 * quarter;
        assert!(
            bytes[node].abs_diff(expected) < MIB / 2,
            "{kind}: {expected} expected on node {node}: {bytes:?}"
        );
    }
}

#[test]
fn strict_memory_of_every_kind_is_local_to_the_last_page() {
    huge_pages(2, 40);
    for kind in ["anon", "thp", "shm", "huge", "heap", "stack"] {
        let flags = if kind == "huge" { "--page-size 2M" } else { "" };
        let (policy, bytes, mems) = filled(&format!("--policy strict --nodes 2 {flags}"), kind);
        assert_eq!((policy.as_str(), mems.as_str()), ("bind:2", "2"), "{kind}");
        assert_parts(kind, &bytes, &[(2, 4)]);
    }
    huge_pages(2, 0);
}

#[test]
fn all_memory_of_a_strict_domain_is_local_and_files_are_listed_apart() {
    huge_pages(1, 20);
    let domain = Domain::start(
        "--quiet --name many --cpus 2 --memory 200M --policy strict --nodes 1",
        "--mib 48",
    );
    let joined = [
        "--kind thp --mib 32",
        "--kind shm --mib 24",
        "--kind huge --mib 32",
        "--kind heap --mib 16",
    ];
    let joined = joined.map(|arguments| Domain::join("many", arguments));
    let (own, off_home) = own_memory("/sys/fs/cgroup", "many", 1);
    assert!(
        own >= (48 + 32 + 24 + 32 + 16) * MIB,
        "{own} bytes of the domain's own memory were seen"
    );
    assert_eq!(off_home, 0);

    // Nearside reports the same, with files on a line of their own: the process that read a C
    // library first has it on its node.
    let shown = json("show many --interval 0");
    let mapped = |kind: &str| shown["mapped"]["memory"][kind].as_object().unwrap().clone();
    for kind in ["anonymous", "shared", "huge"] {
        assert!(mapped(kind).keys().eq(["1"]), "{kind}: {shown:#}");
    }
    assert!(!mapped("file").is_empty(), "{shown:#}");
    joined.into_iter().chain([domain]).for_each(Domain::end);
    huge_pages(1, 0);
}

#[test]
fn restrictive_confines_and_leaves_the_policy_to_the_domain() {
    for kind in ORDINARY {
        let (policy, bytes, mems) = filled("--policy restrictive --nodes 3", kind);
        assert_eq!((policy.as_str(), mems.as_str()), ("default", "3"), "{kind}");
        assert_parts(kind, &bytes, &[(3, 4)]);
    }
}

#[test]
fn preferred_fills_its_node_and_may_use_the_others() {
    for kind in ORDINARY {
        let (policy, bytes, mems) = filled("--policy preferred --nodes 1", kind);
        assert_eq!((policy.as_str(), mems.as_str()), ("prefer:1", "0-3"), "{kind}");
        assert_parts(kind, &bytes, &[(1, 4)]);
    }
}

#[test]
fn preferred_many_names_all_nodes_of_the_home() {
    for kind in ORDINARY {
        let (policy, bytes, mems) = filled("--policy preferred-many --nodes 2-3", kind);
        assert_eq!((policy.as_str(), mems.as_str()), ("prefer (many):2-3", "0-3"), "{kind}");
        assert!(bytes.keys().all(|node| [2, 3].contains(node)), "{kind}: {bytes:?}");
        assert!(bytes.values().sum::<u64>() >= size_mib(kind) * MIB, "{kind}: {bytes:?}");
    }
}

#[test]
fn preferred_many_spills_only_where_its_home_is_full() {
    // Huge pages fill the home at once; how many of them it yields is not the point.
    let pool = |node: u32| {
        format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages")
    };
    // A preference takes no more of a node than the memory above its watermarks.
    let reserves = Look::take().nodes("reserve_bytes");
    for node in [2, 3] {
        let free_bytes = node_memory(node as usize, "MemFree");
        let pages = free_bytes.saturating_sub(reserves[node as usize] + 40 * MIB) / (2 * MIB);
        write(&pool(node), &pages.to_string());
    }
    let free = |node: usize| node_memory(node, "MemFree") / MIB;
    let too_many = free(2) + free(3) + 24;
    let flags = "--quiet --name spilling --memory 4M --policy preferred-many --nodes 2-3";
    let domain = Domain::start(flags, &format!("--mib {too_many}"));
    let mib = domain.filled_mib();
    let on = |nodes: [u32; 2]| nodes.iter().filter_map(|node| mib.get(node)).sum::<u64>();
    assert_eq!(domain.policy(), "prefer (many):2-3");
    // A preference does not use the kernel's own reserve of a node.
    assert!(on([0, 1]) >= 8 && on([2, 3]) >= 24, "{too_many} MiB were filled: {mib:?}");
    domain.end();
    [2, 3].into_iter().for_each(|node| write(&pool(node), "0"));
}

#[test]
fn interleaved_memory_lies_in_equal_parts_whichever_thread_touched_it() {
    for kind in ORDINARY {
        let (policy, bytes, _) = filled("--policy interleave --nodes 0,2", kind);
        assert_eq!(policy, "interleave:0,2", "{kind}");
        assert_parts(kind, &bytes, &[(0, 2), (2, 2)]);
    }
}

#[test]
fn weighted_interleave_follows_the_kernels_weights() {
    let weight = "/sys/kernel/mm/mempolicy/weighted_interleave/node1";
    for kind in ORDINARY {
        write(weight, "3");
        let (policy, bytes, _) = filled("--policy weighted-interleave --nodes 0-1", kind);
        write(weight, "1");
        assert_eq!(policy, "weighted interleave:0-1", "{kind}");
        assert_parts(kind, &bytes, &[(0, 1), (1, 3)]);
    }
}

#[test]
fn local_memory_follows_the_cpus() {
    for kind in ORDINARY {
        let (policy, bytes, mems) = filled("--policy local --nodes 1", kind);
        assert_eq!((policy.as_str(), mems.as_str()), ("local", "0-3"), "{kind}");
        assert_parts(kind, &bytes, &[(1, 4)]);
    }
}

#[test]
fn in_a_home_of_two_nodes_local_memory_lies_where_each_process_runs() {
    let of = |command: &mut Command, cpu: &str, node: u32| {
        let command = command.arg("--").args(["taskset", "--cpu-list", cpu]);
        let domain = Domain::wrapped(command, "--mib 16");
        assert_eq!(
            (domain.policy(), domain.filled_mib()),
            ("local".into(), BTreeMap::from([(node, 16)]))
        );
        domain
    };
    let flags = "run --quiet --name both --cpus 4 --memory 64M --policy local --nodes 0-1";
    let first = of(nearside().args(words(flags)), "3", 1);
    let second = of(nearside().args(words("exec both")), "0", 0);
    first.end();
    second.end();
}
