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

/// Finds the position of a byte. The starts of all lines are looked up, so that a file with
/// thousands of findings is not read once for each.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    // The byte at which each line begins; the first is 0.
    starts: Vec<usize>,
}

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        Self { starts: std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect() }
    }

    /// The position of the byte `at` of `text`, which these are the lines of. A byte past the end
    /// counts as the end.
    pub(crate) fn position(&self, text: &str, at: usize) -> Position {
        let line = self.starts.partition_point(|&start| start <= at).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        let before = text.as_bytes().get(start..at.min(text.len())).unwrap_or_default();
        // Every character has one byte that continues no other (10xxxxxx does).
        let characters = before.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        Position { line, column: characters + 1 }
    }
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
}
