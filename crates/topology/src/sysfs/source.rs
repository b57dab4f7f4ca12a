//! The file tree that is read, and the notes made meanwhile.

use super::{
    mask,
    note::{Error, Note},
};
use crate::{
    bounded_file,
    id::{CpuSet, Id, IdSet, InvalidList, MAX_ID},
};
use alloc::{format, string::String, vec, vec::Vec};
use core::fmt::Display;
use rustix::{
    fs::{Dir, DirEntry, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// No file of `/sys` or `/proc` that is read as a whole comes near this; a root may hold anything.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// For a file that is read line by line: `/proc/zoneinfo` has some lines for each zone and CPU,
/// which are 100 MiB on tens of nodes with thousands of CPUs.
const MAX_LINES_BYTES: u64 = 1 << 30;
const MAX_LINE_BYTES: u64 = 64 << 10;

/// The smallest page of the architectures that Linux runs NUMA machines on.
const LEAST_PAGE_BYTES: usize = 4 << 10;

/// The folders with the most files.
const LARGE_FOLDERS: [&str; 2] = ["sys/devices/system/cpu", "sys/devices/system/node"];

const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Open folders: from them the kernel has fewer names to look up.
struct Folders {
    root: OwnedFd,
    /// Those of [`LARGE_FOLDERS`] that are there.
    below: Vec<(&'static str, OwnedFd)>,
}

/// Paths given to its methods are relative to the root.
pub(super) struct Source {
    root: PathBuf,
    folders: Folders,
    notes: Vec<Note>,
    about_memory: bool,
    /// Holds a file of `/sys` while it is read.
    buffer: Vec<u8>,
}

impl Source {
    pub(super) fn open(root: &Path) -> Result<Self, Error> {
        let folders = Folders::open(root)
            .map_err(|error| Error::Root { root: root.to_path_buf(), error: error.into() })?;
        Ok(Self {
            root: root.to_path_buf(),
            folders,
            notes: Vec::new(),
            about_memory: false,
            buffer: vec![0; LEAST_PAGE_BYTES],
        })
    }

    pub(super) fn into_notes(self) -> Vec<Note> {
        self.notes
    }

    pub(super) fn note(&mut self, path: &str, why: impl Display) {
        let about_memory = self.about_memory;
        self.notes.push(Note { file: self.root.join(path), why: format!("{why}"), about_memory });
    }

    /// The number of notes so far, for [`Source::forget_notes_after`].
    pub(super) fn notes(&self) -> usize {
        self.notes.len()
    }

    /// Drops later notes, those of a read that is done again.
    pub(super) fn forget_notes_after(&mut self, notes: usize) {
        self.notes.truncate(notes);
    }

    /// Reads without notes, for files that were read before.
    pub(super) fn quietly<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let notes = self.notes();
        let result = read(self);
        self.forget_notes_after(notes);
        result
    }

    /// Marks the notes of `read` as affecting the amount of memory that can be claimed.
    pub(super) fn about_memory<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        self.about_memory = true;
        let result = read(self);
        self.about_memory = false;
        result
    }

    /// The text of a file that should be there; its absence is noted.
    pub(super) fn text(&mut self, path: &str) -> Option<String> {
        match self.try_text(path) {
            Ok(text) => Some(text),
            Err(error) => {
                self.note(path, error);
                None
            }
        }
    }

    /// The text of a file that many kernels do not have; only errors other than absence are noted.
    pub(super) fn text_if_any(&mut self, path: &str) -> Option<String> {
        match self.try_text(path) {
            Ok(text) => Some(text),
            // A device without the attribute answers "no such device" or "invalid argument" on some
            // kernels.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
                ) =>
            {
                None
            }
            Err(error) => {
                self.note(path, error);
                None
            }
        }
    }

    /// Calls `each` with the lines of a file of any length, one after the other.
    pub(super) fn each_line(&self, path: &str, each: impl FnMut(&str)) -> io::Result<()> {
        each_line(BufReader::new(self.open_file(path)?), MAX_LINES_BYTES, each)
    }

    fn open_file(&self, path: &str) -> io::Result<File> {
        bounded_file::open(&self.root.join(path)).map_err(io::Error::from)
    }

    fn try_text(&mut self, path: &str) -> io::Result<String> {
        if path.starts_with("sys/") {
            return self.attribute(path);
        }
        let bytes = bounded_file::read(&self.root.join(path), MAX_FILE_BYTES)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The text of a file of `/sys`. A large machine has tens of thousands of them, most of a few
    /// bytes. The kernel fills a page in each read (`kernfs_fop_read_iter` in Linux,
    /// `fs/kernfs/file.c`), so a shorter read is the last. A file that has no text or more, or that
    /// is something else, is read with care.
    fn attribute(&mut self, path: &str) -> io::Result<String> {
        let (folder, name) = self.folders.nearest(path);
        let read = rustix::fs::openat(folder, name, bounded_file::OPEN_FLAGS, Mode::empty())
            .and_then(|file| rustix::io::read(file, &mut self.buffer[..]));
        match read {
            Ok(length) if (1..LEAST_PAGE_BYTES).contains(&length) => {
                Ok(String::from_utf8_lossy(&self.buffer[..length]).into_owned())
            }
            Err(Errno::NOENT) => Err(Errno::NOENT.into()),
            _ => {
                let bytes = bounded_file::read(&self.root.join(path), MAX_FILE_BYTES)?;
                Ok(String::from_utf8_lossy(&bytes).into_owned())
            }
        }
    }

    /// The CPUs of the file `list` (`0-3,8`), or else of the file `mask` (`0000010f`); kernels may
    /// lack either or both.
    pub(super) fn cpus_if_any(&mut self, list: &str, mask: &str) -> Option<CpuSet> {
        let listed = self.list_if_any(list);
        if listed.is_some() {
            return listed;
        }
        let text = self.text_if_any(mask)?;
        mask::parse(&text)
            .map_err(|why| {
                let read = quoted(text.trim());
                self.note(
                    mask,
                    format_args!("read {read}, expected a mask such as 0000ffff: {why}"),
                );
            })
            .ok()
    }

    /// The list (`0-3,8`) in a file that many kernels do not have.
    pub(super) fn list_if_any<T: Id>(&mut self, path: &str) -> Option<IdSet<T>> {
        let text = self.text_if_any(path)?;
        self.parse_list(path, &text)
    }

    fn parse_list<T: Id>(&mut self, path: &str, text: &str) -> Option<IdSet<T>> {
        match text.parse() {
            Ok(set) => Some(set),
            Err(InvalidList { why, .. }) => {
                self.note(
                    path,
                    format_args!(
                        "read {}, expected a list such as 0-3,8: {why}",
                        quoted(text.trim())
                    ),
                );
                None
            }
        }
    }

    /// The number in a file that many kernels do not have.
    pub(super) fn number_if_any<N: core::str::FromStr>(&mut self, path: &str) -> Option<N> {
        let text = self.text_if_any(path)?;
        let number = text.trim().parse().ok();
        if number.is_none() {
            self.note(path, format_args!("read {}, expected a number", quoted(text.trim())));
        }
        number
    }

    /// The names in a folder, sorted; none if it is not there.
    pub(super) fn names(&mut self, folder: &str) -> Vec<String> {
        let mut names = self.unsorted(folder);
        names.sort_unstable();
        names
    }

    fn unsorted(&mut self, folder: &str) -> Vec<String> {
        self.try_names(folder).unwrap_or_else(|error| {
            if error != Errno::NOENT {
                self.note(folder, io::Error::from(error));
            }
            Vec::new()
        })
    }

    fn try_names(&self, folder: &str) -> Result<Vec<String>, Errno> {
        let (above, name) = self.folders.nearest(folder);
        let opened = rustix::fs::openat(above, name, FOLDER_FLAGS, Mode::empty())?;
        let name = |entry: DirEntry| {
            let name = entry.file_name().to_str().ok().map(String::from);
            name.filter(|name| name != "." && name != "..")
        };
        Ok(Dir::new(opened)?.flatten().filter_map(name).collect())
    }

    /// The numbers `N` for which the folder has an entry `prefixN`, in rising order.
    pub(super) fn numbered(&mut self, folder: &str, prefix: &str) -> Vec<u32> {
        let number = |name: &String| {
            let digits = name.strip_prefix(prefix)?;
            // The kernel writes neither "node+1" nor "node01".
            let is_plain =
                digits == "0" || digits.starts_with(|first| ('1'..='9').contains(&first));
            let number = digits.parse().ok().filter(|_| is_plain)?;
            (number <= MAX_ID).then_some(number)
        };
        let mut numbers: Vec<u32> = self.unsorted(folder).iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The target of a link as a path below the root; none if there is no link or it leads out of
    /// the root.
    pub(super) fn follow(&self, link: &str) -> Option<String> {
        let root = fs::canonicalize(&self.root).ok()?;
        let target = fs::canonicalize(self.root.join(link)).ok()?;
        target.strip_prefix(root).ok()?.to_str().map(String::from)
    }
}

impl Folders {
    fn open(root: &Path) -> Result<Self, Errno> {
        let root = rustix::fs::open(root, FOLDER_FLAGS, Mode::empty())?;
        let open =
            |path| Some((path, rustix::fs::openat(&root, path, FOLDER_FLAGS, Mode::empty()).ok()?));
        let below = LARGE_FOLDERS.into_iter().filter_map(open).collect();
        Ok(Self { root, below })
    }

    /// The nearest of them to a path, and the path from there.
    fn nearest<'f>(&'f self, path: &'f str) -> (BorrowedFd<'f>, &'f str) {
        let from = |(above, folder): &'f (&str, OwnedFd)| {
            Some((folder.as_fd(), path.strip_prefix(above)?.strip_prefix('/')?))
        };
        self.below.iter().find_map(from).unwrap_or((self.root.as_fd(), path))
    }
}

