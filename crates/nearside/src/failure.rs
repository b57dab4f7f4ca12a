//! How a command ends when it does not end well.

use crate::{output, printable::printable_lines};
use std::{fmt::Display, process::ExitCode};

/// A message for the user and the exit code that goes with it (design: 1 could not, 2 usage, 3
/// partly done).
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

/// What a command returns.
pub(crate) type Outcome = Result<(), Failure>;

impl Failure {
    /// It could not be done (exit code 1).
    pub(crate) fn could_not(message: impl Display) -> Self {
        Self { code: 1, message: message.to_string() }
    }

    /// The request makes no sense (exit code 2).
    pub(crate) fn usage(message: impl Display) -> Self {
        Self { code: 2, message: message.to_string() }
    }

    /// Part of it was done (exit code 3).
    pub(crate) fn partly(message: impl Display) -> Self {
        Self { code: 3, message: message.to_string() }
    }

    /// The same failure with another exit code (`run` uses 125 to 127 for its own).
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// Its exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// What it says.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Tells the user and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        let style = anstyle::AnsiColor::Red.on_default().bold();
        let message = printable_lines(self.message.trim_end());
        output::tell(&format!("{style}nearside:{style:#} {message}"));
        ExitCode::from(self.code)
    }
}
