//! The cells of a running machine move one by one.

use super::cpus;
use nearside_lab::{
    await_that,
    daemon::Daemon,
    json,
    libvirt::{Cells, Libvirt, Vm, cpus_of, virsh},
    run, stderr, write,
};

/// The share of a cell's memory that lies on a node.
fn share_on(vm: &Vm, cell: usize, node: u32) -> f64 {
    let bytes = vm.memory(cell).bytes;
    let on = bytes.get(&node).copied().unwrap_or(0);
    on as f64 / bytes.values().sum::<u64>().max(1) as f64
}

/// The daemon's figures of each cell of the virtual machine in a cgroup.
fn guest_cells(cgroup: &str) -> Vec<serde_json::Value> {
    let shown = json(&format!("show {cgroup} --interval 0.1"));
    shown["guest_cells"].as_array().cloned().unwrap_or_default()
}

/// The home of each cell, if each has one of a single node.
pub(super) fn homes(cgroup: &str) -> Option<Vec<u32>> {
    let cells = guest_cells(cgroup);
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
    let mut at = Vec::new();
    await_that("each cell has a home of its own, and is there", || {
        at = homes(&vm.cgroup()).unwrap_or_default();
        at.len() == 2 && at[0] != at[1] && is_at(0, at[0]) && is_at(1, at[1])
    });
    for cell in [1, 0] {
        let free = (0..4).find(|node| !at.contains(node)).unwrap();
        let (number, node) = (cell.to_string(), free.to_string());
        let set = run(["set", &vm.cgroup(), "--cell", &number, "--nodes", &node]);
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
    let exported = run(["export", &vm.cgroup()]);
    assert!(exported.status.success(), "{}", stderr(&exported));
    let intent: serde_json::Value = serde_json::from_slice(&exported.stdout).unwrap();
    assert_eq!(intent["cells"].as_array().map(Vec::len), Some(2), "{intent}");
    let shared = at[0].to_string();
    let refused = run(["set", &vm.cgroup(), "--cell", "1", "--nodes", &shared]);
    assert!(stderr(&refused).contains("two cells never share a node"), "{}", stderr(&refused));
    for (cell, node) in guest_cells(&vm.cgroup()).iter().zip(&at) {
        assert!(cell["local_share"].as_f64().unwrap() >= 0.95, "{cell}");
        assert_eq!(cell["home"]["nodes"], serde_json::json!([node]), "{cell}");
    }
    daemon.stop();
}
