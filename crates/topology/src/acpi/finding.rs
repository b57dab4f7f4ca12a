//! What is odd or wrong in a table, and what follows from it.

use super::header::Signature;
use alloc::{format, string::String};
use core::fmt;

/// Something in a table that is not as the ACPI specification or Linux wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Finding {
    /// The table it is about.
    pub table: Signature,
    /// Where in the table, in bytes from its start.
    pub offset: usize,
    /// What was read there.
    pub read: String,
    /// What would have been right.
    pub expected: String,
    /// What follows for the table.
    pub effect: Effect,
}

/// What a [`Finding`] means for the table it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum Effect {
    /// The table is used as it is.
    Noted,
    /// This part, an entry or a value, is ignored; the rest of the table is used.
    EntryIgnored,
    /// There is no such table, and what it would say is assumed.
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

/// Many findings of one kind, told as one: the first of them and how many more there are.
#[derive(Debug, Default)]
pub(super) struct Group {
    first: Option<(usize, String)>,
    more: usize,
}

impl Group {
    /// Counts what `read` tells; it is asked only once.
    pub(super) fn add(&mut self, offset: usize, read: impl FnOnce() -> String) {
        match self.first {
            None => self.first = Some((offset, read())),
            Some(_) => self.more += 1,
        }
    }

    /// The one finding, if there was anything.
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
