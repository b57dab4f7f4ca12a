//! `nearside place --format qemu`, as arguments of QEMU.

use crate::{allowed, await_filled, place, placed, promised_all_of_node_0_but};
use nearside_lab::{await_that, stderr, words};
use std::process::{Child, Command, Stdio};

/// QEMU with the arguments of a home, and on the CPUs that the note beside them names. Its guest
/// does not run, but has all of its memory.
struct Qemu(Child);

impl Qemu {
    fn start(flags: &str, arguments: &str) -> Self {
        let note = stderr(&place(&format!("{flags} --format qemu")));
        let cpus = note.split_once("taskset --cpu-list ").unwrap().1.split(' ').next().unwrap();
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", cpus, "qemu-system-x86_64"]);
        let fixed = "-accel tcg,thread=multi -machine q35 -nodefaults -display none -monitor none \
                     -S -mem-prealloc -name odd,debug-threads=on";
        command.args(words(fixed)).args(words(arguments));
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The backends of QEMU arguments: their bytes, and the nodes and the policy of each.
fn backends(arguments: &str) -> Vec<(u64, Vec<u32>)> {
    let of_line = |line: &str| {
        let options = line.strip_prefix("-object memory-backend-ram,")?;
        let of = |key: &'static str| options.split(',').filter_map(move |it| it.strip_prefix(key));
        let kib: u64 = of("size=").next()?.strip_suffix('K')?.parse().ok()?;
        Some((kib << 10, of("host-nodes=").map(|node| node.parse().unwrap()).collect()))
    };
    arguments.lines().filter_map(of_line).collect()
}

#[test]
fn memory_of_each_policy_is_on_the_nodes_of_the_home() {
    for (flags, cpus, policy, nodes) in [
        ("--nodes 1,3 --policy strict", "2-3", "bind:3", &[3][..]),
        ("--nodes 1 --policy preferred", "2-3", "prefer:0", &[0]),
        ("--nodes 0,4 --policy interleave", "0-1", "interleave:0,4", &[0, 4]),
        ("--cpus 3 --policy local", "0-3", "default", &[0]),
    ] {
        let flags = format!("--memory 56M {flags}");
        let qemu = Qemu::start(&flags, &placed(&format!("{flags} --format qemu")));
        let process = qemu.0.id();
        let found = await_filled(process, 56 << 20);
        assert_eq!(found, (policy.to_owned(), nodes.to_vec()), "{flags}");
        let mut threads = Vec::new();
        await_that("its vCPUs are there", || {
            threads = allowed(process, "CPU ");
            !threads.is_empty()
        });
        assert!(threads.iter().all(|(_, its)| its == cpus), "{flags}: {threads:?}");
    }
}

#[test]
fn each_cell_of_a_strict_home_is_on_its_node_with_cpus_or_without() {
    let promised = promised_all_of_node_0_but(48);
    let flags = "--cpus 4 --memory 160M --policy strict";
    let arguments = placed(&format!("{flags} --format qemu"));
    let backends = backends(&arguments);
    let nodes: Vec<_> = backends.iter().map(|(_, nodes)| nodes.clone()).collect();
    assert_eq!(nodes, [[0], [3]], "{arguments}");
    assert_eq!(backends.iter().map(|(bytes, _)| bytes).sum::<u64>(), 160 << 20);
    assert!(arguments.contains("-numa node,nodeid=1,memdev=ram1\n"), "{arguments}");
    let qemu = Qemu::start(flags, &arguments);
    for (bytes, nodes) in backends {
        let expected = (format!("bind:{}", nodes[0]), nodes);
        assert_eq!(await_filled(qemu.0.id(), bytes), expected, "{arguments}");
    }
    drop(qemu);
    promised.end();
}
