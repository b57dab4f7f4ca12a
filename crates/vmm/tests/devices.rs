//! Memory of devices, and vCPUs, that a command line gives the guest from its start on.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod common;

use common::{lines, placement, read};
use nearside_vmm::{CommandLine, Vm, complete};

fn line(name: &str) -> CommandLine {
    let all = lines();
    let (_, text) = all.iter().find(|(it, _)| it == name).unwrap();
    read(text).unwrap()
}

/// The memory of each cell's devices in MiB.
fn device_mib(vm: &Vm) -> Vec<Vec<u64>> {
    let of = |cell: &nearside_vmm::Cell| cell.devices.iter().map(|it| it.bytes >> 20).collect();
    vm.cells.iter().map(of).collect()
}

/// The nodes of a backend in the completed command line.
fn nodes(line: &CommandLine, backend: &str) -> String {
    let words = complete(line, &placement(line.vm())).unwrap().words;
    let completed = CommandLine::read(&words).unwrap();
    let mut devices = completed.vm().cells.iter().flat_map(|cell| &cell.devices);
    let device = devices.find(|device| device.backend == backend).unwrap();
    device.host_nodes.as_ref().unwrap().to_string()
}

#[test]
fn memory_devices_belong_to_the_cell_that_they_name() {
    let devices = line("devices");
    // virtio-mem begins with its requested size.
    assert_eq!(device_mib(devices.vm()), [[512], [256]]);
    assert_eq!([nodes(&devices, "mem-dimm0"), nodes(&devices, "mem-vm1")], ["0", "3"]);
    let json = line("devices-json");
    assert_eq!(device_mib(json.vm()), [vec![0], vec![512, 128]]);
    assert_eq!(["d0", "d1", "d2"].map(|it| nodes(&json, it)), ["3", "3", "0"]);
    assert_eq!(device_mib(line("split-device").vm()), [vec![], vec![256]]);
    assert_eq!(device_mib(line("cloud-hotplug").vm()), [vec![256], vec![]]);
}

#[test]
fn memory_of_devices_that_name_no_cell_is_that_of_cell_0() {
    let kinds = line("devices-kinds");
    let of_cell_0 = vec![256, 1, 256, 4, 8];
    assert_eq!(device_mib(kinds.vm()), [of_cell_0, vec![64]]);
    let all = ["cxl-v", "cxl-l", "cxl-p", "shm", "pm", "nv"];
    assert_eq!(all.map(|it| nodes(&kinds, it)), ["0", "0", "0", "0", "0", "3"]);
}

#[test]
fn a_device_whose_backend_the_operator_binds_keeps_its_nodes() {
    let bound = line("devices-operator");
    assert_eq!(device_mib(bound.vm()), [[256, 256]]);
    assert_eq!(["a", "b"].map(|it| nodes(&bound, it)), ["0", "2"]);
}

#[test]
fn vcpus_that_are_plugged_in_later_are_none_at_the_start() {
    for (name, at_start, all) in [
        ("maxcpus", &["0-1"][..], &["0-63"][..]),
        ("maxcpus-kata", &["0"], &["0-127"]),
        ("cloud-hotplug", &["0", "1"], &["0,2", "1,3"]),
        ("machine-smp", &["0-1"], &["0-3"]),
        ("machine-and-options", &["0-1"], &["0-7"]),
    ] {
        let line = line(name);
        let vm = line.vm();
        let of = |cell| (vm.vcpus_at_start(cell).to_string(), cell.vcpus.to_string());
        let cells: Vec<_> = vm.cells.iter().map(of).collect();
        let expected = at_start.iter().zip(all).map(|(a, b)| (a.to_string(), b.to_string()));
        assert_eq!(cells, expected.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn the_machine_states_vcpus_and_memory_as_smp_and_m_do() {
    let of = |name: &str| (line(name).vm().vcpus, line(name).vm().bytes >> 20);
    assert_eq!(of("machine-smp"), (2, 256));
    // -m goes before memory.size in any order.
    assert_eq!(of("machine-and-options"), (2, 128));
}

#[test]
fn an_option_without_a_value_leaves_the_next_word() {
    let line = line("switches");
    let vm = line.vm();
    assert_eq!((vm.vcpus, vm.bytes >> 20, vm.name.as_deref()), (4, 256, Some("a")));
}
