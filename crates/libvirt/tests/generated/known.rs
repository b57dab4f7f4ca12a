//! Differences that stay, each with its reason.

/// Parts of libvirt's messages, each with the reason for the difference.
const BY_LIBVIRT: [(&str, &str); 4] = [
    ("duplicated for disk sources", "devices at one place concern no node"),
    ("Multiple 'pci' controllers with index", "devices at one place concern no node"),
    (
        "Maximum CPUs greater than specified machine type limit",
        "how many vCPUs a machine type may have is QEMU's to say, and differs by version",
    ),
    (
        "cachetune is only supported for KVM domains",
        "the generated domains are emulated, because not every host of this test has KVM",
    ),
];

/// Why libvirt and Nearside differ on this domain; none if they should not.
pub(crate) fn reason(xml: &str, libvirt: Option<&str>, nearside: &str) -> Option<&'static str> {
    let Some(error) = libvirt else {
        let is_huge = ["16384", "65536"]
            .iter()
            .any(|count| nearside.starts_with(&format!("<iothreads>: read \"{count}\"")));
        let is_twice = xml.contains("memory='0'") && nearside.contains("is described twice");
        return match () {
            () if is_huge => Some("no guest has more than 16,383 iothreads"),
            () if is_twice => Some(
                "libvirt overlooks that a cell of no memory is described again, and makes another \
                 one without memory",
            ),
            () => None,
        };
    };
    if xml.contains(" order='") && ["order", "enabled first"].iter().any(|it| error.contains(it)) {
        return Some("the order in which vCPUs are plugged in concerns no node and is not read");
    }
    let known = BY_LIBVIRT.iter().find(|(part, _)| error.contains(part));
    known.map(|(_, reason)| *reason)
}
