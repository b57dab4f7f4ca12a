//! The text that `acpidump` prints: for each table a line `SRAT @ 0x...`, then its bytes in hexadecimal.
//!
//! ```text
//! SRAT @ 0x000000007FFE1A2B
//!     0000: 53 52 41 54 28 01 00 00 01 8A 42 4F 43 48 53 20  SRAT(.....BOCHS
//!     0010: 42 58 50 43 20 20 20 20 01 00 00 00 42 58 50 43  BXPC    ....BXPC
//! ```

use super::{
    finding::{Effect, Finding},
    header::Signature,
};
use alloc::{format, vec::Vec};

/// A line of data holds 16 bytes of three characters each; what the characters are stands behind them.
const DATA_COLUMNS: usize = 16 * 3;

/// Whether `bytes` are the text of `acpidump` rather than a table: a table's header always holds bytes of 0.
pub(super) fn is_dump(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && bytes.split(|&byte| byte == b'\n').any(|line| title(line).is_some())
}

/// The tables of a dump, each with the name its title gives and its raw bytes. A line of data that does not continue its
/// table ends it there; the table's header will say that the rest is missing.
pub(super) fn tables(text: &[u8], findings: &mut Vec<Finding>) -> Vec<(Signature, Vec<u8>)> {
    let mut tables: Vec<(Signature, Vec<u8>)> = Vec::new();
    let mut open = false;
    for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
        if let Some(signature) = title(line) {
            tables.push((signature, Vec::new()));
            open = true;
            continue;
        }
        let Some((table, bytes)) = tables.last_mut().filter(|_| open) else { continue };
        match data(line) {
            Some((offset, more)) if offset == bytes.len() => bytes.extend(more),
            _ if line.trim_ascii().is_empty() => open = false,
            other => {
                let read = match other {
                    Some((offset, _)) => {
                        format!("offset {offset:#x} in line {} of the dump", number + 1)
                    }
                    None => format!(
                        "line {} of the dump, \"{}\"",
                        number + 1,
                        line.trim_ascii().escape_ascii()
                    ),
                };
                let expected = format!("bytes in hexadecimal from offset {:#x} on", bytes.len());
                let (table, offset) = (*table, bytes.len());
                findings.push(Finding {
                    table,
                    offset,
                    read,
                    expected,
                    effect: Effect::EntryIgnored,
                });
                open = false;
            }
        }
    }
    tables
}

/// `SRAT @ 0x000000007FFE1A2B`
fn title(line: &[u8]) -> Option<Signature> {
    let (signature, rest) = line.trim_ascii_start().split_first_chunk()?;
    let address = rest.strip_prefix(b" @ 0x")?.trim_ascii_end();
    address.iter().all(u8::is_ascii_hexdigit).then_some(Signature(*signature))
}

/// `    0010: 42 58 50 43  BXPC`: the offset and the bytes.
fn data(line: &[u8]) -> Option<(usize, Vec<u8>)> {
    let line = line.trim_ascii();
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (offset, rest) = line.split_at_checked(colon)?;
    let offset = usize::from_str_radix(core::str::from_utf8(offset).ok()?, 16).ok()?;
    let columns = rest.strip_prefix(b": ")?;
    let columns = columns.get(..DATA_COLUMNS).unwrap_or(columns).trim_ascii_end();
    let byte = |digits: &[u8]| u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = columns.split(|&byte| byte == b' ').map(byte).collect();
    bytes.map(|bytes| (offset, bytes))
}
