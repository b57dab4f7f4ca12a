//! Child processes, and the result type of this program.

use std::{error::Error, process::Child};

/// A value, or an error with its message.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
