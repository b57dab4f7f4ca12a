//! The tables of one machine, each as far as it can be used.

use super::{
    bytes,
    domains::Domains,
    dump::{self, DumpedTable},
    finding::{self, Effect, Finding},
    header::Table,
    hmat::Hmat,
    madt::Madt,
    signature::Signature,
    slit::Slit,
    srat::Srat,
};
use alloc::{format, string::String, vec::Vec};

/// The tables that describe nodes or CPUs.
const WANTED: [Signature; 4] = [Signature::SRAT, Signature::SLIT, Signature::HMAT, Signature::MADT];

/// The tables that describe a machine's nodes, each as far as it can be used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    /// Their source, for messages; empty for bytes.
    pub source: String,
    /// The proximity domains of CPUs and memory.
    pub srat: Option<Srat>,
    /// Distances between proximity domains.
    pub slit: Option<Slit>,
    /// Latency and bandwidth between proximity domains.
    pub hmat: Option<Hmat>,
    /// The CPUs in the operating system's order.
    pub madt: Option<Madt>,
    /// Faults and oddities of the tables, those that are not used included.
    pub findings: Vec<Finding>,
    /// True if there was any ACPI table, usable or not.
    pub(super) has_any: bool,
}

impl Tables {
    /// The tables in `bytes`: one raw table, or the text that `acpidump` prints. Never fails:
    /// [`Tables::findings`] has the reason for each table that cannot be used.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut tables = Self::default();
        if !tables.add(bytes) {
            let expected = "an ACPI table or the text of acpidump";
            tables.findings.push(no_table(Signature::ANY, bytes, expected));
        }
        tables
    }

    /// Adds the tables in `bytes`; false if they hold no ACPI table.
    pub(super) fn add(&mut self, bytes: &[u8]) -> bool {
        let is_acpi = match dump::is_dump(bytes) {
            true => {
                dump::tables(bytes).into_iter().for_each(|dumped| self.add_dumped(dumped));
                true
            }
            false => self.add_table(bytes),
        };
        self.has_any |= is_acpi;
        is_acpi
    }

    /// Adds a table of a dump. A line that breaks off the dump rejects the table unless all of it
    /// came before. Other tables' oddities do not matter here.
    fn add_dumped(&mut self, DumpedTable { title, bytes, damage }: DumpedTable) {
        let is_whole = Table::is_whole(&bytes);
        if let Some(damage) = damage.filter(|_| WANTED.contains(&title)) {
            let effect = if is_whole { Effect::EntryIgnored } else { Effect::TableIgnored };
            let (read, expected) = (damage.read, damage.expected);
            let offset = bytes.len();
            self.findings.push(Finding { table: title, offset, read, expected, effect });
            if !is_whole {
                return;
            }
        }
        if !self.add_table(&bytes) && WANTED.contains(&title) {
            self.findings.push(no_table(title, &bytes, "the table that the title names"));
        }
    }

    /// Adds a raw table; false if it is none.
    fn add_table(&mut self, bytes: &[u8]) -> bool {
        let signature = bytes::array(bytes, 0).map(Signature);
        let Some(signature) = signature.filter(|signature| WANTED.contains(signature)) else {
            // Another table does not describe nodes; its oddities do not matter here.
            return Table::read(bytes, &mut Vec::new()).is_ok();
        };
        if signature == Signature::SRAT {
            self.drop_false_srat();
        }
        if self.has(signature) {
            self.findings.push(Finding {
                table: signature,
                offset: 0,
                read: "a second table of this name".into(),
                expected: "one: the first that can be used counts".into(),
                effect: Effect::TableIgnored,
            });
            return true;
        }
        let first = self.findings.len();
        if let Err(fault) = self.parse(bytes) {
            finding::reject(&mut self.findings, first, fault);
        }
        true
    }

    /// Makes room for another SRAT where the domains of the one there contradict each other.
    fn drop_false_srat(&mut self) {
        let domains = self.srat.as_ref().map(|srat| Domains::of(srat, &mut Vec::new()));
        if let Some(Err(fault)) = domains {
            self.srat = None;
            finding::reject(&mut self.findings, 0, fault);
        }
    }

    /// Whether there is a table of this name already.
    fn has(&self, signature: Signature) -> bool {
        match signature {
            Signature::SRAT => self.srat.is_some(),
            Signature::SLIT => self.slit.is_some(),
            Signature::HMAT => self.hmat.is_some(),
            Signature::MADT => self.madt.is_some(),
            _ => false,
        }
    }

    fn parse(&mut self, bytes: &[u8]) -> Result<(), Finding> {
        let findings = &mut self.findings;
        let table = Table::read(bytes, findings)?;
        match table.signature {
            Signature::SRAT => self.srat = Some(Srat::parse(&table, findings)?),
            Signature::SLIT => self.slit = Some(Slit::parse(&table, findings)?),
            Signature::HMAT => self.hmat = Some(Hmat::parse(&table, findings)?),
            Signature::MADT => self.madt = Some(Madt::parse(&table, findings)?),
            _ => {}
        }
        Ok(())
    }
}

fn no_table(table: Signature, bytes: &[u8], expected: &str) -> Finding {
    let read = format!("{} bytes of something else", bytes.len());
    Finding { table, offset: 0, read, expected: expected.into(), effect: Effect::TableIgnored }
}
