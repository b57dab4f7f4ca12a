//! Elements of the parsed text, and their removal from it.

use crate::complete::Edit;
use roxmltree::Node;

/// Whether this is an element of libvirt's with this name.
pub(crate) fn is_own(node: Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().namespace().is_none() && node.tag_name().name() == name
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
