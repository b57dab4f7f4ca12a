//! Elements of the parsed text, and their removal from it.

use crate::complete::Edit;
use roxmltree::Node;

/// Whether this is an element of libvirt's with this name.
pub(crate) fn is_own(node: Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace().is_none() && node.tag_name().name() == name
}

/// An element's name as it is written, with its prefix.
pub(crate) fn written_name<'a>(node: Node<'a, '_>) -> &'a str {
    let text = node.document().input_text().get(node.range().start + 1..).unwrap_or_default();
    let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>');
    text.get(..text.find(ends).unwrap_or(text.len())).unwrap_or_default()
}

/// Whether this is text without a word.
pub(crate) fn is_blank(node: Node<'_, '_>) -> bool {
    node.is_text() && node.text().is_some_and(|text| text.trim().is_empty())
}

/// The removal of an element, and of the blanks before it.
pub(crate) fn removal(text: &str, node: Node<'_, '_>) -> Edit {
    let range = node.range();
    Edit { start: before_blanks(text, range.start), end: range.end, text: String::new() }
}

/// The end of what is in front of the blanks before `at`.
pub(crate) fn before_blanks(text: &str, at: usize) -> usize {
    text.get(..at).map_or(at, |before| before.trim_end_matches([' ', '\t', '\r', '\n']).len())
}
