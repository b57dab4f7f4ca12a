//! Reads files whose path a user or another program named: regular files only, and at most a given
//! number of bytes.
//!
//! The open never waits (`O_NONBLOCK`), and the type is checked on the open descriptor, so neither
//! a FIFO without a writer nor a device nor a file swapped in between can block the caller or fill
//! its memory.

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{self, File, FileType, Metadata},
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::Path,
};

/// A bound for files that people write by hand or Nearside itself writes: configuration, records,
/// machine files.
pub const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Most files are shorter. The kernel writes those of `/proc` anew for each read, so few are
/// better.
const FIRST_BYTES: usize = 4 << 10;

/// Flags that [`read_opened`] expects of an open that another crate makes (`openat` below a checked
/// folder).
pub const OPEN_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Reasons for which a file is not read. The texts continue a sentence such as "cannot read the
/// record PATH: ".
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused to open or read the file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The path leads to a folder, FIFO, socket or device.
    #[error("it is {0}, expected a regular file")]
    NotRegular(&'static str),
    /// The file is longer than the caller accepts.
    #[error("it is larger than {}", size(*max_bytes))]
    TooLarge {
        /// The caller's bound, in bytes.
        max_bytes: u64,
    },
    /// The file is not text.
    #[error("it is not UTF-8: {0}")]
    NotUtf8(core::str::Utf8Error),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// Reads the regular file at `path`; links are followed.
///
/// # Errors
/// The file cannot be read, is not regular, or has more than `max_bytes` bytes.
pub fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    read_opened(open_any(path)?, max_bytes)
}

/// Reads the regular file at `path` as text; links are followed.
///
/// # Errors
/// As [`read`], and if the file is not UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> Result<String, Error> {
    into_text(read(path, max_bytes)?)
}

/// Turns the bytes of a file into text.
///
/// # Errors
/// [`Error::NotUtf8`].
pub fn into_text(bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| Error::NotUtf8(error.utf8_error()))
}

/// Opens the regular file at `path` for reading; links are followed.
///
/// # Errors
/// The file cannot be opened, or is not regular.
pub fn open(path: &Path) -> Result<File, Error> {
    let file = open_any(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Opens what is at `path`, of whatever type.
fn open_any(path: &Path) -> Result<File, Error> {
    match rustix::fs::open(path, OPEN_FLAGS, Mode::empty()) {
        Ok(descriptor) => Ok(File::from(descriptor)),
        // A socket cannot be opened at all; its type explains more than the system's error.
        Err(Errno::NXIO) => check_regular(&fs::metadata(path)?).and(Err(Errno::NXIO.into())),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads a file that the caller opened with [`OPEN_FLAGS`] (and more, `O_NOFOLLOW` for example)
/// from its beginning.
///
/// # Errors
/// As [`read`].
pub fn read_opened(file: File, max_bytes: u64) -> Result<Vec<u8>, Error> {
    let metadata = file.metadata()?;
    check_regular(&metadata)?;
    // Files of /proc and /sys have no length, and others may grow, so the bound is checked again
    // below.
    let too_large = Error::TooLarge { max_bytes };
    if metadata.len() > max_bytes {
        return Err(too_large);
    }
    let length = usize::try_from(metadata.len()).unwrap_or(0);
    let mut bytes = Vec::with_capacity(length.max(FIRST_BYTES));
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max_bytes {
        true => Err(too_large),
        false => Ok(bytes),
    }
}

fn check_regular(metadata: &Metadata) -> Result<(), Error> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(Error::NotRegular(name_of(metadata.file_type()))),
    }
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

fn size(bytes: u64) -> String {
    match bytes.is_multiple_of(1 << 20) {
        true => format!("{} MiB", bytes >> 20),
        false => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn refused(path: &Path, max_bytes: u64) -> String {
        read(path, max_bytes).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), mode).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink("fifo", path("link to a FIFO")).unwrap();
        for (name, what) in [
            ("fifo", "a FIFO"),
            ("socket", "a socket"),
            ("link to a FIFO", "a FIFO"),
            ("", "a folder"),
        ] {
            let expected = format!("it is {what}, expected a regular file");
            assert_eq!(refused(&path(name), 100), expected, "{name}");
        }
        assert_eq!(refused(Path::new("/dev/zero"), 100), "it is a device, expected a regular file");
        assert!(matches!(read(&path("absent"), 100), Err(Error::Io(_))));
    }

    #[test]
    fn a_file_may_have_as_many_bytes_as_the_bound_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert_eq!(refused(&path, 3), "it is larger than 3 bytes");
        // A sparse file: its length alone refuses it.
        File::create(&path).unwrap().set_len(MAX_TEXT_BYTES + 1).unwrap();
        assert_eq!(refused(&path, MAX_TEXT_BYTES), "it is larger than 1 MiB");
        assert_eq!(refused(Path::new("/proc/self/maps"), 10), "it is larger than 10 bytes");
    }

    #[test]
    fn text_must_be_utf8() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"a\xff").unwrap();
        let error = read_text(&path, 100).unwrap_err().to_string();
        assert_eq!(error, "it is not UTF-8: invalid utf-8 sequence of 1 bytes from index 1");
        fs::write(&path, "ä").unwrap();
        assert_eq!(read_text(&path, 100).unwrap(), "ä");
    }
}
