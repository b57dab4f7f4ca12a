//! Places in a text.

use std::fmt;

/// A range of bytes of the domain's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte behind the last one.
    pub end: usize,
}

impl From<std::ops::Range<usize>> for Span {
    fn from(range: std::ops::Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// A value and the bytes that state it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its bytes: those of an attribute's value or of an element's text, without quotes.
    pub span: Span,
}

/// A line and a column, both counted from 1. Columns count characters, not bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A text in a message of one line: control characters and blanks that look like a space are
/// escaped, and quotes stay.
pub(crate) fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || (c.is_whitespace() && c != ' ') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Bytes between two counts of characters.
const COUNTED_BYTES: usize = 256;

/// Finds the position of a byte. The starts of all lines are looked up, and the characters of each
/// block are counted once, so that a file with thousands of findings is not read once for each, not
/// even if all of it is one line.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    // The byte at which each line begins; the first is 0.
    starts: Vec<usize>,
    // The characters in front of each block of COUNTED_BYTES.
    characters: Vec<usize>,
}

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let blocks = text.as_bytes().chunks(COUNTED_BYTES);
        let sums = blocks.scan(0, |sum, block| {
            *sum += characters(block);
            Some(*sum)
        });
        Self {
            starts: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect(),
            characters: std::iter::once(0).chain(sums).collect(),
        }
    }

    /// The characters of `text` in front of the byte `at`. It reads less than one block.
    fn characters_before(&self, text: &str, at: usize) -> usize {
        let at = at.min(text.len());
        let block = at / COUNTED_BYTES;
        let rest = text.as_bytes().get(block * COUNTED_BYTES..at).unwrap_or_default();
        self.characters.get(block).copied().unwrap_or(0) + characters(rest)
    }

    /// The position of the byte `at` of `text`, which these are the lines of. A byte past the end
    /// counts as the end.
    pub(crate) fn position(&self, text: &str, at: usize) -> Position {
        let line = self.starts.partition_point(|&start| start <= at).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        let column = self.characters_before(text, at) - self.characters_before(text, start);
        Position { line, column: column + 1 }
    }
}

/// The characters that begin in these bytes. Every character has one byte that continues no other
/// (10xxxxxx does).
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_and_lines_end_with_a_newline() {
        let text = "äb\nc\r\n\nd";
        let lines = Lines::of(text);
        let at = |byte| {
            let Position { line, column } = lines.position(text, byte);
            (line, column)
        };
        assert_eq!(at(0), (1, 1));
        assert_eq!(at(2), (1, 2));
        assert_eq!(at(4), (2, 1));
        assert_eq!(at(7), (3, 1));
        assert_eq!(at(8), (4, 1));
        assert_eq!(at(100), (4, 2));
        assert_eq!(Lines::of("").position("", 0), Position { line: 1, column: 1 });
    }

    #[test]
    fn columns_of_a_long_line_are_those_of_its_characters() {
        let text = format!("a\n{}\nü", "äb€".repeat(400));
        let lines = Lines::of(&text);
        let mut expected = Position { line: 1, column: 1 };
        for (byte, c) in text.char_indices() {
            assert_eq!(lines.position(&text, byte), expected, "byte {byte}");
            expected = match c {
                '\n' => Position { line: expected.line + 1, column: 1 },
                _ => Position { column: expected.column + 1, ..expected },
            };
        }
        assert_eq!(lines.position(&text, text.len()), expected);
        // No position reads more than a block.
        assert_eq!(lines.characters.len(), text.len().div_ceil(COUNTED_BYTES) + 1);
    }
}
