//! Virtual machines that `run --vm` starts: real QEMU, whose memory is read from
//! `/proc/PID/numa_maps`.

use nearside_lab::{Look, MIB, await_that, domains, nearside, read, status, words};
use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Stdio},
};

/// A virtual machine whose guest does not run: QEMU has allocated its memory and waits.
const QEMU: &str = "qemu-system-x86_64 -accel tcg -machine q35 -nodefaults -display none -S \
    -monitor none -smp 4 -mem-prealloc";

fn start(flags: &str, qemu: &str) -> Child {
    let mut command = nearside();
    command.args(words(&format!("run --quiet --vm {flags} -- {QEMU} {qemu}")));
    command.stdin(Stdio::null()).spawn().unwrap()
}

/// The CPUs that each vCPU may use, once QEMU has started its thread.
fn vcpus(process: u32) -> BTreeMap<String, String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let thread = |task: fs::DirEntry| {
        let thread: u32 = task.file_name().to_str()?.parse().ok()?;
        let name = read(&format!("/proc/{process}/task/{thread}/comm"));
        let vcpu = name.strip_prefix("CPU ")?.strip_suffix("/TCG")?.to_owned();
        Some((vcpu, status(thread, "Cpus_allowed_list")))
    };
    tasks.filter_map(thread).collect()
}

/// Bytes of the mappings that are all of a guest's memory of `mib`, by policy and node.
fn guest_memory(process: u32, mib: u64) -> BTreeMap<(String, u32), u64> {
    let text = fs::read_to_string(format!("/proc/{process}/numa_maps")).unwrap_or_default();
    let mut memory = BTreeMap::new();
    for line in text.lines() {
        let policy = line.split(' ').nth(1).unwrap().to_owned();
        let counts = line.split(' ').filter_map(|word| word.strip_prefix('N')?.split_once('='));
        let pages: Vec<(u32, u64)> =
            counts.map(|(node, pages)| (node.parse().unwrap(), pages.parse().unwrap())).collect();
        // The rest of QEMU is far smaller than any backend here.
        if pages.iter().map(|(_, pages)| pages * 4096).sum::<u64>() < 48 * MIB {
            continue;
        }
        for (node, pages) in pages {
            *memory.entry((policy.clone(), node)).or_default() += pages * 4096;
        }
    }
    let all: u64 = memory.values().sum();
    if all == mib * MIB { memory } else { BTreeMap::new() }
}

fn end(mut vm: Child) {
    vm.kill().unwrap();
    vm.wait().unwrap();
    await_that("the virtual machine's end", || domains().is_empty());
}

#[test]
fn each_cell_of_a_virtual_machine_is_allocated_on_its_own_node() {
    let vm = start("--name vm1 --cells 2", "-name guest=vm1,debug-threads=on -m 192M");
    let mut memory = BTreeMap::new();
    await_that("192 MiB of guest memory", || {
        memory = guest_memory(vm.id(), 192);
        !memory.is_empty()
    });
    let [(first, one), (second, other)] = &memory.into_iter().collect::<Vec<_>>()[..] else {
        panic!("memory of two cells on one node each");
    };
    assert_eq!((*one, *other), (96 * MIB, 96 * MIB));
    let nodes = [first.1, second.1];
    assert_eq!(
        [&first.0, &second.0],
        [&format!("bind:{}", first.1), &format!("bind:{}", second.1)]
    );
    // Neighbours, which are nearer than any others.
    assert_eq!((nodes[0] / 2, nodes[1]), (nodes[1] / 2, nodes[0] + 1));
    let home = format!("{}-{}", nodes[0], nodes[1]);
    assert_eq!(status(vm.id(), "Mems_allowed_list"), home);
    // Two vCPUs for each cell; nodes have two CPUs.
    let at_home =
        [0, 0, 1, 1].map(|cell: usize| format!("{}-{}", 2 * nodes[cell], 2 * nodes[cell] + 1));
    let expected: BTreeMap<_, _> = (0..).map(|it: u32| it.to_string()).zip(at_home).collect();
    await_that("vCPUs on their cell's node", || vcpus(vm.id()) == expected);
    assert_eq!(Look::take().claim("vm1"), nodes.map(|node| (node, 96 * MIB)).into());
    end(vm);
}

#[test]
fn bindings_of_the_operator_and_his_arguments_stay() {
    let bound = "-m 128M -object memory-backend-ram,id=a,size=64M,host-nodes=3,policy=bind \
        -numa node,cpus=0-1,memdev=a -object memory-backend-ram,id=b,size=64M \
        -numa node,cpus=2-3,memdev=b";
    let vm = start("--name vm2", bound);
    let expected = [(("bind:2".into(), 2), 64 * MIB), (("bind:3".into(), 3), 64 * MIB)];
    await_that("cells on nodes 3 and 2", || guest_memory(vm.id(), 128) == expected.clone().into());
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", vm.id())).unwrap();
    let own = "memory-backend-ram,id=a,size=64M,host-nodes=3,policy=bind";
    assert!(arguments.contains(own), "{arguments:?}");
    end(vm);
}
