//! `nearside run --vm` with memory that no `-numa` names, vCPUs that are not plugged in, a file of
//! devices, and a cell without vCPUs.

use crate::{await_filled, promised_all_of_node_0_but};
use nearside_lab::{MIB, await_that, domains, json, mapping_of_size, nearside, words};
use serde_json::json;
use std::{fs, process::Stdio};

/// As Proxmox gives it to machines of type q35.
const DEVICES: &str = r#"[device "ehci"]
  driver = "ich9-usb-ehci1"
  multifunction = "on"
  bus = "pcie.0"
  addr = "1d.7"
"#;

const QEMU: &str = "qemu-system-x86_64 -accel tcg -machine q35 -nodefaults -display none -S \
    -monitor none -mem-prealloc -readconfig /tmp/devices.cfg -smp 2,maxcpus=64 \
    -m 88M,slots=4,maxmem=1G \
    -object memory-backend-ram,id=ram0,size=48M -numa node,nodeid=0,cpus=0-63,memdev=ram0 \
    -object memory-backend-ram,id=ram1,size=40M -numa node,nodeid=1,memdev=ram1 \
    -object memory-backend-ram,id=dimm,size=56M -device pc-dimm,memdev=dimm,node=0 \
    -object memory-backend-ram,id=more,size=64M \
    -device virtio-mem-pci,memdev=more,node=1,requested-size=32M";

#[test]
fn all_memory_of_a_guest_is_claimed_and_on_the_nodes_of_its_cells() {
    fs::write("/tmp/devices.cfg", DEVICES).unwrap();
    // Room for the first cell alone.
    let promised = promised_all_of_node_0_but(120);
    let mut command = nearside();
    command.args(words(&format!("run --quiet --vm --name devices -- {QEMU}")));
    let mut vm = command.stdin(Stdio::null()).spawn().unwrap();
    for (mib, node) in [(48, 0), (56, 0), (40, 3)] {
        let expected = (format!("bind:{node}"), vec![node]);
        assert_eq!(await_filled(vm.id(), mib * MIB), expected, "{mib} MiB");
    }
    // The guest has not asked for this memory, but -mem-prealloc makes it for an instant.
    let more = mapping_of_size(vm.id(), 64 * MIB).unwrap();
    assert_eq!(more.policy, "bind:3");
    assert!(more.bytes.keys().all(|&node| node == 3), "{:?}", more.bytes);
    let show = json("show devices --interval 0");
    assert_eq!(show["claim"]["bytes"], json!({"0": 104 * MIB, "3": 72 * MIB}), "{show:#}");
    let vcpus = show["claim"]["vcpus"].as_object().unwrap().values();
    assert_eq!(vcpus.map(|count| count.as_u64().unwrap()).sum::<u64>(), 2, "{show:#}");
    vm.kill().unwrap();
    vm.wait().unwrap();
    promised.end();
    await_that("both have ended", || domains().is_empty());
}
