//! Failures of commands, with their exit codes.

use std::fmt::Display;

/// A message and the exit code that goes with it: 1 could not, 2 usage, 3 partly done.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// The result of a command.
pub(crate) type Outcome = Result<(), Failure>;

impl Failure {
    /// A failure with exit code 1.
    pub(crate) fn could_not(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// An invalid request, with exit code 2.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// A change that was made in part, with exit code 3.
    pub(crate) fn partly(message: impl Display) -> Self {
        Self { code: 3, message: message.to_string() }
    }

    /// The same failure with another exit code (`run` uses 125 to 127 for its own).
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}
