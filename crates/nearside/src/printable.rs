//! Text on terminals that other programs or users chose, names of cgroups above all.

/// Characters that `escape_debug` escapes although a terminal shows them as they are.
const SHOWN: [char; 3] = ['\\', '"', '\''];

/// Text without characters that control a terminal, or that hide or reorder others: control and
/// format characters (including bidirectional and zero-width ones), separators other than a space,
/// and unassigned code points. Each becomes an escape such as `\u{202e}`.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for part in text.split_inclusive(SHOWN) {
        let escaped = part.trim_end_matches(SHOWN);
        shown.extend(escaped.escape_debug());
        shown += &part[escaped.len()..];
    }
    shown
}

/// The same for a text of several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_format_characters_are_escaped() {
        for (text, expected) in [
            ("\x1b[2J", r"\u{1b}[2J"),
            ("a\nb\tc\x7f", r"a\nb\tc\u{7f}"),
            // Right-to-left override, isolates, marks.
            ("vm\u{202e}gpj.exe", r"vm\u{202e}gpj.exe"),
            ("\u{2066}a\u{2069}\u{200f}\u{61c}", r"\u{2066}a\u{2069}\u{200f}\u{61c}"),
            // Characters without width, soft hyphen, byte-order mark, tags.
            ("a\u{200b}\u{200d}\u{ad}\u{feff}", r"a\u{200b}\u{200d}\u{ad}\u{feff}"),
            ("\u{e0041}", r"\u{e0041}"),
            // Line separator, no-break space, an unassigned code point.
            ("\u{2028}\u{a0}\u{378}", r"\u{2028}\u{a0}\u{378}"),
        ] {
            assert_eq!(printable(text), expected, "{text:?}");
        }
    }

    #[test]
    fn other_characters_stay() {
        for text in [
            "",
            "/machine.slice/machine-qemu\\x2d1.scope",
            "it's \"quoted\"",
            "naïve/日本語/שלום/कि",
            "\\\\''",
        ] {
            assert_eq!(printable(text), text);
        }
        assert_eq!(printable_lines("two\nlines\x07\n"), "two\nlines\\u{7}\n");
    }
}
