//! The role of a thread of a virtual machine.

use super::shape::Shape;
use nearside_libvirt::{CellId, IothreadId, VcpuId};

/// The role of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Runs a vCPU, of a cell if the guest has cells.
    Vcpu {
        /// The vCPU.
        vcpu: VcpuId,
        /// Its cell.
        cell: Option<CellId>,
    },
    /// Serves block devices.
    Iothread(IothreadId),
    /// Moves the packets of a network device in the kernel.
    Vhost,
    /// All other threads: QEMU's main loop, its monitor, its workers.
    Emulator,
}

/// The role of a thread by the name of its group below the domain's (`libvirt/vcpu0`) and its own
/// (`comm`).
///
/// libvirt gives each vCPU and each iothread a group of its own, and all other threads share
/// `emulator` (`qemuProcessSetupPid`, `src/qemu/qemu_process.c`); so the group tells more than the
/// name, which QEMU sets with `debug-threads=on` alone. Where libvirt makes no groups, the name is
/// all there is.
pub(crate) fn role(group_below: &str, comm: &str, shape: &Shape) -> Role {
    // KVM's worker begins in the group of the vCPU that ran first (`kvm_mmu_start_lpage_recovery`,
    // `arch/x86/kvm/mmu/mmu.c`, Linux 6.14 and later). The kernel cuts its name.
    if comm.starts_with("kvm-nx-lpage-re") {
        return Role::Emulator;
    }
    let group = group_below.rsplit('/').next().unwrap_or_default();
    if let Some(vcpu) = number(group, "vcpu", "") {
        return of_vcpu(vcpu, shape);
    }
    if let Some(iothread) = number(group, "iothread", "") {
        return Role::Iothread(IothreadId(iothread));
    }
    // `vhost_worker_create` in `drivers/vhost/vhost.c`: vhost-PID.
    if number(comm, "vhost-", "").is_some() {
        return Role::Vhost;
    }
    if group == "emulator" {
        return Role::Emulator;
    }
    // `CPU 0/KVM` in `accel/kvm/kvm-accel-ops.c` of QEMU, `CPU 0/TCG` in
    // `accel/tcg/tcg-accel-ops-mttcg.c`, `IO NAME` in `iothread.c`; libvirt names iothreads
    // iothreadN. The kernel cuts names after 15 bytes.
    let vcpu = ["/KVM", "/TCG", "/HVF"].iter().find_map(|end| number(comm, "CPU ", end));
    match (vcpu, number(comm, "IO iothread", "")) {
        (Some(vcpu), _) => of_vcpu(vcpu, shape),
        (None, Some(iothread)) => Role::Iothread(IothreadId(iothread)),
        (None, None) => Role::Emulator,
    }
}

fn of_vcpu(vcpu: u32, shape: &Shape) -> Role {
    let vcpu = VcpuId(vcpu);
    Role::Vcpu { vcpu, cell: shape.cell_of(vcpu) }
}

/// The number between a beginning and an end.
fn number(text: &str, begin: &str, end: &str) -> Option<u32> {
    let digits = text.strip_prefix(begin)?.strip_suffix(end)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_libvirt::Domain;

    /// Threads of a domain of two cells under libvirt 9.0, QEMU 7.2 and TCG, as its cgroups and
    /// `/proc/PID/task/*/comm` listed them: the group below the domain's, and the name.
    const CAPTURED: &str = include_str!("captured/threads.txt");
    const XML: &str = include_str!("captured/domain.xml");

    fn vcpu(vcpu: u32, cell: Option<u32>) -> Role {
        Role::Vcpu { vcpu: VcpuId(vcpu), cell: cell.map(CellId) }
    }

    #[test]
    fn threads_of_a_captured_domain_have_their_roles() {
        let shape = Shape::from(&Domain::read(XML).unwrap());
        let roles: Vec<_> = CAPTURED
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(group, comm)| role(group, comm, &shape))
            .collect();
        assert_eq!(
            roles,
            [
                Role::Emulator,
                Role::Emulator,
                Role::Iothread(IothreadId(1)),
                Role::Emulator,
                vcpu(0, Some(0)),
                vcpu(1, Some(0)),
                vcpu(2, Some(1)),
                vcpu(3, Some(1)),
            ]
        );
    }

    #[test]
    fn groups_tell_more_than_names() {
        let cases = [
            ("libvirt/vcpu12", "qemu-system-x86", vcpu(12, None)),
            ("vcpu0", "CPU 0/KVM", vcpu(0, None)),
            ("libvirt/iothread2", "IO iothread2", Role::Iothread(IothreadId(2))),
            ("libvirt/emulator", "vhost-4711", Role::Vhost),
            ("libvirt/emulator", "worker", Role::Emulator),
            ("libvirt/vcpu0", "kvm-nx-lpage-re", Role::Emulator),
            // Threads that QEMU names as a vCPU, in the emulator's group.
            ("libvirt/emulator", "CPU 0/KVM", Role::Emulator),
            ("", "CPU 3/KVM", vcpu(3, None)),
            ("", "CPU 3/TCG", vcpu(3, None)),
            // One thread emulates all vCPUs.
            ("", "ALL CPUs/TCG", Role::Emulator),
            ("", "IO iothread1", Role::Iothread(IothreadId(1))),
            ("", "IO mon_iothread", Role::Emulator),
            ("", "vhost-4711", Role::Vhost),
            ("", "qemu-system-x86", Role::Emulator),
            ("libvirt/vcpu", "qemu-system-x86", Role::Emulator),
            ("libvirt/vcpu99999999999", "CPU x/KVM", Role::Emulator),
            ("", "", Role::Emulator),
        ];
        let shape = Shape(Vec::new());
        for (group, comm, expected) in cases {
            assert_eq!(role(group, comm, &shape), expected, "{group} {comm}");
        }
    }

    #[test]
    fn a_vcpu_that_no_cell_names_is_of_the_first() {
        let xml = "<domain><vcpu>3</vcpu><cpu><numa>\
                   <cell id='0' cpus='0' memory='1'/><cell id='1' cpus='1' memory='1'/>\
                   </numa></cpu></domain>";
        let shape = Shape::from(&Domain::read(xml).unwrap());
        assert_eq!(role("vcpu2", "", &shape), vcpu(2, Some(0)));
        assert_eq!(role("vcpu1", "", &shape), vcpu(1, Some(1)));
    }
}
