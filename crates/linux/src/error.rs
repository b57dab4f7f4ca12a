//! What can go wrong with a host.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why something about the host could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of the kernel's did not take what was written to it.
    #[error("{}: writing \"{text}\": {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// What was written.
        text: String,
        /// Why not.
        source: io::Error,
    },
    /// Nothing of the kind is mounted.
    #[error(
        "no cgroup v2 tree is mounted (cgroup2 in /proc/self/mountinfo): domains need \
         one, see `nearside doctor`"
    )]
    NoCgroupTree,
    /// It takes more privilege.
    #[error("not permitted to {what}: this needs {needs}")]
    NotPermitted {
        /// What was tried.
        what: String,
        /// What it takes.
        needs: &'static str,
    },
    /// A record, or the journal, that cannot be read.
    #[error(
        "{}: cannot read the record: {why}. Use the version of Nearside that wrote it, or remove \
         the file once the domain has ended",
        path.display()
    )]
    Record {
        /// The file.
        path: PathBuf,
        /// The reason, with the version that wrote it as far as the file names one.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Call {
        /// What was to be done.
        what: String,
        /// Why it was not.
        source: io::Error,
    },
    /// systemd did not do what it was asked for.
    #[error("systemd: {what}: {why}")]
    Systemd {
        /// What it was asked for.
        what: String,
        /// What it answered.
        why: String,
    },
    /// It cannot be done, for a reason that stands in the text.
    #[error("{0}")]
    Refused(String),
}

/// Adds to an error of the operating system what it was about.
pub(crate) trait IoContext<T> {
    /// The file it was about.
    fn at(self, path: &Path) -> Result<T, Error>;
    /// The file it was about and what was written to it.
    fn at_writing(self, path: &Path, text: &str) -> Result<T, Error>;
    /// The call it was about.
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
