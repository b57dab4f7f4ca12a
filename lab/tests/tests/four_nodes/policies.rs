//! For each policy, pages lie where the policy says, read from `/proc/PID/numa_maps`.

use nearside_lab::{Domain, status, write};
use std::collections::BTreeMap;

const SIZE_MIB: u64 = 64;

/// Starts a domain that fills memory of a kind, and gives the policy the kernel shows for that memory, its MiB by node,
/// and the nodes its process may use.
fn filled(flags: &str, kind: &str) -> (String, BTreeMap<u32, u64>, String) {
    let flags = format!("--quiet --name {kind} --cpus 2 --memory {SIZE_MIB}M {flags}");
    let domain = Domain::start(&flags, &format!("--mib {SIZE_MIB} --kind {kind} --threads 2"));
    let mems = status(domain.process(), "Mems_allowed_list");
    let result = (domain.policy(), domain.filled_mib(), mems);
    domain.end();
    result
}

fn all_on(nodes: &[(u32, u64)]) -> BTreeMap<u32, u64> {
    nodes.iter().copied().collect()
}

#[test]
fn strict_memory_of_every_kind_is_local_to_the_last_page() {
    write("/sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages", "40");
    for kind in ["anon", "thp", "shm"] {
        let (policy, bytes, mems) = filled("--policy strict --nodes 2", kind);
        assert_eq!((policy.as_str(), mems.as_str()), ("bind:2", "2"), "{kind}");
        assert_eq!(bytes, all_on(&[(2, SIZE_MIB)]), "{kind}");
    }
    let (_, bytes, _) = filled("--policy strict --nodes 2 --page-size 2M", "huge");
    assert_eq!(bytes, all_on(&[(2, SIZE_MIB)]));
    write("/sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages", "0");
}

#[test]
fn restrictive_confines_and_leaves_the_policy_to_the_domain() {
    let (policy, bytes, mems) = filled("--policy restrictive --nodes 3", "anon");
    assert_eq!((policy.as_str(), mems.as_str()), ("default", "3"));
    assert_eq!(bytes, all_on(&[(3, SIZE_MIB)]));
}

#[test]
fn preferred_fills_its_node_and_may_use_the_others() {
    let (policy, bytes, mems) = filled("--policy preferred --nodes 1", "anon");
    assert_eq!((policy.as_str(), mems.as_str()), ("prefer:1", "0-3"));
    assert_eq!(bytes, all_on(&[(1, SIZE_MIB)]));
}

#[test]
fn preferred_many_names_all_nodes_of_the_home() {
    let (policy, bytes, mems) = filled("--policy preferred-many --nodes 2-3", "anon");
    assert_eq!((policy.as_str(), mems.as_str()), ("prefer (many):2-3", "0-3"));
    assert_eq!(bytes.keys().filter(|&&node| node < 2).count(), 0, "{bytes:?}");
    assert_eq!(bytes.values().sum::<u64>(), SIZE_MIB);
}

#[test]
fn interleaved_memory_lies_in_equal_parts_whoever_touched_it() {
    let (policy, bytes, _) = filled("--policy interleave --nodes 0,2", "anon");
    assert_eq!(policy, "interleave:0,2");
    assert_eq!(bytes, all_on(&[(0, SIZE_MIB / 2), (2, SIZE_MIB / 2)]));
}

#[test]
fn weighted_interleave_follows_the_kernels_weights() {
    let weight = "/sys/kernel/mm/mempolicy/weighted_interleave/node1";
    write(weight, "3");
    let (policy, bytes, _) = filled("--policy weighted-interleave --nodes 0-1", "anon");
    write(weight, "1");
    assert_eq!(policy, "weighted interleave:0-1");
    assert_eq!(bytes, all_on(&[(0, SIZE_MIB / 4), (1, SIZE_MIB * 3 / 4)]));
}

#[test]
fn local_memory_follows_the_cpus() {
    let (policy, bytes, mems) = filled("--policy local --nodes 1", "anon");
    assert_eq!((policy.as_str(), mems.as_str()), ("local", "0-3"));
    assert_eq!(bytes, all_on(&[(1, SIZE_MIB)]));
}
