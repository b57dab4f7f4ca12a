//! A change as a unified diff.

use similar::TextDiff;

/// The change from `old` to `new` of the file `name`, as `patch` reads it; empty if there is none.
pub fn unified_diff(name: &str, old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let diff = TextDiff::from_lines(old, new);
    diff.unified_diff().header(&format!("a/{name}"), &format!("b/{name}")).to_string()
}
