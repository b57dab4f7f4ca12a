//! Virtual machines of a real libvirtd, on a machine of four nodes: two CPUs and 768 MiB on each.
//!
//! A start takes 15 s under emulation, so a test starts as few as it can. All facts are read from
//! `/proc` while the virtual machine keeps touching its memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{
    await_that,
    daemon::Daemon,
    huge_pages, json,
    libvirt::{Cells, Libvirt, Vm, virsh},
    run, stderr, stdout,
};
use std::{collections::BTreeSet, fs};

/// The CPUs of a node, as the kernel lists them.
fn cpus_of(node: u32) -> String {
    format!("{}-{}", 2 * node, 2 * node + 1)
}

/// The domain's XML, completed by `nearside place --libvirt`.
fn placed(xml: &str, flags: &[&str]) -> String {
    fs::write("/tmp/asked.xml", xml).unwrap();
    let output = run(["place", "--libvirt", "/tmp/asked.xml"].iter().chain(flags));
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Places and starts a virtual machine, and waits until it has touched its memory.
fn started(name: &str, cells: &Cells, extra: &str, flags: &[&str]) -> Vm {
    let vm = Vm::start(name, cells, &placed(&cells.xml(name, extra), flags));
    vm.await_pass();
    vm
}

/// The node of each cell's memory. Asserts that all of a cell's memory is on one node, and that its
/// vCPUs may run on that node's CPUs only.
fn nodes_of_cells(vm: &Vm, cells: &Cells) -> Vec<u32> {
    let vcpus = vm.vcpus();
    let node_of = |cell: usize| {
        let memory = vm.memory(cell);
        let nodes: Vec<u32> = memory.bytes.keys().copied().collect();
        let [node] = nodes[..] else { panic!("cell {cell} on several nodes: {memory:?}") };
        let own = &vcpus[cell * cells.vcpus as usize..][..cells.vcpus as usize];
        assert!(own.iter().all(|cpus| *cpus == cpus_of(node)), "cell {cell}: {vcpus:?}");
        node
    };
    (0..cells.memory_mib.len()).map(node_of).collect()
}

#[test]
fn cells_start_on_nodes_of_their_own() {
    let _libvirt = Libvirt::start();
    for memory_mib in [vec![64], vec![64, 68], vec![48, 52, 56, 60]] {
        let cells = Cells { vcpus: 2, memory_mib };
        let vm = started("cells", &cells, "", &[]);
        let nodes: BTreeSet<u32> = nodes_of_cells(&vm, &cells).into_iter().collect();
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
        ("strict", "2", "bind:2"),
        ("preferred", "1", "prefer:1"),
        ("interleave", "0,3", "interleave:0,3"),
        // The nodes of the cgroup confine it.
        ("restrictive", "3", "default"),
    ] {
        let vm = started("policy", &cells, "", &["--policy", policy, "--nodes", nodes]);
        let memory = vm.memory(0);
        assert_eq!(memory.policy, kernels, "{policy}");
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
    let vm = started("huge", &cells, extra, &[]);
    let nodes = nodes_of_cells(&vm, &cells);
    assert_ne!(nodes[0], nodes[1]);
    for (cell, mib) in [(0, 64), (1, 68)] {
        // QEMU allocates huge pages before the start.
        let memory = vm.memory(cell);
        assert_eq!(memory.bytes.values().sum::<u64>(), mib << 20, "{memory:?}");
    }
    drop(vm);
    (0..4).for_each(|node| huge_pages(node, 0));
}

/// The share of a cell's memory that lies on a node.
fn share_on(vm: &Vm, cell: usize, node: u32) -> f64 {
    let bytes = vm.memory(cell).bytes;
    let on = bytes.get(&node).copied().unwrap_or(0);
    on as f64 / bytes.values().sum::<u64>().max(1) as f64
}

/// The daemon's figures of each cell of the only virtual machine.
fn guest_cells(vm: &Vm) -> Vec<serde_json::Value> {
    let shown = json(&format!("show {} --interval 0.1", vm.group()));
    shown["guest_cells"].as_array().cloned().unwrap_or_default()
}

/// The home of each cell, if each has one of a single node.
fn homes(vm: &Vm) -> Option<Vec<u32>> {
    let cells = guest_cells(vm);
    let home = |cell: &serde_json::Value| {
        let nodes = cell["home"]["nodes"].as_array()?;
        (nodes.len() == 1).then(|| nodes[0].as_u64()).flatten().map(|node| node as u32)
    };
    (!cells.is_empty()).then(|| cells.iter().map(home).collect())?
}

/// A machine that nothing binds. The daemon gives each cell a home, and libvirt pins its vCPUs; an
/// operator moves one cell and then the other, while the guest keeps writing to its memory.
#[test]
fn each_cell_of_a_running_machine_moves_by_itself() {
    let _libvirt = Libvirt::start();
    // Where it moves pages, Nearside leaves memory to it.
    write("/proc/sys/kernel/numa_balancing", "0");
    let cells = Cells { vcpus: 1, memory_mib: vec![64, 68] };
    let vm = Vm::start("live", &cells, &cells.xml("live", ""));
    vm.await_pass();
    let daemon = Daemon::start("found = [\"machine/*\"]\nscheduler = \"off\"");
    let is_at = |cell: usize, node: u32| {
        share_on(&vm, cell, node) >= 0.95 && vm.vcpus()[cell] == cpus_of(node)
    };
    await_that("each cell has a home of its own, and is there", || {
        let Some(homes) = homes(&vm) else { return false };
        homes[0] != homes[1] && is_at(0, homes[0]) && is_at(1, homes[1])
    });
    let mut at = homes(&vm).unwrap();
    for cell in [1, 0] {
        let free = (0..4).find(|node| !at.contains(node)).unwrap();
        let (number, node) = (cell.to_string(), free.to_string());
        let set = run(["set", &vm.group(), "--cell", &number, "--nodes", &node]);
        assert!(set.status.success(), "{}", stderr(&set));
        at[cell] = free;
        await_that("the cell has moved, and the other stays", || {
            is_at(0, at[0]) && is_at(1, at[1])
        });
        // libvirt agrees.
        let pins = String::from_utf8(virsh(["vcpupin", "live"]).stdout).unwrap();
        for (vcpu, node) in at.iter().enumerate() {
            let pin = format!("{vcpu} {}", cpus_of(*node));
            let is_its = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") == pin;
            assert!(pins.lines().any(is_its), "{pin}: {pins}");
        }
        // The emulator serves both.
        let both = at.iter().flat_map(|node| [2 * node, 2 * node + 1]).collect();
        assert_eq!(cpus(&vm.emulator()), both);
    }
    let shared = at[0].to_string();
    let refused = run(["set", &vm.group(), "--cell", "1", "--nodes", &shared]);
    assert!(stderr(&refused).contains("two cells never share a node"), "{}", stderr(&refused));
    for (cell, node) in guest_cells(&vm).iter().zip(&at) {
        assert!(cell["local_share"].as_f64().unwrap() >= 0.95, "{cell}");
        assert_eq!(cell["home"]["nodes"], serde_json::json!([node]), "{cell}");
    }
    daemon.stop();
}

/// Without any binding of threads, under the scheduler: the vCPUs of each cell stay on the node of
/// its memory, although all of them are in one domain with a home of two nodes.
#[test]
fn vcpus_of_each_cell_prefer_its_node_under_the_scheduler() {
    let _libvirt = Libvirt::start();
    let cells = Cells { vcpus: 2, memory_mib: vec![64, 68] };
    let vm = started("soft", &cells, "", &["--affinity", "soft", "--nodes", "1,2"]);
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
