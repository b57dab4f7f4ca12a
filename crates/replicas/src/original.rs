//! A file that may have copies.

use crate::{
    error::{Error, IoContext},
    file_id::FileId,
    file_system::{is_foreign, is_generated, mount_of, told_kind},
    overlay::check_layers,
    path_text,
};
use nearside_linux::escape;
use nearside_policy::replication::Bar;
use rustix::fs::{AtFlags, FileType, Stat, StatxAttributes, StatxFlags, readlink, statx};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where a file is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The root under which it lies on the host, such as that of a container; none for the host's.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "path_text::optional")]
    pub image: Option<PathBuf>,
    /// Its absolute path below that root, without links: the path in the mount namespaces that
    /// shall see its copies.
    #[serde(with = "path_text")]
    pub path: PathBuf,
}

impl Place {
    /// Its path on the host.
    pub fn on_host(&self) -> PathBuf {
        match &self.image {
            Some(image) => image.join(self.path.strip_prefix("/").unwrap_or(&self.path)),
            None => self.path.clone(),
        }
    }
}

/// A file that may have copies, open for reading, and where it is found.
#[derive(Debug)]
pub struct Original {
    /// Open with a description of its own, to which the lease belongs.
    pub(crate) file: Arc<File>,
    /// The files below it in the layers of its overlay, leased together with it.
    pub(crate) layers: Vec<File>,
    pub(crate) id: FileId,
    /// The content when the lease was taken last.
    pub(crate) version: Version,
    pub(crate) place: Place,
}

/// Tells one content of a file from another: writing changes its time, and a truncation its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) bytes: u64,
    modified: (i64, u64),
}

impl From<&Stat> for Version {
    fn from(stat: &Stat) -> Self {
        #[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
        let modified = (stat.st_mtime as i64, stat.st_mtime_nsec as u64);
        Self { bytes: stat.st_size.cast_unsigned(), modified }
    }
}

impl Version {
    pub(crate) fn of(file: &File) -> rustix::io::Result<Self> {
        rustix::fs::fstat(file).map(|stat| Self::from(&stat))
    }
}

impl Original {
    /// Opens the file behind a descriptor that a client has sent, at most an `O_PATH` one. Each use
    /// of `place` checks that it names this very file. `detached` gives it by a mount of its own,
    /// if it can.
    ///
    /// # Errors
    /// The outer error if the file cannot be opened, the inner one if it cannot have copies.
    pub fn open(
        sent: &OwnedFd,
        client: Option<u32>,
        place: &Place,
        detached: impl FnOnce(&Path, FileId) -> Option<OwnedFd>,
    ) -> Result<Result<Self, Bar>, Error> {
        let doing = || format!("opening {}", escape::text(place.on_host()));
        // Before it is opened: to open a device or a FIFO may have effects.
        match check(sent, client).doing(doing)? {
            // Its content may follow.
            Ok(()) | Err(Bar::Empty) => {}
            Err(bar) => return Ok(Err(bar)),
        }
        // The descriptor sent may lack the right to read, and a lease belongs to a description.
        let source = detached(&place.on_host(), FileId::of(sent).doing(doing)?);
        let source = source.as_ref().unwrap_or(sent);
        let file = File::open(format!("/proc/self/fd/{}", source.as_raw_fd())).doing(doing)?;
        let stat = rustix::fs::fstat(&file).doing(doing)?;
        Ok(Ok(Self {
            file: Arc::new(file),
            layers: Vec::new(),
            id: FileId { device: stat.st_dev, inode: stat.st_ino },
            version: Version::from(&stat),
            place: place.clone(),
        }))
    }

    /// Takes note of the content that the lease keeps as it is.
    pub(crate) fn note_version(&mut self) {
        if let Ok(now) = Version::of(&self.file) {
            self.version = now;
        }
    }

    /// Takes note of new times of the same content. After a truncation it does nothing.
    pub(crate) fn note_times(&mut self) {
        let now = Version::of(&self.file).ok();
        if let Some(now) = now.filter(|now| now.bytes == self.version.bytes) {
            self.version = now;
        }
    }

    /// Whether the content is another one than under the lease. An open for reading that truncates
    /// (`O_RDONLY | O_TRUNC`) breaks no lease.
    pub(crate) fn is_changed(&self) -> bool {
        Version::of(&self.file).ok() != Some(self.version)
    }

    /// Whether it has no content (now).
    pub(crate) fn is_empty(&self) -> bool {
        Version::of(&self.file).is_ok_and(|now| now.bytes == 0)
    }

    /// Whether it has lost a name since it was opened: a package upgrade, a rename or an unlink.
    /// `there` is the file at its place now.
    pub(crate) fn is_replaced(&self, there: Option<FileId>) -> bool {
        match there {
            Some(there) => there != self.id,
            None => self.has_no_name(),
        }
    }

