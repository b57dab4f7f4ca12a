//! The owner of a domain's cgroup, by its path.

use nearside_policy::Owner;

/// The program that made the group at `path` and would revert changes. `systemd`: true if it runs
/// this machine.
///
/// systemd owns its units, which lie in slices. A scope is always transient: it ends with its
/// processes, and its settings end with it. The groups below a unit belong to its payload: a
/// container runtime, a service, or a user's own systemd.
pub(crate) fn owner(path: &str, systemd: bool) -> Owner {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let is_slice = |part: &&str| part.ends_with(".slice");
    let is_scope = |part: &&str| part.ends_with(".scope");
    let is_unit = |part: &&str| is_slice(part) || is_scope(part) || part.ends_with(".service");
    let is_libvirts = |part: &&str| {
        // machine-qemu\x2d1\x2dvm.scope below machine.slice; without systemd
        // machine/qemu-1-vm.libvirt-qemu.
        part.starts_with("machine-qemu")
            || part.starts_with("machine-lxc")
            || part.contains(".libvirt-")
    };
    match parts.as_slice() {
        ["nearside" | "nearside.slice", _, ..] => Owner::Nearside,
        // Also below kubelet's own group: kubelet.slice/kubelet-kubepods.slice.
        parts if parts.iter().any(|part| part.contains("kubepods")) => Owner::Kubelet,
        ["machine.slice" | "machine", below @ ..] if below.iter().any(is_libvirts) => {
            Owner::Libvirt
        }
        [above @ .., unit] if systemd && is_unit(unit) && above.iter().all(is_slice) => {
            match is_scope(unit) {
                true => Owner::Systemd,
                false => Owner::SystemdUnit,
            }
        }
        _ => Owner::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_cgroup_names_its_owner() {
        use Owner::{Foreign, Kubelet, Libvirt, Nearside, Systemd, SystemdUnit};
        let cases = [
            ("/nearside/db", false, Nearside),
            ("/nearside.slice/nearside-db.scope", true, Nearside),
            ("/nearside.slice/nearside-db.scope/below", true, Nearside),
            ("/nearside", false, Foreign),
            ("/nearsides/db", false, Foreign),
            ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope", true, Libvirt),
            ("/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt/vcpu0", true, Libvirt),
            ("/machine/qemu-1-vm.libvirt-qemu", false, Libvirt),
            ("/machine.slice/libpod-0123.scope", true, Systemd),
            ("/machine.slice/libpod-0123.scope/container", true, Foreign),
            ("/machine.slice/systemd-nspawn@web.service", true, SystemdUnit),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice",
                true,
                Kubelet,
            ),
            ("/kubepods/besteffort/pod1", false, Kubelet),
            ("/kubelet.slice/kubelet-kubepods.slice/x", true, Kubelet),
            ("/system.slice/cron.service", true, SystemdUnit),
            ("/system.slice", true, SystemdUnit),
            ("/system.slice/cron.service", false, Foreign),
            ("/system.slice/docker-0123.scope", true, Systemd),
            ("/system.slice/containerd.service/payload", true, Foreign),
            ("/user.slice/user-1000.slice/session-2.scope", true, Systemd),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.scope", true, Foreign),
            ("/docker/0123", true, Foreign),
            ("/", true, Foreign),
        ];
        for (path, systemd, expected) in cases {
            assert_eq!(owner(path, systemd), expected, "{path} {systemd}");
        }
    }
}