fn each_line(
    mut reader: impl BufRead,
    max_bytes: u64,
    mut each: impl FnMut(&str),
) -> io::Result<()> {
    let mut line = Vec::new();
    let mut left = max_bytes;
    loop {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            return Ok(());
        }
        if read == MAX_LINE_BYTES && !line.ends_with(b"\n") {
            return Err(io::Error::other(format!("a line is longer than {MAX_LINE_BYTES} bytes")));
        }
        left = left
            .checked_sub(read)
            .ok_or_else(|| io::Error::other(format!("longer than {max_bytes} bytes")))?;
        each(&String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line)));
    }
}

/// Text from a file, short enough for a message.
pub(super) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    match text.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{:?}...", &text[..cut]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_within_bounds() {
        let lines = |text: &str, max_bytes| {
            let mut lines = Vec::new();
            let read = each_line(text.as_bytes(), max_bytes, |line| lines.push(String::from(line)));
            (lines, read.map_err(|error| format!("{error}")))
        };
        assert_eq!(lines("a\n\nb", 4), (["a", "", "b"].map(String::from).into(), Ok(())));
        assert_eq!(
            lines("a\n\nb\n", 4),
            (["a", ""].map(String::from).into(), Err("longer than 4 bytes".into()))
        );
        let long = "x".repeat(MAX_LINE_BYTES as usize);
        let told = Err("a line is longer than 65536 bytes".into());
        assert_eq!(
            lines(&format!("a\n{long}\nb"), 1 << 20),
            (["a"].map(String::from).into(), told)
        );
    }
}
