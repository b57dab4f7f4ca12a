//! A folder whose files decide about claims. Only root and the user of this process may write to
//! it. It is opened once, and its owner and mode are checked. Its files are reached from the open
//! folder, so that no path is followed twice and no link at all.

use crate::{
    error::{Error, IoContext},
    fault::before_write,
    lock_file::LockFile,
};
use nearside_topology::bounded_file;
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode, Stat},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// All may read, no other user may write.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
/// For files that other users have no use for.
const PRIVATE_MODE: Mode = Mode::from_raw_mode(0o600);
/// Write permission for the group and for others.
const OTHERS_WRITE: RawMode = 0o022;

/// Identifies a state of a file or folder: it differs after each change or replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: i64,
    seconds: i64,
    nanoseconds: u64,
}

impl Stamp {
    fn of(meta: &Stat) -> Self {
        Self {
            device: meta.st_dev,
            inode: meta.st_ino,
            size: meta.st_size,
            seconds: meta.st_mtime,
            nanoseconds: meta.st_mtime_nsec,
        }
    }

    /// The time of the change.
    pub fn changed(&self) -> SystemTime {
        let since =
            Duration::new(u64::try_from(self.seconds).unwrap_or(0), self.nanoseconds as u32);
        SystemTime::UNIX_EPOCH + since
    }
}

/// An open folder that only root or this process's user could have written to.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    opened: OwnedFd,
}

