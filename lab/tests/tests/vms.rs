//! Virtual machines of a real libvirtd, on a machine of four nodes: two CPUs and 768 MiB on each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{
    libvirt::{Cells, Libvirt, Vm},
    run, stderr, stdout,
};
use std::fs;

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

/// The nodes of the cells' memory, each of which has to be on one node, with its vCPUs there.
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
fn cells_of_a_virtual_machine_start_on_nodes_of_their_own() {
    let _libvirt = Libvirt::start();
    for memory_mib in [vec![64], vec![64, 68], vec![48, 52, 56, 60]] {
        let cells = Cells { vcpus: 2, memory_mib };
        let vm = Vm::start("cells", &cells, &placed(&cells.xml("cells", ""), &[]));
        vm.await_pass();
        let mut nodes = nodes_of_cells(&vm, &cells);
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), cells.memory_mib.len(), "two cells share a node");
    }
}
