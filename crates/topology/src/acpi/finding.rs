//! Findings: faults and oddities of tables, and their effect.

use super::signature::Signature;
use alloc::{format, string::String, vec::Vec};
use core::fmt;

/// A place in a table that differs from what the ACPI specification or Linux expects.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Finding {
    /// The table.
    pub table: Signature,
    /// The place: bytes from the start of the table.
    pub offset: usize,
    /// The value read there.
    pub read: String,
    /// The value expected there.
    pub expected: String,
    /// The effect on the table.
    pub effect: Effect,
}

/// The effect of a [`Finding`] on its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum Effect {
    /// The table is used as it is.
    Noted,
    /// This part, an entry or a value, is ignored; the rest of the table is used.
    EntryIgnored,
    /// The table is missing, and its content is assumed.
    TableMissing,
    /// The whole table is ignored, as if the firmware had none.
    TableIgnored,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, offset, read, expected, effect } = self;
        write!(f, "{table} at {offset:#x}: read {read}, expected {expected}; {effect}")
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noted => "the table is still used",
            Self::EntryIgnored => "this part is ignored, the table is still used",
            Self::TableMissing => "everything counts as one node",
            Self::TableIgnored => "the table is not used",
        })
    }
}

/// Adds the fault that rejects a table. The table's earlier findings, those from `first` on, then
/// have the same effect: none of them may say that the table is still used.
pub(super) fn reject(findings: &mut Vec<Finding>, first: usize, fault: Finding) {
    for earlier in findings.iter_mut().skip(first).filter(|earlier| earlier.table == fault.table) {
        earlier.effect = Effect::TableIgnored;
    }
    findings.push(fault);
}

/// Many findings of one kind as one: the first of them, and how many more there are.
#[derive(Debug, Default)]
pub(super) struct Group {
    first: Option<(usize, String)>,
    more: usize,
}

impl Group {
    /// Counts a finding; only the first one's `read` is evaluated.
    pub(super) fn add(&mut self, offset: usize, read: impl FnOnce() -> String) {
        match self.first {
            None => self.first = Some((offset, read())),
            Some(_) => self.more += 1,
        }
    }

    /// The one finding; none if none was counted.
    pub(super) fn finding(
        self,
        table: Signature,
        effect: Effect,
        expected: &str,
    ) -> Option<Finding> {
        let (offset, mut read) = self.first?;
        if self.more > 0 {
            read.push_str(&format!(" (and {} more)", self.more));
        }
        Some(Finding { table, offset, read, expected: expected.into(), effect })
    }
}
