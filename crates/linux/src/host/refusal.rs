//! The reason why a transaction was not applied.

use crate::error::Error;
use nearside_policy::Unmet;

/// The reason why a transaction was not applied. It has left no change.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A need no longer holds.
    #[error(transparent)]
    Unmet(#[from] Unmet),
    /// A step was refused.
    #[error("cannot {action}: {why}")]
    Step {
        /// The name of the step.
        action: String,
        /// The reason.
        why: Error,
    },
    /// The records could not be read or written.
    #[error(transparent)]
    Store(#[from] Error),
}
