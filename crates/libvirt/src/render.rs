//! Findings and changes as text for people and for programs.

mod diff;
mod json;
mod sarif;
mod text;

pub use diff::unified_diff;
pub use json::json;
pub use sarif::sarif;
pub use text::text;
