//! Errors of this crate.

use std::{io, path::PathBuf, time::Duration};

/// The reason why libvirt could not be asked, or did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No daemon listens on any of the sockets.
    #[error(
        "no libvirt daemon listens on {}: start virtqemud or libvirtd",
        tried.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
    )]
    Absent {
        /// The sockets.
        tried: Vec<PathBuf>,
    },
    /// The socket cannot be connected to.
    #[error("{}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The daemon demands a proof of identity that this crate does not give.
    #[error("libvirt demands authentication by {by}: run as root, or set auth_unix_rw=\"none\"")]
    Authentication {
        /// The methods.
        by: String,
    },
    /// The daemon has not answered in time.
    #[error("libvirt has not answered within {} ms ({call})", within.as_millis())]
    TimedOut {
        /// The call.
        call: &'static str,
        /// The bound.
        within: Duration,
    },
    /// The connection broke.
    #[error("the connection to libvirt broke ({call}): {source}")]
    Broken {
        /// The call.
        call: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The answer is not libvirt's.
    #[error("libvirt's answer cannot be read ({call}): {why}")]
    Garbled {
        /// The call.
        call: &'static str,
        /// The reason.
        why: Garbled,
    },
    /// An earlier error has left the connection unusable.
    #[error("the connection to libvirt is closed after an earlier error")]
    Closed,
    /// An argument exceeds the protocol's bound.
    #[error("{what} exceeds what libvirt's protocol carries")]
    TooLong {
        /// The argument.
        what: &'static str,
    },
    /// libvirt refused the call.
    #[error("libvirt: {message}")]
    Refused {
        /// The number of the reason (`virErrorNumber`, `include/libvirt/virterror.h`).
        code: i32,
        /// libvirt's words.
        message: String,
    },
}

/// `VIR_ERR_NO_DOMAIN`, `include/libvirt/virterror.h`.
const NO_DOMAIN: i32 = 42;

impl Error {
    /// Whether libvirt has no such domain.
    pub fn is_no_domain(&self) -> bool {
        matches!(self, Self::Refused { code: NO_DOMAIN, .. })
    }
}

/// The fault in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// It ends within a field.
    #[error("it ends within a field")]
    Short,
    /// Bytes are left after the last field.
    #[error("{left} bytes are left after its last field")]
    Long {
        /// Their number.
        left: usize,
    },
    /// The length of a message.
    #[error("a message of {bytes} bytes, expected {least} to {most}")]
    Length {
        /// The length.
        bytes: u32,
        /// The shortest message.
        least: u32,
        /// The longest message.
        most: u32,
    },
    /// A list or string above the protocol's bound.
    #[error("a field of {count} members, expected at most {at_most}")]
    TooMany {
        /// Its length.
        count: u32,
        /// The bound.
        at_most: u32,
    },
    /// A text that is not UTF-8.
    #[error("a text that is not UTF-8")]
    NotUtf8,
    /// A value that the protocol does not know.
    #[error("{value} as {what}")]
    Unknown {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// An answer to another call.
    #[error("an answer to another call")]
    OtherCall,
    /// CPU masks that are no multiple of a mask's length.
    #[error("CPU masks of {bytes} bytes for {masks} threads")]
    Masks {
        /// Their length.
        bytes: usize,
        /// Their number.
        masks: u32,
    },
}
