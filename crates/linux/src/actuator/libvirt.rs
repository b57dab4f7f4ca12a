//! Cgroups of libvirt, which rewrites them when a virtual machine changes.

use super::contract::Refusing;

/// libvirt.
#[derive(Debug)]
pub(super) struct Libvirt;

impl Refusing for Libvirt {
    fn reason(&self, path: &str) -> String {
        format!(
            "{path} is a cgroup of libvirt, which would take the change back: set its CPUs and \
             nodes there (virsh vcpupin, virsh numatune)"
        )
    }
}
