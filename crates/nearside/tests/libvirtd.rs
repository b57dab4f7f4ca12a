//! Nearside's metadata and its hook with a real libvirt: `make libvirt-test`.
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

#[path = "common/made_host.rs"]
mod made_host;

#[path = "../../../scripts/libvirtd.rs"]
mod libvirtd;

use libvirtd::{Libvirtd, domain_xml};
use made_host::Made;
use serde_json::Value;
use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

/// A machine whose only CPU for domains is CPU 0.
fn of_one_cpu() -> Made {
    let made = Made::new(1);
    made.file("sys/devices/system/cpu/online", "0\n");
    made.file("sys/devices/system/node/node0/cpulist", "0\n");
    made
}

/// Runs `nearside` with this input.
fn nearside(arguments: &[&str], input: &str) -> String {
    let mut nearside = Command::new(env!("CARGO_BIN_EXE_nearside"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    nearside.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = nearside.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

fn place(xml: &str, on: &Made) -> String {
    let root = on.root().to_str().unwrap();
    nearside(&["place", "--libvirt", "-", "--affinity", "hard", "--sysfs", root], xml)
}

/// A libvirt whose hook runs this program.
fn with_hook(program: &str) -> Libvirtd {
    Libvirtd::start_with(|folder| {
        let hooks = folder.join("etc/hooks/qemu.d");
        fs::create_dir_all(&hooks).unwrap();
        let file = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = file.join("../../packaging/libvirt/qemu.d/nearside");
        let script = fs::read_to_string(file).unwrap();
        // A busy machine may take long to answer.
        let script = script.replace("/usr/bin/nearside libvirt-hook", program);
        let hook = hooks.join("nearside");
        fs::write(&hook, script.replace(" KILL 0.2 ", " KILL 60 ")).unwrap();
        fs::set_permissions(&hook, PermissionsExt::from_mode(0o755)).unwrap();
    })
}

/// The values that Nearside wrote, as the running domain's metadata tell them.
fn wrote(xml: &str) -> Value {
    let begin = xml.find("{\"intent\"").unwrap();
    let end = xml[begin..].find("</nearside:domain>").unwrap();
    serde_json::from_str::<Value>(&xml[begin..begin + end]).unwrap()["wrote"].clone()
}

/// The CPUs of vCPU 0, as virsh prints them.
fn pin(libvirt: &Libvirtd) -> String {
    let pins = libvirt.virsh(&["vcpupin", "vm"]);
    let line = pins.lines().find(|line| line.split_whitespace().next() == Some("0"));
    line.unwrap().split_whitespace().last().unwrap().to_owned()
}

fn save_and_restore(libvirt: &Libvirtd) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("saved");
    libvirt.virsh(&["save", "vm", file.to_str().unwrap()]);
    libvirt.virsh(&["restore", file.to_str().unwrap()]);
    assert_eq!(libvirt.virsh(&["domstate", "vm"]).trim(), "running");
}

#[test]
#[ignore = "needs root, and libvirtd and QEMU: make libvirt-test"]
fn libvirtd_keeps_metadata_and_nearside_knows_its_values_again() {
    let libvirt = Libvirtd::start();
    let made = of_one_cpu();
    let placed = place(&domain_xml("vm", ""), &made);
    libvirt.create(&placed);
    let dumped = libvirt.virsh(&["dumpxml", "vm"]);
    assert_eq!(wrote(&dumped), wrote(&placed));
    // libvirt writes the XML its own way; these values are still Nearside's.
    let wide = Made::new(1);
    let again = place(&dumped, &wide);
    assert!(again.contains("<vcpupin vcpu='1' cpuset='0-1'/>"), "{again}");
    assert_eq!(wrote(&again)["memnode"], wrote(&placed)["memnode"]);
    assert!(!again.contains("cpuset='0'/>"), "{again}");
}

#[test]
#[ignore = "needs root, and libvirtd and QEMU: make libvirt-test"]
fn libvirtd_restores_a_domain_with_bindings_of_this_machine() {
    let program = env!("CARGO_BIN_EXE_nearside");
    let libvirt = with_hook(&format!("{program} libvirt-hook --within 60"));
    let placed = place(&domain_xml("vm", ""), &of_one_cpu());
    libvirt.create(&placed);
    assert_eq!(pin(&libvirt), "0");
    save_and_restore(&libvirt);
    let dumped = libvirt.virsh(&["dumpxml", "vm"]);
    let now = wrote(&dumped);
    assert_eq!(now["vcpupin"]["0"].as_str().unwrap(), pin(&libvirt));
    assert_ne!(pin(&libvirt), "0");
    // A guest that runs keeps its distances: libvirt would refuse others.
    assert_eq!(now["distances"], wrote(&placed)["distances"]);
    save_and_restore(&libvirt);
}

#[test]
#[ignore = "needs root, and libvirtd and QEMU: make libvirt-test"]
fn libvirtd_restores_a_domain_although_the_hook_fails() {
    let libvirt = with_hook("/bin/false");
    libvirt.create(&place(&domain_xml("vm", ""), &of_one_cpu()));
    save_and_restore(&libvirt);
    assert_eq!(pin(&libvirt), "0");
}
