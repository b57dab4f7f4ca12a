//! The text that `acpidump` prints: for each table a line `SRAT @ 0x...`, then its bytes in
//! hexadecimal.
//!
//! ```text
//! SRAT @ 0x000000007FFE1A2B
//!     0000: 53 52 41 54 28 01 00 00 01 8A 42 4F 43 48 53 20  SRAT(.....BOCHS
//!     0010: 42 58 50 43 20 20 20 20 01 00 00 00 42 58 50 43  BXPC    ....BXPC
//! ```
//!
//! Mail programs and editors replace tabs by spaces and the reverse, so the columns of a line are
//! distinguished by their content, not by their position.

use super::signature::Signature;
use alloc::{format, string::String, vec::Vec};

/// Bytes on a line of data. The same bytes as characters come after them.
const BYTES_OF_LINE: usize = 16;

/// A table of a dump.
#[derive(Debug)]
pub(super) struct DumpedTable {
    /// The name in the table's title.
    pub(super) title: Signature,
    /// The table's bytes as far as they could be read.
    pub(super) bytes: Vec<u8>,
    /// The line that broke the table off.
    pub(super) damage: Option<Damage>,
}

/// A line that does not continue its table.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) read: String,
    pub(super) expected: String,
}

/// Whether `bytes` are the text of `acpidump` rather than a table: a table's header always holds
/// bytes of 0.
pub(super) fn is_dump(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && bytes.split(|&byte| byte == b'\n').any(|line| title(line).is_some())
}

/// The tables of a dump. A line of data that does not continue its table ends it there.
pub(super) fn tables(text: &[u8]) -> Vec<DumpedTable> {
    let mut tables: Vec<DumpedTable> = Vec::new();
    let mut is_open = false;
    for (line, number) in text.split(|&byte| byte == b'\n').zip(1..) {
        if let Some(title) = title(line) {
            tables.push(DumpedTable { title, bytes: Vec::new(), damage: None });
            is_open = true;
            continue;
        }
        let Some(table) = tables.last_mut().filter(|_| is_open) else { continue };
        let read = match data(line) {
            Some((offset, more)) if offset == table.bytes.len() => {
                table.bytes.extend(more);
                continue;
            }
            Some((offset, _)) => Some(format!("offset {offset:#x} in line {number} of the dump")),
            None if line.trim_ascii().is_empty() => None,
            None => {
                let line = line.trim_ascii().escape_ascii();
                Some(format!("line {number} of the dump, \"{line}\""))
            }
        };
        let expected = format!("bytes in hexadecimal from offset {:#x} on", table.bytes.len());
        table.damage = read.map(|read| Damage { read, expected });
        is_open = false;
    }
    tables
}

/// `SRAT @ 0x000000007FFE1A2B`
fn title(line: &[u8]) -> Option<Signature> {
    let (signature, rest) = line.trim_ascii_start().split_first_chunk()?;
    let rest = rest.strip_prefix(b" ").or_else(|| rest.strip_prefix(b"\t"))?.trim_ascii();
    let address = rest.strip_prefix(b"@")?.trim_ascii_start().strip_prefix(b"0x")?;
    address.iter().all(u8::is_ascii_hexdigit).then_some(Signature(*signature))
}

/// `    0010: 42 58 50 43  BXPC`: the offset and the bytes. None if it is no line of data, or if
/// other text stands among its bytes.
fn data(line: &[u8]) -> Option<(usize, Vec<u8>)> {
    let line = line.trim_ascii();
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (offset, rest) = line.split_at_checked(colon)?;
    let offset = usize::from_str_radix(core::str::from_utf8(offset).ok()?, 16).ok()?;
    let mut rest = rest.get(1..)?;
    let mut bytes = Vec::with_capacity(BYTES_OF_LINE);
    while bytes.len() < BYTES_OF_LINE {
        let columns = rest.trim_ascii_start();
        let gap = rest.get(..rest.len() - columns.len())?;
        if columns.is_empty() || is_text_of(&bytes, gap, columns) {
            break;
        }
        let end = columns.iter().position(u8::is_ascii_whitespace).unwrap_or(columns.len());
        let (word, after) = columns.split_at_checked(end)?;
        match byte(word).filter(|_| !gap.is_empty()) {
            Some(byte) => bytes.push(byte),
            // More than the one space between bytes comes before the characters.
            None if !bytes.is_empty() && gap != b" " => break,
            None => return None,
        }
        rest = after;
    }
    (!bytes.is_empty()).then_some((offset, bytes))
}

/// Two digits.
fn byte(word: &[u8]) -> Option<u8> {
    let digits = core::str::from_utf8(word).ok().filter(|word| word.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// Whether `rest` shows `bytes` as characters. In an unchanged dump the gap before it has two
/// spaces or more. If tabs replace them, the characters must be those of the bytes, because two of
/// them may look like one more byte.
fn is_text_of(bytes: &[u8], gap: &[u8], rest: &[u8]) -> bool {
    if bytes.is_empty() || gap == b" " {
        return false;
    }
    let shown = rest.trim_ascii_end();
    let is_shown_as = |(&byte, &shown): (&u8, &u8)| shown == byte || !byte.is_ascii_graphic();
    let trimmed = bytes.get(shown.len()..);
    !gap.contains(&b'\t')
        || trimmed.is_some_and(|bytes| bytes.iter().all(|&byte| byte == b' '))
            && bytes.iter().zip(shown).all(is_shown_as)
}