    /// Whether nobody can open it by a name any more.
    pub(crate) fn has_no_name(&self) -> bool {
        rustix::fs::fstat(&self.file).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Whether the name by which it was opened has gone: it was unlinked, or another file was
    /// renamed over it. A file that was renamed itself has a name. The kernel tells by the end of
    /// the path (`d_path` in `fs/d_path.c`).
    pub(crate) fn has_lost_its_name(&self) -> bool {
        let path = readlink(format!("/proc/self/fd/{}", self.file.as_raw_fd()), Vec::new());
        path.is_ok_and(|path| path.as_bytes().ends_with(b" (deleted)"))
    }

    /// The type of its file system, as `/proc/filesystems` names it as far as it is known.
    pub(crate) fn file_system(&self) -> String {
        let mounted = mount_of(&self.file, &HOSTS).map(|mount| mount.kind);
        mounted.or_else(|| told_kind(&self.file).ok()).unwrap_or_else(|| "unknown".into())
    }
}

/// The processes with the mounts of the host.
const HOSTS: [&str; 2] = ["thread-self", "1"];

/// The bar against a file, as far as its attributes tell. It need not be open for reading. `client`
/// has sent it.
///
/// # Errors
/// Those of `fstat(2)`, `fstatfs(2)` and `statx(2)`.
pub fn check(file: &OwnedFd, client: Option<u32>) -> io::Result<Result<(), Bar>> {
    let foreign = |name: String| Ok(Err(Bar::ForeignFileSystem { name }));
    // First, and without a question: a file system that others serve may not answer.
    let client = client.map(|client| client.to_string());
    let processes: Vec<_> = HOSTS.into_iter().chain(client.as_deref()).collect();
    let Some(mount) = mount_of(file, &processes) else { return Ok(Err(Bar::NotMounted)) };
    if is_foreign(&mount.kind) || is_generated(&mount.kind) {
        return foreign(mount.kind);
    }
    if mount.kind == "overlay"
        && let Err(why) = check_layers(&mount)
    {
        return Ok(Err(Bar::Layers { why }));
    }
    let stat = rustix::fs::fstat(file)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        return Ok(Err(Bar::NotRegular { found: kind_name(kind).into() }));
    }
    // A relative of a known type may have a name of its own.
    let name = told_kind(file)?;
    if is_foreign(&name) {
        return foreign(name);
    }
    let attributes = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?.stx_attributes;
    if attributes.contains(StatxAttributes::VERITY) {
        return Ok(Err(Bar::Verity));
    }
    if stat.st_size == 0 {
        return Ok(Err(Bar::Empty));
    }
    Ok(Ok(()))
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "a special file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};

    fn place(path: &Path) -> Place {
        Place { image: None, path: path.into() }
    }

    fn opened(path: &str) -> Result<FileId, Bar> {
        let sent = open(path, OFlags::PATH, Mode::empty()).unwrap();
        Original::open(&sent, None, &place(Path::new(path)), |_, _| None)
            .unwrap()
            .map(|original| original.id)
    }

    #[test]
    fn only_regular_files_with_content_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("text"), "x").unwrap();
        std::fs::write(path("empty"), "").unwrap();
        let fifo = std::ffi::CString::new(path("fifo")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
        let there = FileId::at(Path::new(&path("text"))).unwrap();
        assert_eq!(opened(&path("text")), Ok(there));
        let empty = open(path("empty"), OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(check(&empty, None).unwrap(), Err(Bar::Empty));
        assert!(opened(&path("empty")).is_ok(), "its content may follow");
        let not_regular = |found: &str| Err(Bar::NotRegular { found: found.into() });
        assert_eq!(opened(&path("fifo")), not_regular("a FIFO"), "it is not opened");
        assert_eq!(opened(folder.path().to_str().unwrap()), not_regular("a folder"));
        assert_eq!(opened("/dev/null"), not_regular("a device"));
        let generated = Err(Bar::ForeignFileSystem { name: "proc".into() });
        assert_eq!(opened("/proc/self/maps"), generated);
    }

    #[test]
    fn a_place_in_an_image_lies_below_its_root_on_the_host() {
        let image = Some(PathBuf::from("/var/lib/containers/7"));
        let place = Place { image, path: "/usr/bin/db".into() };
        assert_eq!(place.on_host(), Path::new("/var/lib/containers/7/usr/bin/db"));
    }

    #[test]
    fn a_truncation_and_a_write_change_the_content_and_a_mode_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "text").unwrap();
        let sent = open(&path, OFlags::PATH, Mode::empty()).unwrap();
        let mut original =
            Original::open(&sent, None, &place(&path), |_, _| None).unwrap().unwrap();
        let times = |file: &std::fs::File, seconds| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
        };
        rustix::fs::chmod(&path, Mode::RUSR).unwrap();
        assert!(!original.is_changed());
        rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR).unwrap();
        drop(open(&path, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()).unwrap());
        assert!(original.is_changed());
        original.note_version();
        assert_eq!((original.is_changed(), original.version.bytes), (false, 0));
        original.version.bytes = 4;
        original.note_times();
        assert!(original.is_changed(), "a change of attributes after a truncation hides that");
        original.note_version();
        // A write of as many bytes as before.
        times(&std::fs::File::options().write(true).open(&path).unwrap(), 1);
        assert!(original.is_changed());
        original.note_times();
        assert!(!original.is_changed());
    }

    #[test]
    fn a_file_that_was_renamed_over_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("lib.so"), folder.path().join("lib.so.new"));
        std::fs::write(&old, "old").unwrap();
        let sent = open(&old, OFlags::PATH, Mode::empty()).unwrap();
        let original = Original::open(&sent, None, &place(&old), |_, _| None).unwrap().unwrap();
        let is_replaced = || original.is_replaced(FileId::at(&old).ok());
        assert!(!is_replaced());
        let (moved, second) = (folder.path().join("moved"), folder.path().join("second"));
        std::fs::rename(&old, &moved).unwrap();
        assert!(!is_replaced() && !original.has_lost_its_name(), "it has another name");
        std::fs::rename(&moved, &old).unwrap();
        std::fs::hard_link(&old, &second).unwrap();
        std::fs::write(&new, "new").unwrap();
        std::fs::rename(&new, &old).unwrap();
        assert!(is_replaced() && original.has_lost_its_name() && !original.has_no_name());
        std::fs::remove_file(&second).unwrap();
        assert!(original.has_no_name());
        // A mount may show a file without a name.
        assert!(original.is_replaced(None) && !original.is_replaced(Some(original.id)));
    }
}
