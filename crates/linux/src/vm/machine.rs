//! The libvirt domain behind a cgroup, by the cgroup's name.

/// A running QEMU domain of libvirt, as the name of its cgroup tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QemuMachine {
    /// The domain's number while it runs.
    pub(crate) id: i32,
    /// The domain's name as far as a machine's name can have it: characters are left out, and it
    /// ends after some 60 bytes (`virDomainGenerateMachineName`, `src/hypervisor/domain_driver.c`).
    name: String,
}

impl QemuMachine {
    /// The domain whose cgroup this is. None for the groups of its threads below it.
    ///
    /// With systemd, machined names a scope `machine-qemu\x2d1\x2dvm.scope`; without it libvirt
    /// makes `qemu-1-vm.libvirt-qemu` (`virCgroupNewMachine`, `src/util/vircgroup.c`).
    pub(crate) fn of_group(path: &str) -> Option<Self> {
        let last = path.rsplit('/').next()?;
        let scope = last.strip_suffix(".scope").and_then(|name| name.strip_prefix("machine-"));
        let machine = match scope {
            Some(escaped) => unescaped(escaped)?,
            None => last.strip_suffix(".libvirt-qemu")?.to_owned(),
        };
        let (id, name) = machine.strip_prefix("qemu-")?.split_once('-')?;
        let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| Some(Self { id: id.parse().ok()?, name: name.into() }))?
    }

    /// Whether this can be the domain with that name. Numbers are given again after a restart of
    /// the host alone, so this is a second check.
    pub(crate) fn may_be(&self, domain: &str) -> bool {
        let plain =
            |name: &str| -> String { name.chars().filter(char::is_ascii_alphanumeric).collect() };
        plain(domain).starts_with(&plain(&self.name))
    }
}

/// A name without systemd's escapes (`unit_name_unescape`, `src/basic/unit-name.c`): `\x2d` is a
/// byte, and `-` a slash. None if it is no text.
fn unescaped(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        match rest.strip_prefix("\\x") {
            Some(after) => {
                let byte = after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok())?;
                bytes.push(byte);
                rest = after.get(2..)?;
            }
            None => {
                let plain = if first == '-' { '/' } else { first };
                bytes.extend(plain.encode_utf8(&mut [0; 4]).as_bytes());
                rest = rest.get(first.len_utf8()..)?;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_qemu_domains_tell_number_and_name() {
        let known = |path: &str| QemuMachine::of_group(path).map(|it| (it.id, it.name));
        let is = |id, name: &str| Some((id, name.to_owned()));
        // As systemd and libvirt 9.0 without systemd name them.
        assert_eq!(known("/machine.slice/machine-qemu\\x2d1\\x2dtwo.scope"), is(1, "two"));
        assert_eq!(
            known("/machine.slice/machine-qemu\\x2d12\\x2dweb\\x2d1.scope"),
            is(12, "web-1")
        );
        assert_eq!(known("/machine/qemu-1-two.libvirt-qemu"), is(1, "two"));
        assert_eq!(known("/machine/qemu-1-.libvirt-qemu"), is(1, ""));
        for other in [
            "/machine.slice/machine-qemu\\x2d1\\x2dtwo.scope/libvirt/vcpu0",
            "/machine.slice/machine-lxc\\x2d1\\x2dbox.scope",
            "/machine.slice/machine-qemu\\x2dx\\x2dtwo.scope",
            "/machine.slice/machine-qemu\\x2d99999999999\\x2dtwo.scope",
            "/machine.slice/machine-qemu\\x2d1.scope",
            "/machine.slice/machine-qemu\\x2.scope",
            "/machine.slice/machine-qemu\\xff\\x2d1.scope",
            "/machine.slice/libpod-0123.scope",
            "/machine/lxc-1-box.libvirt-lxc",
            "/",
            "",
        ] {
            assert_eq!(known(other), None, "{other}");
        }
    }

    #[test]
    fn names_match_as_far_as_a_machine_can_have_them() {
        let machine = |path| QemuMachine::of_group(path).unwrap();
        let plain = machine("/machine/qemu-1-web-1.libvirt-qemu");
        assert!(plain.may_be("web-1") && plain.may_be("web 1!") && !plain.may_be("db"));
        // Cut at its end.
        assert!(plain.may_be("web-12"));
        assert!(!machine("/machine/qemu-1-web-12.libvirt-qemu").may_be("web-1"));
    }
}
