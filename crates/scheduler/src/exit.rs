//! The end of the scheduler's charge, in the kernel's words.

use std::fmt;

/// The end of the scheduler's charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// `enum scx_exit_kind`.
    pub kind: u64,
    /// The code that came with it.
    pub code: i64,
    /// The kind, in the kernel's words.
    pub reason: String,
    /// Details, in the kernel's words.
    pub message: String,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

impl Exit {
    const ERRORS: u64 = 1024;
    const RESTART: i64 = 1 << 48;

    /// True if it failed, false if it was asked to end.
    pub fn is_error(&self) -> bool {
        self.kind >= Self::ERRORS
    }

    /// True if the machine changed (a CPU that was not known before): attaching again is all that
    /// is needed.
    pub fn wants_restart(&self) -> bool {
        self.code & Self::RESTART != 0
    }
}
