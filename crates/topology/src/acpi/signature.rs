//! The names of ACPI tables.

use core::fmt::{self, Write};

/// The four characters that name a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(pub [u8; 4]);

impl Signature {
    /// System Resource Affinity Table: the proximity domains of CPUs and memory.
    pub const SRAT: Self = Self(*b"SRAT");
    /// System Locality Information Table: distances between proximity domains.
    pub const SLIT: Self = Self(*b"SLIT");
    /// Heterogeneous Memory Attribute Table: latency and bandwidth between proximity domains.
    pub const HMAT: Self = Self(*b"HMAT");
    /// Multiple APIC Description Table: the CPUs in the order in which the operating system
    /// numbers them.
    pub const MADT: Self = Self(*b"APIC");
    /// No particular table: firmware's tables as a whole.
    pub const ANY: Self = Self(*b"ACPI");
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().try_for_each(|byte| f.write_char(byte.into()))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Signature {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
