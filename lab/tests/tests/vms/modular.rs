//! The modular daemon virtqemud of Debian 13 with its QEMU. lab/test runs the other tests of
//! virtual machines under it, too.

use nearside_lab::{
    await_that,
    daemon::{Daemon, ask},
    json,
    libvirt::{Cells, Libvirt, Vm, cpus_of, virsh},
    stdout,
};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn cells_are_placed_shown_and_pinned_again_under_virtqemud() {
    let _libvirt = Libvirt::start();
    assert!(Path::new("/run/libvirt/virtqemud-sock").exists());
    assert!(!Path::new("/run/libvirt/libvirt-sock").exists());
    let cells = Cells { vcpus: 2, memory_mib: vec![64, 68] };
    let vm = Vm::start_placed("cells", &cells, "", &[]);
    let nodes = vm.nodes_of_cells();
    assert_ne!(nodes[0], nodes[1]);
    let shown = json(&format!("show {} --interval 0", vm.cgroup()));
    for (number, node) in nodes.iter().enumerate() {
        let cell = &shown["guest"]["cells"][number];
        let nodes: Vec<&String> = cell["bytes"].as_object().unwrap().keys().collect();
        assert_eq!(nodes, [&node.to_string()], "{shown:#}");
        assert_eq!(cell["threads"], json!({node.to_string(): 2}), "{shown:#}");
    }
    drop(vm);
    pins_follow_the_home();
}

fn pins_follow_the_home() {
    let cells = Cells { vcpus: 2, memory_mib: vec![64] };
    let vm = Vm::start("free", &cells, &cells.xml("free", ""));
    vm.await_pass();
    let daemon = Daemon::start("found = [\"machine/*\"]\nscheduler = \"off\"");
    let path = format!("/domains/{}", vm.cgroup().replace('/', "%2F"));
    let home = || match ask("GET", &path, None) {
        Some((200, domain)) => domain["home"]["nodes"][0].as_u64(),
        _ => None,
    };
    let is_pinned = |node: u32| vm.vcpus().iter().all(|cpus| *cpus == cpus_of(node));
    await_that("the machine is pinned to its home", || {
        home().is_some_and(|node| is_pinned(node as u32))
    });
    let node = (home().unwrap() as u32 + 2) % 4;
    let (code, answer): (u16, Value) =
        ask("PUT", &format!("{path}/affinity"), Some(&json!({"nodes": [node]}))).unwrap();
    assert_eq!(code, 200, "{answer}");
    await_that("the machine is pinned to its new home", || is_pinned(node));
    let pins = stdout(&virsh(["vcpupin", "free"]));
    assert_eq!(pins.matches(&cpus_of(node)).count(), 2, "{pins}");
    daemon.stop();
}
