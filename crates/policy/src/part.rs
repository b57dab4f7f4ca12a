//! The parts of a domain: each has one home.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A cell of a virtual machine: a node of the guest's virtual NUMA topology.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CellId(pub u32);

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a part: an ordinary domain has one, a virtual machine has one for each cell.
///
/// Parts are ordered by domain, then by cell. The text form is the domain's name, or
/// `cell N of NAME`; the two cannot be confused, because a name has no spaces unless it is a
/// cgroup's path, which starts with `/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PartId {
    domain: String,
    cell: Option<CellId>,
}

impl PartId {
    /// The only part of an ordinary domain.
    pub fn of(domain: impl Into<String>) -> Self {
        Self { domain: domain.into(), cell: None }
    }

    /// A cell of a virtual machine.
    pub fn cell_of(domain: impl Into<String>, cell: CellId) -> Self {
        Self { domain: domain.into(), cell: Some(cell) }
    }

    /// The name of its domain: for a domain that Nearside did not start, its cgroup's path.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The cell that it is, if its domain has cells.
    pub fn cell(&self) -> Option<CellId> {
        self.cell
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cell {
            None => f.pad(&self.domain),
            Some(cell) => f.pad(&format!("cell {cell} of {}", self.domain)),
        }
    }
}

impl From<&str> for PartId {
    /// Reads the text form.
    fn from(text: &str) -> Self {
        let cell = || {
            let (number, domain) = text.strip_prefix("cell ")?.split_once(" of ")?;
            // Only the form that is written: "cell 01 of db" is no cell.
            let cell: u32 = number.parse().ok()?;
            (cell.to_string() == number).then(|| Self::cell_of(domain, CellId(cell)))
        };
        cell().unwrap_or_else(|| Self::of(text))
    }
}

impl From<String> for PartId {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl Serialize for PartId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PartId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_form_names_domain_and_cell() {
        for (text, domain, cell) in [
            ("db", "db", None),
            ("/machine.slice/vm.scope", "/machine.slice/vm.scope", None),
            ("cell 1 of vm", "vm", Some(CellId(1))),
            ("cell 0 of /machine.slice/a of b", "/machine.slice/a of b", Some(CellId(0))),
            ("cell 01 of vm", "cell 01 of vm", None),
            ("cell x of vm", "cell x of vm", None),
        ] {
            let part = PartId::from(text);
            assert_eq!((part.domain(), part.cell()), (domain, cell), "{text}");
            assert_eq!(part.to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn parts_survive_being_written_and_read(domain in "/[ -~]{0,20}", cell: Option<u32>) {
            let part = match cell {
                None => PartId::of(domain),
                Some(cell) => PartId::cell_of(domain, CellId(cell)),
            };
            let text = serde_json::to_string(&part).unwrap();
            prop_assert_eq!(serde_json::from_str::<PartId>(&text).unwrap(), part);
        }
    }
}
