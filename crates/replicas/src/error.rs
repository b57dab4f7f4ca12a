//! Errors of this crate.

use std::io;

/// Why something about copies could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error("{what}: {source}")]
    Call {
        /// The purpose of the call.
        what: String,
        /// The reason of the failure.
        source: io::Error,
    },
    /// The process lacks a privilege.
    #[error("{what}: not permitted: this needs {needs}")]
    NotPermitted {
        /// The attempt.
        what: String,
        /// The missing privilege.
        needs: &'static str,
    },
    /// Refused, for the reason in the text.
    #[error("{0}")]
    Refused(String),
    /// The helper does not run.
    #[error(
        "no replicator runs ({socket}: {source}): start it with `systemctl start \
         nearside-replicator`, or `nearside replicator` as root"
    )]
    NoHelper {
        /// Its socket.
        socket: String,
        /// The reason.
        source: io::Error,
    },
    /// The helper is there and does not answer: it is stopped, or has no CPU.
    #[error("the replicator has not answered within {seconds} s")]
    NoAnswer {
        /// The time that the caller would wait.
        seconds: u64,
    },
    /// The host refused.
    #[error(transparent)]
    Host(#[from] nearside_linux::Error),
}

/// Adds the purpose to an error of the operating system.
pub(crate) trait IoContext<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| {
            let source = source.into();
            match source.kind() {
                io::ErrorKind::PermissionDenied if source.raw_os_error() == Some(libc::EPERM) => {
                    Error::NotPermitted { what: what(), needs: "CAP_SYS_ADMIN" }
                }
                _ => Error::Call { what: what(), source },
            }
        })
    }
}
