//! Numbers of the guest's own things, which must not be mistaken for those of the host.

use nearside_topology::{Id, IdSet};
use std::fmt;

macro_rules! guest_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[derive(serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl Id for $name {
            const WHAT: &'static str = $what;
            fn new(number: u32) -> Self {
                Self(number)
            }
            fn number(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

guest_id!(
    /// A virtual CPU, as libvirt numbers them from 0.
    VcpuId,
    "vCPU"
);
guest_id!(
    /// A cell: a node of the guest's own topology, numbered from 0.
    CellId,
    "cell"
);
guest_id!(
    /// A thread of QEMU for block devices, numbered from 1.
    IothreadId,
    "iothread"
);

/// A set of vCPUs.
pub type VcpuSet = IdSet<VcpuId>;
/// A set of cells.
pub type CellSet = IdSet<CellId>;