impl Folder {
    /// Opens the folder at `path`; none if it does not exist. Links are followed on the way to it,
    /// but it must not be one itself.
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        Self::open_at(rustix::fs::CWD, path, path)
    }

    /// As [`open`](Self::open), but creates a missing folder.
    pub fn make(path: &Path) -> Result<Self, Error> {
        Self::make_at(rustix::fs::CWD, path, path)
    }

    /// The folder `name` in it; none if it does not exist.
    pub fn below(&self, name: &str) -> Result<Option<Self>, Error> {
        Self::open_at(&self.opened, Path::new(name), &self.path.join(name))
    }

    /// As [`below`](Self::below), but creates a missing folder.
    pub fn make_below(&self, name: &str) -> Result<Self, Error> {
        Self::make_at(&self.opened, Path::new(name), &self.path.join(name))
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_at(
        above: impl std::os::fd::AsFd,
        name: &Path,
        path: &Path,
    ) -> Result<Option<Self>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match rustix::fs::openat(above, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(refused(path, "is no folder but a link or a file"));
            }
            opened => opened.at(path)?,
        };
        refuse_others(&rustix::fs::fstat(&opened).at(path)?, path)?;
        Ok(Some(Self { path: path.into(), opened }))
    }

    fn make_at(above: impl std::os::fd::AsFd, name: &Path, path: &Path) -> Result<Self, Error> {
        let made = before_write().and_then(|()| rustix::fs::mkdirat(&above, name, FOLDER_MODE));
        let is_new = match made {
            Err(Errno::EXIST) => false,
            made => made.at(path).map(|()| true)?,
        };
        let folder = Self::open_at(above, name, path)?.ok_or(Errno::NOENT).at(path)?;
        if is_new {
            // The umask may have removed some of these bits.
            before_write().at(path)?;
            rustix::fs::fchmod(&folder.opened, FOLDER_MODE).at(path)?;
        }
        Ok(folder)
    }

    /// Its present stamp.
    pub fn stamp(&self) -> Result<Stamp, Error> {
        rustix::fs::fstat(&self.opened).map(|meta| Stamp::of(&meta)).at(&self.path)
    }

    /// The present stamp of one of its files; none where there is no such file.
    pub fn stamp_of(&self, name: &str) -> Result<Option<Stamp>, Error> {
        match rustix::fs::statat(&self.opened, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            meta => meta.map(|meta| Some(Stamp::of(&meta))).at(&self.path.join(name)),
        }
    }

    /// The names of all entries, of any kind: a link or FIFO in a file's place is not missed.
    pub(crate) fn all_names(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.opened).at(&self.path)? {
            names.extend(entry.at(&self.path)?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Creates a FIFO and opens both its ends, so that it has a writer while the result is open.
    pub(crate) fn make_fifo(&self, name: &str) -> Result<OwnedFd, Error> {
        let path = self.path.join(name);
        before_write().at(&path)?;
        rustix::fs::mknodat(&self.opened, name, FileType::Fifo, PRIVATE_MODE, 0).at(&path)?;
        self.open_file(name, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty())
            .map(OwnedFd::from)
            .at(&path)
    }

    /// Opens a FIFO for reading; none if the file is missing or no FIFO.
    pub(crate) fn open_fifo(&self, name: &str) -> Result<Option<OwnedFd>, Error> {
        let path = self.path.join(name);
        let opened = match self.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
            opened => OwnedFd::from(opened.at(&path)?),
        };
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&opened).at(&path)?.st_mode);
        Ok((kind == FileType::Fifo).then_some(opened))
    }

    /// The content of a file; none where there is no such file.
    ///
    /// # Errors
    /// If it cannot be read, is no regular file, is larger than `max_bytes`, or if a user other
    /// than root and this process's could have written it.
    pub fn read_within(&self, name: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, Error> {
        let path = self.path.join(name);
        let kind = |why| {
            let what =
                io::Error::new(io::ErrorKind::InvalidData, bounded_file::Error::NotRegular(why));
            Error::File { path: path.clone(), source: what }
        };
        let file = match self.open_file(name, bounded_file::OPEN_FLAGS, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(kind("a symbolic link")),
            Err(Errno::NXIO) => return Err(kind("a socket or a device")),
            opened => opened.at(&path)?,
        };
        refuse_others(&rustix::fs::fstat(&file).at(&path)?, &path)?;
        bounded_file::read_opened(file, max_bytes).map(Some).at(&path)
    }

    /// True for root, and for the user to whom the folder belongs.
    pub(crate) fn is_own(&self) -> bool {
        let own = rustix::process::geteuid();
        own.is_root()
            || rustix::fs::fstat(&self.opened).is_ok_and(|meta| meta.st_uid == own.as_raw())
    }

    /// Replaces a file, which all may read. The old one stays until the new one is written in full.
    pub fn replace(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        self.replace_with(name, content, FILE_MODE)
    }

    /// As [`replace`](Self::replace), for a file that only its owner and root may read.
    pub(crate) fn replace_private(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        self.replace_with(name, content, PRIVATE_MODE)
    }

    fn replace_with(&self, name: &str, content: &[u8], mode: Mode) -> Result<(), Error> {
        let fresh = format!("{name}.new");
        let replaced = (|| {
            // A reader may have the file of a killed writer open, so it is unlinked and not
            // rewritten.
            self.unlink(&fresh)?;
            let mut file = self.open_file(
                &fresh,
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
                PRIVATE_MODE,
            )?;
            rustix::fs::fchmod(&file, mode)?;
            before_write()?;
            file.write_all(content)?;
            before_write()?;
            rustix::fs::renameat(&self.opened, &fresh, &self.opened, name).map_err(io::Error::from)
        })();
        if replaced.is_err() {
            // The file takes space, and a lack of space may be the error.
            let _ = self.unlink(&fresh);
        }
        replaced.doing(&format!("write {}", self.path.join(name).display()))
    }

    /// Removes a file; fine if it is gone already.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.unlink(name).at(&self.path.join(name))
    }

    /// Opens a file to hold a lock on, and creates it if it is missing.
    pub fn lock_file(&self, name: &str) -> Result<LockFile, Error> {
        let opened = self.open_file(name, OFlags::WRONLY | OFlags::CREATE, PRIVATE_MODE);
        opened.map(|file| LockFile::new(file.into())).at(&self.path.join(name))
    }

    fn open_file(&self, name: &str, flags: OFlags, mode: Mode) -> Result<File, Errno> {
        if flags.contains(OFlags::CREATE) {
            before_write()?;
        }
        rustix::fs::openat(&self.opened, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)
            .map(File::from)
    }

    fn unlink(&self, name: &str) -> Result<(), io::Error> {
        before_write()?;
        match rustix::fs::unlinkat(&self.opened, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }
}

