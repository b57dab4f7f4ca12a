//! The kinds of pages.

use rustix::fs::MemfdFlags;

/// The pages that the kernel supplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Backing {
    /// Pages of the usual size, when they are first touched.
    #[default]
    Pages,
    /// Pages of 2 MiB from the node's pool, all of them at once.
    Huge2M,
    /// Pages of 1 GiB from the node's pool, all of them at once.
    Huge1G,
}

impl Backing {
    /// The size of these pages.
    pub fn page_bytes(self) -> u64 {
        match self {
            Self::Pages => rustix::param::page_size() as u64,
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }

    pub(super) fn flags(self) -> MemfdFlags {
        let own = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        match self {
            Self::Pages => own,
            Self::Huge2M => own | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            Self::Huge1G => own | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        }
    }
}
