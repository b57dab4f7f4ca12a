//! Errors of this crate.

use crate::escape;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why something about the host could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", escape::text(path))]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The kernel refused a write to one of its files.
    #[error("{}: writing \"{text}\": {source}", escape::text(path))]
    Write {
        /// The file.
        path: PathBuf,
        /// The text of the write.
        text: String,
        /// The reason.
        source: io::Error,
    },
    /// No cgroup v2 tree is mounted.
    #[error(
        "no cgroup v2 tree is mounted (cgroup2 in /proc/self/mountinfo): domains need \
         one, see `nearside doctor`"
    )]
    NoCgroupTree,
    /// The process lacks a privilege.
    #[error("not permitted to {what}: this needs {needs}")]
    NotPermitted {
        /// The attempt.
        what: String,
        /// The missing privilege.
        needs: &'static str,
    },
    /// A set was written for a cgroup, but the groups above it allow something else.
    #[error("{0}")]
    NotInForce(String),
    /// A record, or the journal, that cannot be read.
    #[error(
        "{}: cannot read the {}: {why}. Use the version of Nearside that wrote it, or {}",
        path.display(),
        kind.name(),
        kind.way_out()
    )]
    Record {
        /// The kind of the file.
        kind: StateFile,
        /// The file.
        path: PathBuf,
        /// The reason, with the version that wrote it as far as the file names one.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Call {
        /// The purpose of the call.
        what: String,
        /// The reason of the failure.
        source: io::Error,
    },
    /// systemd refused a request.
    #[error("systemd: {what}: {why}")]
    Systemd {
        /// The request.
        what: String,
        /// The answer.
        why: String,
    },
    /// Refused before anything was changed, for the reason in the text.
    #[error("{0}")]
    Unchanged(String),
    /// Refused, for the reason in the text.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Whether this process's user may not read a file.
    pub(crate) fn is_denied(&self) -> bool {
        match self {
            Self::File { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

/// The kinds of files in the state folder that every change depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateFile {
    /// The record of a domain.
    Domain,
    /// The record of a reservation.
    Reservation,
    /// The journal of a change.
    Journal,
}

impl StateFile {
    const fn name(self) -> &'static str {
        match self {
            Self::Domain => "record",
            Self::Reservation => "record of a reservation",
            Self::Journal => "journal of an unfinished change",
        }
    }

    const fn way_out(self) -> &'static str {
        match self {
            Self::Domain => "remove the file once the domain has ended",
            Self::Reservation => "remove the file, which gives the memory back to all",
            Self::Journal => {
                "remove the file: what the change has done then stays, so set the homes of its \
                 domains anew"
            }
        }
    }
}

/// Adds the subject to an error of the operating system.
pub(crate) trait IoContext<T> {
    /// The file.
    fn at(self, path: &Path) -> Result<T, Error>;
    /// The file, and the text of a write to it.
    fn at_writing(self, path: &Path, text: &str) -> Result<T, Error>;
    /// The call.
    fn doing(self, what: &str) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> IoContext<T> for Result<T, E> {
    fn at(self, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::File { path: path.into(), source: source.into() })
    }

    fn at_writing(self, path: &Path, text: &str) -> Result<T, Error> {
        self.map_err(|source| Error::Write {
            path: path.into(),
            text: text.into(),
            source: source.into(),
        })
    }

    fn doing(self, what: &str) -> Result<T, Error> {
        self.map_err(|source| Error::Call { what: what.into(), source: source.into() })
    }
}
