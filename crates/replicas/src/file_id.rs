//! The identity of a file.

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use std::{fmt, io, os::fd::AsFd, path::Path};

/// The identity of a file as `stat(2)` tells it. It does not change while the file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// `st_dev`
    pub device: u64,
    /// `st_ino`
    pub inode: u64,
}

impl FileId {
    /// The file that an open descriptor refers to.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&rustix::fs::fstat(file)?))
    }

    /// The file at a path, behind symbolic links.
    ///
    /// # Errors
    /// Those of `stat(2)`.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&rustix::fs::stat(path)?))
    }

    /// The file at a path, a symbolic link as itself.
    ///
    /// # Errors
    /// Those of `lstat(2)`.
    pub fn of_link(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&rustix::fs::lstat(path)?))
    }
}

impl From<&Stat> for FileId {
    fn from(stat: &Stat) -> Self {
        // The types of the fields differ between architectures.
        #[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (rustix::fs::major(self.device), rustix::fs::minor(self.device));
        write!(f, "{major}:{minor}/{}", self.inode)
    }
}
