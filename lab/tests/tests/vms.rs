//! Virtual machines of a real libvirtd or virtqemud, on a machine of four nodes: two CPUs and 768
//! MiB on each.
//!
//! A start takes 15 s under emulation, so a test starts as few as it can. All facts are read from
//! `/proc` while the virtual machine keeps touching its memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "vms/auto.rs"]
mod auto;
#[path = "vms/live.rs"]
mod live;
#[path = "vms/modular.rs"]
mod modular;
#[path = "vms/starts.rs"]
mod starts;
#[path = "vms/without_libvirt.rs"]
mod without_libvirt;

use nearside_lab::{
    await_that,
    daemon::Daemon,
    huge_pages,
    libvirt::{Cells, Libvirt, Vm},
};
use std::collections::BTreeSet;

#[test]
fn cells_start_on_nodes_of_their_own() {
    let _libvirt = Libvirt::start();
    for memory_mib in [vec![64], vec![64, 68], vec![48, 52, 56, 60]] {
        let cells = Cells { vcpus: 2, memory_mib };
        let vm = Vm::start_placed("cells", &cells, "", &[]);
        let nodes: BTreeSet<u32> = vm.nodes_of_cells().into_iter().collect();
        assert_eq!(nodes.len(), cells.memory_mib.len(), "two cells share a node: {nodes:?}");
        // It allocates the memory, so it has to reach the CPUs of all cells.
        let reached: BTreeSet<u32> = cpus(&vm.emulator());
        let needed = nodes.iter().flat_map(|node| [2 * node, 2 * node + 1]).collect();
        assert!(reached.is_superset(&needed), "{reached:?}");
    }
}

/// A list of CPUs as the kernel writes it.
fn cpus(list: &str) -> BTreeSet<u32> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse().unwrap()..=last.parse::<u32>().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

#[test]
fn memory_of_a_virtual_machine_follows_each_policy() {
    let _libvirt = Libvirt::start();
    let cells = Cells { vcpus: 2, memory_mib: vec![64] };
    for (policy, nodes, kernels) in [
        ("strict", "2", &["bind:2"][..]),
        // QEMU 8 and later prefer a set of nodes.
        ("preferred", "1", &["prefer:1", "prefer (many):1"]),
        ("interleave", "0,3", &["interleave:0,3"]),
        // The nodes of the cgroup confine it.
        ("restrictive", "3", &["default"]),
    ] {
        let vm = Vm::start_placed("policy", &cells, "", &["--policy", policy, "--nodes", nodes]);
        let memory = vm.memory(0);
        assert!(kernels.contains(&memory.policy.as_str()), "{policy}: {}", memory.policy);
        let asked: BTreeSet<u32> = cpus(nodes);
        assert_eq!(memory.bytes.keys().copied().collect::<BTreeSet<_>>(), asked, "{policy}");
    }
}

#[test]
fn huge_pages_of_each_cell_lie_on_its_node() {
    let _libvirt = Libvirt::start();
    (0..4).for_each(|node| huge_pages(node, 40));
    let cells = Cells { vcpus: 2, memory_mib: vec![64, 68] };
    let extra = "  <memoryBacking>\n    <hugepages>\n      <page size='2' unit='MiB'/>\n    \
                 </hugepages>\n  </memoryBacking>\n";
    let vm = Vm::start_placed("huge", &cells, extra, &[]);
    let nodes = vm.nodes_of_cells();
    assert_ne!(nodes[0], nodes[1]);
    for (cell, mib) in [(0, 64), (1, 68)] {
        // QEMU allocates huge pages before the start.
        let memory = vm.memory(cell);
        assert_eq!(memory.bytes.values().sum::<u64>(), mib << 20, "{memory:?}");
    }
    drop(vm);
    (0..4).for_each(|node| huge_pages(node, 0));
}

/// Without any binding of threads, under the scheduler: the vCPUs of each cell stay on the node of
/// its memory, although all of them are in one domain with a home of two nodes.
#[test]
fn vcpus_of_each_cell_prefer_its_node_under_the_scheduler() {
    let _libvirt = Libvirt::start();
    let cells = Cells { vcpus: 2, memory_mib: vec![64, 68] };
    let vm = Vm::start_placed("soft", &cells, "", &["--affinity", "soft", "--nodes", "1,2"]);
    assert!(vm.vcpus().iter().all(|cpus| cpus == "0-7"), "{:?}", vm.vcpus());
    let home = |cell: usize| -> Vec<u32> { vm.memory(cell).bytes.keys().copied().collect() };
    let homes = [home(0), home(1)];
    assert!(homes.iter().all(|nodes| nodes.len() == 1) && homes[0] != homes[1], "{homes:?}");
    let daemon = Daemon::start("found = [\"machine/*\"]\nscheduler = \"on\"");
    // Each runs at home in so many looks in a row.
    let mut looks_at_home = 0;
    await_that("the vCPUs of each cell stay on its node", || {
        let nodes: Vec<u32> = vm.vcpu_nodes();
        let expected: Vec<u32> = homes.iter().flat_map(|node| [node[0], node[0]]).collect();
        looks_at_home = if nodes == expected { looks_at_home + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(100));
        looks_at_home == 20
    });
    daemon.stop();
}
