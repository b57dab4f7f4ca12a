//! `nearside place --format libvirt` and `--libvirt`, as domains of a real libvirtd.
//!
//! The domains stay paused: each is judged by its process, in which no firmware has run. Where
//! nodes have CPUs, libvirt allocates all memory before.

use crate::{allowed, await_filled, place, placed, promised_all_of_node_0_but};
use nearside_lab::{
    MIB,
    libvirt::{Libvirt, create_paused, process_of, virsh},
    mapping_of_size, status, stderr,
};
use std::fs;

const NAME: &str = "odd";

/// A paused domain. It is destroyed when dropped.
struct Paused {
    process: u32,
}

impl Paused {
    fn create(xml: &str) -> Self {
        Self::try_create(xml).unwrap_or_else(|said| panic!("{said}\n{xml}"))
    }

    /// Its process, or what libvirt says.
    fn try_create(xml: &str) -> Result<Self, String> {
        let output = create_paused(NAME, xml).wait_with_output().unwrap();
        match output.status.success() {
            true => Ok(Self { process: process_of(NAME) }),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// The policy of the cell of this size, in the kernel's words. libvirt rounds cells up to MiB.
    fn policy(&self, bytes: u64) -> String {
        mapping_of_size(self.process, bytes.next_multiple_of(MIB)).unwrap().policy
    }

    /// The CPUs of each of its vCPUs that is plugged in.
    fn vcpus(&self) -> Vec<(String, String)> {
        allowed(self.process, "CPU ")
    }

    fn emulator(&self) -> String {
        status(self.process, "Cpus_allowed_list")
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        let _ = virsh(["destroy", NAME]);
    }
}

/// libvirt's wish for all memory at the start, before the guest uses any.
const PREALLOCATED: &str =
    "  <memoryBacking>\n    <allocation mode='immediate'/>\n  </memoryBacking>\n";

/// A domain with these elements.
fn domain(elements: &str) -> String {
    format!(
        "<domain type='kvm'>
  <name>{NAME}</name>
{elements}  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
  </os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"
    )
}

fn vcpus(expected: &[(u32, &str)]) -> Vec<(String, String)> {
    let of = |&(vcpu, cpus): &(u32, &str)| (format!("{vcpu}/KVM"), cpus.to_owned());
    expected.iter().map(of).collect()
}

/// The bytes of each cell, in the order of the XML.
fn cells(xml: &str) -> Vec<u64> {
    let cells = xml.lines().filter(|line| line.trim().starts_with("<cell "));
    let kib = |line: &str| {
        let value = line.split_once(" memory='").unwrap().1.split('\'').next().unwrap();
        let unit = if line.contains("unit='MiB'") { 20 } else { 10 };
        value.parse::<u64>().unwrap() << unit
    };
    cells.map(kib).collect()
}

#[test]
fn elements_of_a_home_start_a_domain_there() {
    let _libvirt = Libvirt::start();
    // The emulator allocates memory with threads on its nodes, even where no vCPU may run.
    for (flags, cpus, emulator, policy, nodes) in [
        ("--nodes 1 --policy preferred", "2-3", "0-3", "prefer:0", &[0][..]),
        ("--nodes 0,4 --policy interleave", "0-1", "0-1", "interleave:0,4", &[0, 4]),
    ] {
        let elements = placed(&format!("--cpus 2 --memory 56M {flags} --format libvirt"));
        let vm = Paused::create(&domain(&(elements + PREALLOCATED)));
        let found = await_filled(vm.process, 56 << 20);
        assert_eq!(found, (policy.to_owned(), nodes.to_vec()), "{flags}");
        assert_eq!(vm.vcpus(), vcpus(&[(0, cpus), (1, cpus)]), "{flags}");
        assert_eq!(vm.emulator(), emulator, "{flags}");
    }
    // Node 0 has no room for all of it, and node 3 has no CPUs.
    let promised = promised_all_of_node_0_but(48);
    let elements = placed("--cpus 4 --memory 160M --policy strict --format libvirt");
    let sizes = cells(&elements);
    assert!(sizes.len() == 2 && sizes.iter().sum::<u64>() == 160 << 20, "{elements}");
    let vm = Paused::create(&domain(&elements));
    assert_eq!([0, 1].map(|cell| vm.policy(sizes[cell])), ["bind:0", "bind:3"], "{elements}");
    assert_eq!(vm.vcpus(), vcpus(&[(0, "0-3"), (1, "0-3"), (2, "0-3"), (3, "0-3")]));
    drop(vm);
    promised.end();
}

/// Cell 0 has two vCPUs of which one is plugged in, cell 1 has memory alone.
const CELLS: &str = "  <memory unit='MiB'>120</memory>
  <vcpu current='1'>2</vcpu>
  <cpu>
    <numa>
      <cell id='0' cpus='0-1' memory='56' unit='MiB'/>
      <cell id='1' memory='64' unit='MiB'/>
    </numa>
  </cpu>
";

/// The domain as `place` completes it, and its notes.
fn completed(elements: &str, nodes: &str) -> (String, String) {
    fs::write("/tmp/odd-asked.xml", domain(elements)).unwrap();
    let flags = format!("--libvirt /tmp/odd-asked.xml --policy strict --nodes {nodes}");
    (placed(&flags), stderr(&place(&flags)))
}

#[test]
fn a_completed_domain_starts_with_cells_without_vcpus_and_vcpus_that_are_not_there() {
    let _libvirt = Libvirt::start();
    for (nodes, expected, cpus) in
        [("1,3-4", ["bind:3", "bind:4"], "2-3"), ("0,4", ["bind:0", "bind:4"], "0-1")]
    {
        let (xml, _) = completed(CELLS, nodes);
        let vm = Paused::create(&xml);
        assert_eq!([56, 64].map(|mib| vm.policy(mib << 20)), expected, "{xml}");
        assert_eq!(vm.vcpus(), vcpus(&[(0, cpus)]), "{xml}");
    }
}

/// Before it allocates memory ahead, libvirt 9.0 asks QEMU for threads on the CPUs of its nodes,
/// and QEMU refuses to have threads on none.
#[test]
fn memory_that_is_allocated_ahead_on_a_node_without_cpus_is_noted() {
    let _libvirt = Libvirt::start();
    let (xml, notes) = completed(&(CELLS.to_owned() + PREALLOCATED), "1,3-4");
    assert!(notes.contains("node 4: no CPU is there to allocate"), "{notes}");
    match Paused::try_create(&xml) {
        Ok(vm) => assert_eq!(await_filled(vm.process, 56 << 20), ("bind:3".into(), vec![3])),
        Err(said) => assert!(said.contains("The nodes select no CPUs"), "{said}"),
    }
    let (_, notes) = completed(&(CELLS.to_owned() + PREALLOCATED), "0");
    assert!(!notes.contains("no CPU is there"), "{notes}");
}
