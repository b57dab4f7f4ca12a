//! Cgroups of owners that Nearside cannot ask: other programs, and units of systemd that outlive
//! their processes.

use super::contract::Refusing;

/// A program that Nearside does not know, such as a container runtime without systemd.
#[derive(Debug)]
pub(super) struct Other;

/// A service or slice of systemd. A setting would survive a restart of the unit.
#[derive(Debug)]
pub(super) struct SystemdUnit;

impl Refusing for Other {
    fn reason(&self, path: &str) -> String {
        format!(
            "{path} is a cgroup of another program, which would take the change back: set its \
             CPUs and nodes there"
        )
    }
}

impl Refusing for SystemdUnit {
    fn reason(&self, path: &str) -> String {
        format!(
            "{path} is a service or slice of systemd, which would keep the setting when it is \
             started anew: set its CPUs and nodes there (systemctl set-property)"
        )
    }
}
