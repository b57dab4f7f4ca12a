//! The parts that all tables share: the header, and entries that follow each other (ACPI 6.6,
//! section 5.2.6).

use super::{
    bytes::{array, u8_at, u16_at, u32_at},
    finding::{Effect, Finding},
    signature::Signature,
};
use alloc::{format, string::String, vec::Vec};

/// Bytes of a table's header (ACPI 6.6, table 5.4, "DESCRIPTION_HEADER Fields").
pub(super) const HEADER_BYTES: usize = 36;

/// One table whose header is sound.
#[derive(Debug)]
pub(super) struct Table<'a> {
    pub(super) signature: Signature,
    pub(super) revision: u8,
    /// The table with its header, exactly as long as the header says.
    pub(super) bytes: &'a [u8],
}

impl<'a> Table<'a> {
    /// Whether `bytes` hold at least as many bytes as the table's header says.
    pub(super) fn is_whole(bytes: &[u8]) -> bool {
        let length = u32_at(bytes, 4).map(|length| length as usize);
        length.is_some_and(|length| (HEADER_BYTES..=bytes.len()).contains(&length))
    }

    /// Checks the header of the table that `bytes` start with. A wrong checksum is noted and the
    /// table is used all the same, as Linux does (`ACPI_CHECKSUM_ABORT` in
    /// `include/acpi/acconfig.h` is `FALSE`).
    pub(super) fn read(bytes: &'a [u8], findings: &mut Vec<Finding>) -> Result<Self, Finding> {
        let signature = Signature(array(bytes, 0).unwrap_or(Signature::ANY.0));
        let finding = |offset, read, expected, effect| Finding {
            table: signature,
            offset,
            read,
            expected,
            effect,
        };
        let (Some(length), Some(revision), true) =
            (u32_at(bytes, 4), u8_at(bytes, 8), bytes.len() >= HEADER_BYTES)
        else {
            let read = format!("{} bytes in all", bytes.len());
            return Err(finding(
                0,
                read,
                format!("a header of {HEADER_BYTES} bytes"),
                Effect::TableIgnored,
            ));
        };
        let length = length as usize;
        if length < HEADER_BYTES {
            let expected = format!("at least the {HEADER_BYTES} bytes of the header");
            return Err(finding(
                4,
                format!("a length of {length} bytes"),
                expected,
                Effect::TableIgnored,
            ));
        }
        let Some(table) = bytes.get(..length) else {
            let expected = format!("at most the {} bytes there are", bytes.len());
            return Err(finding(
                4,
                format!("a length of {length} bytes"),
                expected,
                Effect::TableIgnored,
            ));
        };
        if length < bytes.len() {
            let read = format!("{} bytes after the end", bytes.len() - length);
            findings.push(finding(length, read, "none".into(), Effect::Noted));
        }
        let sum = table.iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte));
        if sum != 0 {
            let checksum = u8_at(table, 9).unwrap_or(0);
            let expected = format!("{:#04x}", checksum.wrapping_sub(sum));
            findings.push(finding(9, format!("checksum {checksum:#04x}"), expected, Effect::Noted));
        }
        Ok(Self { signature, revision, bytes: table })
    }

    /// A finding about this table.
    pub(super) fn finding(
        &self,
        offset: usize,
        effect: Effect,
        read: impl Into<String>,
        expected: impl Into<String>,
    ) -> Finding {
        Finding {
            table: self.signature,
            offset,
            read: read.into(),
            expected: expected.into(),
            effect,
        }
    }

    /// The entries from offset `first` to the end. After an entry with a false length, the rest
    /// cannot be read, so it rejects the table; Linux does so for a length of 0 (`lib/fw_table.c`,
    /// `acpi_parse_entries_array`).
    pub(super) fn entries(&self, first: usize, form: EntryForm) -> Result<Vec<Entry<'a>>, Finding> {
        let reject = |offset, read: String, expected: String| {
            Err(self.finding(offset, Effect::TableIgnored, read, expected))
        };
        let mut entries = Vec::new();
        let mut offset = first;
        if self.bytes.len() < first {
            return reject(
                4,
                format!("a length of {} bytes", self.bytes.len()),
                format!("at least {first}"),
            );
        }
        loop {
            let rest = self.bytes.get(offset..).unwrap_or(&[]);
            if rest.is_empty() {
                return Ok(entries);
            }
            let Some((kind, length)) = form.read(rest) else {
                let read = format!("{} bytes before the end", rest.len());
                return reject(
                    offset,
                    read,
                    format!("an entry of at least {} bytes", form.bytes()),
                );
            };
            if length < form.bytes() {
                let read = format!("an entry of type {kind} with a length of {length} bytes");
                return reject(offset, read, format!("at least {} bytes", form.bytes()));
            }
            let Some(bytes) = rest.get(..length) else {
                let read = format!("an entry of type {kind} with a length of {length} bytes");
                return reject(
                    offset,
                    read,
                    format!("at most the {} bytes left in the table", rest.len()),
                );
            };
            entries.push(Entry { offset, kind, bytes });
            offset += length;
        }
    }
}

/// The form in which an entry gives its type and length.
#[derive(Debug, Clone, Copy)]
pub(super) enum EntryForm {
    /// One byte each (SRAT, MADT).
    Short,
    /// Two bytes of type, two reserved, four of length (HMAT).
    Long,
}

impl EntryForm {
    fn bytes(self) -> usize {
        match self {
            Self::Short => 2,
            Self::Long => 8,
        }
    }

    fn read(self, bytes: &[u8]) -> Option<(u16, usize)> {
        Some(match self {
            Self::Short => (u8_at(bytes, 0)?.into(), u8_at(bytes, 1)?.into()),
            Self::Long => (u16_at(bytes, 0)?, u32_at(bytes, 4)? as usize),
        })
    }
}

/// An entry of a table, before its content is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    /// Bytes from the start of the table.
    pub(super) offset: usize,
    /// Its type.
    pub(super) kind: u16,
    /// The entry with its type and length fields, exactly as long as its length field says.
    pub(super) bytes: &'a [u8],
}
