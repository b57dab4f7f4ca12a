//! A thread that reserves memory, and one that answers within a bound of time.

use std::sync::atomic::{AtomicBool, Ordering};

/// Decides once whether a question is answered with its reservation or without: the thread that
/// reserves and the one that answers agree, whichever comes first.
#[derive(Debug, Default)]
pub(crate) struct Race(AtomicBool);

impl Race {
    /// True for the first caller.
    pub(crate) fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}
