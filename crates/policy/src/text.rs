//! Where the text of domains belongs: on the one node that executes it, spread over the nodes of a
//! wide domain, or on several nodes, where only copies help (docs/adr/0018-move-text.md).
//!
//! [`plan()`] turns a look at the host ([`TextFile`]) and the [`TextHistory`] into [`Order`]s to
//! move pages and a list of [`Candidate`]s for copies. [`plan_copies`] decides which of these get
//! copies without an operator's word.

mod copies;
mod file;
mod history;
mod plan;
mod spread;
#[cfg(test)]
mod tests;
mod verdict;

pub use copies::{CopyHistory, CopyOrder, CopyTurn, DomainNamespace, Found, Held, plan_copies};
pub use file::{FileId, Run, TextFile};
pub use history::{Placed, TextHistory};
pub use plan::{FileState, Order, TextPlan, TextState, Turn, plan};
pub use verdict::{Candidate, Verdict, verdict};

/// Why a process with threads on several nodes has no local text.
pub const WIDE: &str = "threads on several nodes share one copy of their text: one address space \
                        has one page for each address";
