//! The identity of a file.

use rustix::{
    fs::{AtFlags, CWD, Stat, StatxFlags, statx},
    path::Arg,
};
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
    /// Those of `statx(2)`.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Self::stated(file, "", AtFlags::EMPTY_PATH)
    }

    /// The file at a path, behind symbolic links.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn at(path: &Path) -> io::Result<Self> {
        Self::stated(CWD, path, AtFlags::empty())
    }

    /// Neither is told by the server of a file system (FUSE, NFS), which would not answer once it
    /// has stopped.
    fn stated(folder: impl AsFd, path: impl Arg, flags: AtFlags) -> io::Result<Self> {
        let stat = statx(folder, path, flags | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
        let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        Ok(Self { device, inode: stat.stx_ino })
    }
}

/// The identity of a file also after it has gone: another one may get its inode, at another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) id: FileId,
    /// When the file was made, in nanoseconds since 1970; none if its file system does not tell.
    pub(crate) made_ns: Option<i64>,
}

impl Identity {
    /// The file that an open descriptor refers to.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        let id = FileId::of(&file)?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = statx(file, "", flags, StatxFlags::BTIME)?;
        let is_told = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let made = stat.stx_btime;
        let made_ns = || made.tv_sec.checked_mul(1_000_000_000)?.checked_add(made.tv_nsec.into());
        Ok(Self { id, made_ns: is_told.then(made_ns).flatten() })
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
