//! Binding the vCPU threads of a virtual machine that has just been started
//! (docs/adr/0014-virtual-machines-without-libvirt.md).

use crate::{confine::bind, error::Error, host::Host, read::at_once};
use nearside_topology::CpuSet;
use std::{
    collections::BTreeSet,
    path::Path,
    process, thread,
    time::{Duration, Instant},
};

/// The time between two looks at the threads.
const STEP: Duration = Duration::from_millis(50);

/// More than the length of a thread's name (`TASK_COMM_LEN`).
const MAX_NAME_BYTES: usize = 64;

/// The vCPUs of a cell, and the CPUs that they may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellCpus {
    /// The numbers of its vCPUs.
    pub vcpus: BTreeSet<u32>,
    /// The host's CPUs.
    pub cpus: CpuSet,
}

/// Binds the vCPU threads of this process's cgroup, as they appear, to the CPUs of their cells.
/// Returns the number of vCPUs that were bound, once `count` are, no other process is left in the
/// cgroup, or the time is over.
///
/// # Errors
/// If the cgroup cannot be found, or the kernel refuses a binding.
pub fn bind_vcpus(
    host: &Host,
    cells: &[CellCpus],
    count: usize,
    at_most: Duration,
) -> Result<usize, Error> {
    let proc = host.proc();
    let group = host.tree().group_of(&proc.join("self/cgroup"))?;
    let this = process::id().cast_signed();
    let (begin, mut bound) = (Instant::now(), BTreeSet::new());
    loop {
        let threads = group.all_threads();
        for &thread in &threads {
            let Some(vcpu) = vcpu_of(thread, &proc) else { continue };
            let cell = cells.iter().find(|cell| cell.vcpus.contains(&vcpu));
            if let Some(cell) = cell.filter(|_| !bound.contains(&vcpu)) {
                bind(thread, &cell.cpus)?;
                bound.insert(vcpu);
            }
        }
        let is_alone = threads.iter().all(|&thread| thread == this);
        if bound.len() >= count || is_alone || begin.elapsed() >= at_most {
            return Ok(bound.len());
        }
        thread::sleep(STEP);
    }
}

fn vcpu_of(thread: i32, proc: &Path) -> Option<u32> {
    let mut buffer = [0; MAX_NAME_BYTES];
    let path = proc.join(format!("{thread}/task/{thread}/comm"));
    let name = at_once(&path, &mut buffer).ok()?;
    vcpu_number(String::from_utf8_lossy(name).trim_end())
}

/// The vCPU of a thread's name: `CPU 3/KVM` or `CPU 3/TCG` (QEMU, `accel/*/*-accel-ops*.c`), or
/// `vcpu3` (cloud-hypervisor, `vmm/src/cpu.rs`).
fn vcpu_number(name: &str) -> Option<u32> {
    let number = match name.strip_prefix("CPU ") {
        Some(rest) => rest.split_once('/')?.0,
        None => name.strip_prefix("vcpu")?,
    };
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_vcpu_threads_have_their_numbers() {
        for (name, vcpu) in [
            ("CPU 0/KVM", Some(0)),
            ("CPU 127/TCG", Some(127)),
            ("vcpu12", Some(12)),
            ("ALL CPUs/TCG", None),
            ("CPU x/KVM", None),
            ("CPU 1", None),
            ("vcpu", None),
            ("IO mon_iothread", None),
            ("qemu-system-x86", None),
        ] {
            assert_eq!(vcpu_number(name), vcpu, "{name}");
        }
    }
}
