//! Helpers that the forms of `nearside place` for virtual machines and commands share.

use nearside_policy::{Guest, MemoryPolicy, PageSize};

/// The size of the guest's pages in KiB if they come from a pool of huge pages.
pub(crate) fn huge_page_kib(guest: &Guest) -> Option<u64> {
    match guest.page_size {
        PageSize::Base => None,
        PageSize::Huge(bytes) => Some(kib(bytes)),
    }
}

/// Whole KiB, the unit of libvirt and QEMU.
pub(crate) const fn kib(bytes: u64) -> u64 {
    bytes / 1024
}

/// A note beside the report: `tool` has no such policy, and how to get its effect.
pub(crate) fn lacking(tool: &str, policy: MemoryPolicy, instead: &str) -> String {
    format!("{tool} has no policy {policy}: {instead}")
}
