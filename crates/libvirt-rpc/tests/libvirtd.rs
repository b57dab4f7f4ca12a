//! A real libvirt daemon, and `virsh` as the independent witness: `make libvirt-test`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../../scripts/libvirtd.rs"]
mod daemon;

use daemon::{Libvirtd, domain_xml};
use nearside_libvirt::{Domain, IothreadId, VcpuId};
use nearside_libvirt_rpc::{Connection, Error};
use nearside_topology::CpuSet;
use std::time::Duration;

const NAME: &str = "nearside-rpc-two";
const WITHIN: Duration = Duration::from_secs(20);

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// The CPUs that `virsh` prints in the row of a thread: ` 1   0-1`.
fn pin_of(virsh: &str, row: &str) -> CpuSet {
    let line = virsh.lines().find(|line| line.split_whitespace().next() == Some(row));
    set(line.and_then(|line| line.split_whitespace().last()).unwrap())
}

#[test]
#[ignore = "starts a libvirt daemon as root: make libvirt-test"]
fn a_running_domain_is_found_read_and_pinned() {
    let daemon = Libvirtd::start();
    let mut libvirt = Connection::open(&[daemon.socket()], WITHIN).unwrap();
    assert_eq!(libvirt.running_domains().unwrap(), []);
    assert!(libvirt.domain_by_name(NAME).unwrap_err().is_no_domain());

    daemon.create(&domain_xml(NAME, ""));
    let domain = libvirt.domain_by_name(NAME).unwrap();
    assert!(domain.is_running());
    assert_eq!(libvirt.running_domains().unwrap(), std::slice::from_ref(&domain));
    assert_eq!(libvirt.domain_by_id(domain.id).unwrap(), domain);
    assert_eq!(libvirt.domain_by_uuid(domain.uuid).unwrap(), domain);
    let uuid = daemon.virsh(&["domuuid", NAME]).replace(['-', '\n'], "");
    let own: String = domain.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(own, uuid);

    let xml = libvirt.xml(&domain).unwrap();
    assert_eq!(xml.trim(), daemon.virsh(&["dumpxml", NAME]).trim());
    assert_eq!(Domain::read(&xml).unwrap().cells.len(), 2);
    let configured = libvirt.configured_xml(&domain).unwrap();
    assert_eq!(configured.trim(), daemon.virsh(&["dumpxml", "--inactive", NAME]).trim());
    assert!(!libvirt.is_persistent(&domain).unwrap(), "virsh create makes a transient domain");

    // Without pins each thread may run on all CPUs of the host.
    let all = libvirt.emulator_pin(&domain).unwrap();
    assert!(!all.is_empty());
    assert_eq!(libvirt.vcpu_pins(&domain, 2).unwrap(), [all.clone(), all.clone()]);
    assert_eq!(libvirt.iothread_pins(&domain).unwrap(), [(IothreadId(1), all)]);

    libvirt.pin_vcpu(&domain, VcpuId(1), &set("0")).unwrap();
    libvirt.pin_emulator(&domain, &set("0")).unwrap();
    libvirt.pin_iothread(&domain, IothreadId(1), &set("0")).unwrap();
    assert_eq!(pin_of(&daemon.virsh(&["vcpupin", NAME]), "1"), set("0"));
    assert_eq!(daemon.virsh(&["emulatorpin", NAME]).trim(), "0");
    assert_eq!(pin_of(&daemon.virsh(&["iothreadinfo", NAME]), "1"), set("0"));
    assert_eq!(libvirt.vcpu_pins(&domain, 2).unwrap()[1], set("0"));
    assert_eq!(libvirt.emulator_pin(&domain).unwrap(), set("0"));

    // A CPU that the host does not have.
    let refused = libvirt.pin_vcpu(&domain, VcpuId(0), &set("8000")).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let refused = libvirt.pin_vcpu(&domain, VcpuId(9), &set("0")).unwrap_err();
    assert!(refused.to_string().contains("vcpu 9"), "{refused}");
    assert_eq!(libvirt.vcpu_pins(&domain, 2).unwrap()[1], set("0"), "the connection goes on");

    daemon.virsh(&["destroy", NAME]);
    assert!(libvirt.vcpu_pins(&domain, 2).is_err());
    assert_eq!(libvirt.running_domains().unwrap(), []);
}

#[test]
#[ignore = "starts a libvirt daemon as root: make libvirt-test"]
fn the_mode_decides_whether_the_node_set_of_a_running_domain_changes() {
    let daemon = Libvirtd::start();
    let mut libvirt = Connection::open(&[daemon.socket()], WITHIN).unwrap();
    for (mode, number) in [("strict", 0), ("preferred", 1), ("interleave", 2)] {
        let name = format!("nearside-rpc-{mode}");
        let numatune = format!("<numatune><memory mode='{mode}' nodeset='0'/></numatune>");
        daemon.create(&domain_xml(&name, &numatune));
        let domain = libvirt.domain_by_name(&name).unwrap();
        let parameters = libvirt.numa_parameters(&domain).unwrap();
        assert_eq!((parameters.mode, parameters.nodeset.as_str()), (Some(number), "0"));
        let virsh = daemon.virsh(&["numatune", &name]);
        assert!(virsh.contains(mode) && virsh.contains(": 0"), "{virsh}");
        let refused = libvirt.set_numa_nodeset(&domain, "0").unwrap_err().to_string();
        assert!(refused.contains("requires restrictive numa mode"), "{refused}");
    }
}

#[test]
#[ignore = "starts a libvirt daemon as root: make libvirt-test"]
fn a_stopped_daemon_costs_the_bound() {
    let daemon = Libvirtd::start();
    let bound = Duration::from_millis(300);
    let mut libvirt = Connection::open(&[daemon.socket()], WITHIN).unwrap();
    let stopped = daemon.stop();
    let refused = Connection::open(&[daemon.socket()], bound).unwrap_err();
    assert!(matches!(refused, Error::TimedOut { .. }), "{refused}");
    drop(stopped);
    assert_eq!(libvirt.running_domains().unwrap(), []);
}
