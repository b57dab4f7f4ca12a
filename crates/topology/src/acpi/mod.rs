//! Firmware's tables: what ACPI says about a machine before any operating system runs on it.
//!
//! [`read()`] takes a path, [`Tables::from_bytes`] takes bytes; [`topology()`] turns either into a [`Topology`] with a list
//! of [`Finding`]s. The rules are those of the ACPI specification (6.6, section 5.2) where Linux follows it, and Linux's
//! own where it is stricter or more lenient: a table that Linux would not use is not used here either.
//!
//! # Numbers
//! Tables name proximity domains ([`Pxm`](crate::Pxm)), Linux numbers nodes. It gives each domain the lowest free number
//! when it first meets it: first all processors and generic initiators in the order of the SRAT, then all memory
//! (`acpi_numa_init` and `acpi_map_pxm_to_node` in `drivers/acpi/numa/srat.c`). Interrupt translation services and
//! generic ports make no node.
//!
//! CPUs are numbered in the order of the MADT, enabled ones only, as Linux does when the first one listed is the one it
//! boots on; without a MADT in the order of the SRAT.
//!
//! # Memory
//! [`Node::memory_bytes`](crate::Node::memory_bytes) counts the enabled ranges except hot-pluggable and non-volatile
//! ones. Tables do not tell whether memory is plugged in, and a promise of absent memory is worse than a modest figure;
//! [`Node::ranges`](crate::Node::ranges) has them all.

mod bytes;
mod domains;
mod dump;
mod finding;
mod header;
mod hmat;
mod machine;
mod madt;
#[cfg(feature = "std")]
mod read;
mod slit;
mod srat;

pub use finding::{Effect, Finding};
pub use header::Signature;
pub use hmat::{Attachment, DataType, Hmat, Locality, MemorySideCache, Quantity, Value};
pub use machine::topology;
pub use madt::Madt;
#[cfg(feature = "std")]
pub use read::{ReadError, read};
pub use slit::Slit;
pub use srat::{DeviceHandle, ProcessorId, Srat, SratEntry, Subject};

use alloc::{format, string::String, vec::Vec};
use header::Table;

#[cfg(doc)]
use crate::Topology;

/// The tables that say something about nodes or CPUs.
const WANTED: [Signature; 4] = [Signature::SRAT, Signature::SLIT, Signature::HMAT, Signature::MADT];

/// The tables that say something about a machine's nodes, each as far as it could be used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    /// Where they were read, for messages; empty for bytes.
    pub source: String,
    /// What belongs to which proximity domain.
    pub srat: Option<Srat>,
    /// Distances between proximity domains.
    pub slit: Option<Slit>,
    /// Latency and bandwidth between proximity domains.
    pub hmat: Option<Hmat>,
    /// The CPUs in the operating system's order.
    pub madt: Option<Madt>,
    /// What was odd or wrong in the tables, those not used included.
    pub findings: Vec<Finding>,
    // The signatures of all tables met so far, whether they were used or are of no interest here.
    met: Vec<Signature>,
}

impl Tables {
    /// The tables in `bytes`: one raw table, or the text that `acpidump` prints. Never fails; what cannot be used is
    /// told in [`Tables::findings`].
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut tables = Self::default();
        if !tables.add(bytes) {
            let expected = "an ACPI table or the text of acpidump";
            tables.findings.push(no_table(Signature::ANY, bytes, expected));
        }
        tables
    }

    /// Adds what `bytes` hold; false if that is no ACPI table.
    fn add(&mut self, bytes: &[u8]) -> bool {
        if !dump::is_dump(bytes) {
            return self.add_table(bytes);
        }
        for (title, table) in dump::tables(bytes, &mut self.findings) {
            if !self.add_table(&table) && WANTED.contains(&title) {
                self.findings.push(no_table(title, &table, "the table that the title names"));
            }
        }
        true
    }

    fn add_table(&mut self, bytes: &[u8]) -> bool {
        let signature = bytes::array(bytes, 0).map(Signature);
        let Some(signature) = signature.filter(|signature| WANTED.contains(signature)) else {
            // Some other table has nothing to say about nodes; its oddities are not ours to tell.
            let other = Table::read(bytes, &mut Vec::new());
            self.met.extend(other.iter().map(|table| table.signature));
            return other.is_ok();
        };
        if self.met.contains(&signature) {
            let (read, expected) = ("a second table of this name".into(), "one".into());
            self.findings.push(Finding {
                table: signature,
                offset: 0,
                read,
                expected,
                effect: Effect::EntryIgnored,
            });
            return true;
        }
        self.met.push(signature);
        if let Err(finding) = self.parse(bytes) {
            self.findings.push(finding);
        }
        true
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<(), Finding> {
        let findings = &mut self.findings;
        let table = Table::read(bytes, findings)?;
        match table.signature {
            Signature::SRAT => self.srat = Some(Srat::parse(&table, findings)?),
            Signature::SLIT => self.slit = Some(Slit::parse(&table, findings)?),
            Signature::HMAT => self.hmat = Some(Hmat::parse(&table, findings)?),
            Signature::MADT => self.madt = Some(Madt::parse(&table)?),
            _ => {}
        }
        Ok(())
    }
}

fn no_table(table: Signature, bytes: &[u8], expected: &str) -> Finding {
    let read = format!("{} bytes of something else", bytes.len());
    Finding { table, offset: 0, read, expected: expected.into(), effect: Effect::TableIgnored }
}