/// Refuses a folder or file that a user other than root and this process's owns or may write.
fn refuse_others(meta: &Stat, path: &Path) -> Result<(), Error> {
    if meta.st_uid != 0 && meta.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refused(path, &format!("belongs to user {}", meta.st_uid)));
    }
    if meta.st_mode & OTHERS_WRITE != 0 {
        let mode = meta.st_mode & 0o7777;
        return Err(refused(path, &format!("may be written by others (mode {mode:o})")));
    }
    Ok(())
}

fn refused(path: &Path, why: &str) -> Error {
    let path = path.display();
    Error::Refused(format!(
        "{path} {why}: claims in it cannot be trusted. Find out which user made it, then remove \
         it: it will be made anew"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
    };

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn folders_that_others_could_have_made_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("good")).unwrap();
        for (name, mode) in [("group", 0o775), ("others", 0o757), ("sticky", 0o1777)] {
            fs::create_dir(path(name)).unwrap();
            fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        }
        symlink(path("good"), path("link")).unwrap();
        fs::write(path("file"), "").unwrap();
        assert!(Folder::open(&path("good")).unwrap().is_some());
        assert!(Folder::open(&path("none")).unwrap().is_none());
        let above = Folder::open(root.path()).unwrap().unwrap();
        for (name, why) in [
            ("group", "mode 775"),
            ("others", "mode 757"),
            ("sticky", "mode 1777"),
            ("link", "link"),
            ("file", "file"),
        ] {
            let said =
                [Folder::open(&path(name)), Folder::make(&path(name)).map(Some), above.below(name)]
                    .map(|opened| opened.unwrap_err().to_string());
            assert!(
                said.iter().all(|said| said.contains(why) && said.contains("trusted")),
                "{name}: {said:?}"
            );
        }
        assert_eq!(mode(&path("group")), 0o775, "nothing is mended that may have been abused");
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let root = tempfile::tempdir().unwrap();
        // Only root can give a folder away, and no other path has a folder of another user for
        // sure.
        if std::os::unix::fs::chown(root.path(), Some(12_345), None).is_ok() {
            let said = Folder::open(root.path()).unwrap_err().to_string();
            assert!(said.contains("belongs to user 12345"), "{said}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let other = root.path().join("other");
        fs::write(&other, "theirs").unwrap();
        let folder = Folder::make(&root.path().join("own")).unwrap();
        for name in ["a", "a.new", "lock"] {
            symlink(&other, folder.path().join(name)).unwrap();
        }
        let said = folder.read_within("a", 100).unwrap_err().to_string();
        assert!(said.contains("it is a symbolic link, expected a regular file"), "{said}");
        assert!(folder.lock_file("lock").is_err());
        folder.replace("a", b"ours").unwrap();
        assert_eq!(folder.read_within("a", 100).unwrap().unwrap(), b"ours");
        assert_eq!(folder.all_names().unwrap().iter().filter(|name| *name == "a").count(), 1);
        assert_eq!(fs::read(&other).unwrap(), b"theirs");
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::make(&root.path().join("own")).unwrap();
        folder.replace("a", b"before").unwrap();
        fs::create_dir(folder.path().join("a.new")).unwrap();
        let said = folder.replace("a", b"after").unwrap_err().to_string();
        assert!(said.starts_with("write ") && said.contains("own/a: "), "{said}");
        assert_eq!(folder.read_within("a", 100).unwrap().unwrap(), b"before");
    }

    #[test]
    fn own_files_are_readable_by_all_and_writable_by_their_owner() {
        let root = tempfile::tempdir().unwrap();
        // The umask is the whole process's; no other test depends on it.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        let folder = Folder::make(&root.path().join("own")).unwrap().make_below("inner").unwrap();
        folder.replace("a", b"").unwrap();
        folder.lock_file("lock").unwrap();
        rustix::process::umask(umask);
        assert_eq!(mode(&root.path().join("own")), 0o755);
        let inner = |name: &str| mode(&root.path().join("own/inner").join(name));
        assert_eq!((inner(""), inner("a"), inner("lock")), (0o755, 0o644, 0o600));
        folder.remove("a").unwrap();
        folder.remove("a").unwrap();
        assert_eq!(folder.read_within("a", 100).unwrap(), None);
    }
}
