//! `nearside place --format numactl`, in front of a command.

use crate::placed;
use nearside_lab::{Domain, status, words};
use std::process::Command;

/// A command as `place` would run it: its CPUs, its policy in the kernel's words, and the nodes of
/// its memory.
fn started(flags: &str) -> (String, String, Vec<u32>) {
    let line = placed(&format!("--memory 64M --format numactl {flags}"));
    let mut words = words(&line);
    let mut numactl = Command::new(words.next().unwrap());
    let domain = Domain::wrapped(numactl.args(words), "--mib 8");
    let cpus = status(domain.process(), "Cpus_allowed_list");
    let found = (cpus, domain.policy(), domain.filled().into_keys().collect());
    domain.end();
    found
}

#[test]
fn a_command_runs_on_the_cpus_and_has_memory_on_the_nodes_of_its_home() {
    for (flags, cpus, policy, nodes) in [
        ("--cpus 1 --policy strict", "0-1", "bind:0", &[0][..]),
        // The CPUs of nodes 0 and 1 are needed.
        ("--cpus 3 --policy strict", "0-3", "bind:0", &[0]),
        ("--cpus 3 --policy preferred", "0-3", "prefer:0", &[0]),
        ("--cpus 3 --policy preferred-many", "0-3", "prefer (many):0", &[0]),
        ("--cpus 3 --policy interleave", "0-3", "interleave:0", &[0]),
        ("--cpus 3 --policy restrictive", "0-3", "default", &[0]),
        // No memory of its own: the nearest.
        ("--nodes 1 --policy preferred", "2-3", "prefer:0", &[0]),
        ("--nodes 1 --policy preferred-many", "2-3", "prefer (many):0", &[0]),
        ("--nodes 1 --policy interleave", "2-3", "interleave:0", &[0]),
        ("--nodes 1 --policy local", "2-3", "local", &[0]),
        // CPUs of one node, memory of another.
        ("--nodes 1,3 --policy strict", "2-3", "bind:3", &[3]),
        ("--nodes 1,3 --policy preferred", "2-3", "prefer:3", &[3]),
        ("--nodes 1,3 --policy preferred-many", "2-3", "prefer (many):3", &[3]),
        ("--nodes 1,3-4 --policy interleave", "2-3", "interleave:3-4", &[3, 4]),
        ("--nodes 0,4 --policy strict", "0-1", "bind:0,4", &[0]),
        ("--nodes 0,4 --policy interleave", "0-1", "interleave:0,4", &[0, 4]),
    ] {
        let expected = (cpus.to_owned(), policy.to_owned(), nodes.to_vec());
        assert_eq!(started(flags), expected, "{flags}");
    }
}
