//! Cgroups of kubelet, which rewrites them in its own cycle.

use super::contract::Refusing;

/// kubelet.
#[derive(Debug)]
pub(super) struct Kubelet;

impl Refusing for Kubelet {
    fn reason(&self, path: &str) -> String {
        format!(
            "{path} is a cgroup of kubelet, which would take the change back: set its CPUs and \
             nodes there (the pod's resources, kubelet's CPU and memory managers)"
        )
    }
}
