//! The result type of this program.

use std::error::Error;

/// A value, or an error with its message.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
