//! A file of a cgroup, or of the kernel, that is read again and again. It is opened once if enough
//! descriptors are free.

use crate::{cgroup::is_gone, read};
use std::{fs::File, io, path::Path};

type Read = fn(&File, &mut Vec<u8>) -> io::Result<usize>;

/// The buffer that files are read into, one after the other.
#[derive(Debug, Default)]
pub(super) struct Buffer(Vec<u8>);

/// A file that stays open between two reads.
#[derive(Debug)]
pub(super) struct Kept {
    name: &'static str,
    read: Read,
    file: Option<File>,
    /// True if the last read found no such file.
    is_missing: bool,
}

impl Kept {
    /// The file of that name; the first read opens it.
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, read: read::whole, file: None, is_missing: false }
    }

    /// As [`new`](Self::new), for a file that is one record: all files of a cgroup except its
    /// lists.
    pub(super) const fn of_one_record(name: &'static str) -> Self {
        Self { name, read: read::record, file: None, is_missing: false }
    }

    /// Its present content. None if it cannot be read.
    pub(super) fn read<'b>(
        &mut self,
        folder: &Path,
        stays_open: bool,
        buffer: &'b mut Buffer,
    ) -> Option<&'b str> {
        self.try_read(folder, stays_open, buffer).ok()?
    }

    /// As [`read`](Self::read). A file that the last read did not find is looked for `again`, or
    /// not.
    pub(super) fn read_known<'b>(
        &mut self,
        folder: &Path,
        stays_open: bool,
        again: bool,
        buffer: &'b mut Buffer,
    ) -> Option<&'b str> {
        if self.is_missing && !again { None } else { self.read(folder, stays_open, buffer) }
    }

    /// Its present content. None if the file is missing: its controller is not enabled, or its
    /// group has ended.
    ///
    /// # Errors
    /// If neither is certain: too few descriptors, or too little memory.
    pub(super) fn try_read<'b>(
        &mut self,
        folder: &Path,
        stays_open: bool,
        buffer: &'b mut Buffer,
    ) -> io::Result<Option<&'b str>> {
        let read = (|| {
            let file = match self.file.take() {
                Some(file) => file,
                None => File::open(folder.join(self.name))?,
            };
            let length = (self.read)(&file, &mut buffer.0)?;
            self.file = stays_open.then_some(file);
            Ok(length)
        })();
        self.is_missing = read.as_ref().is_err_and(is_gone);
        match read {
            Ok(length) => Ok(std::str::from_utf8(&buffer.0[..length]).ok()),
            // The file may reappear when the controller is enabled again.
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::FIRST_BYTES;
    use std::fs;

    #[test]
    fn a_file_is_read_anew_each_time_and_may_come_later() {
        let folder = tempfile::tempdir().unwrap();
        let (mut kept, mut buffer) = (Kept::new("a"), Buffer::default());
        let mut read =
            |stays_open| kept.read(folder.path(), stays_open, &mut buffer).map(str::to_owned);
        assert_eq!(read(true), None);
        for text in ["some".to_owned(), "x".repeat(3 * FIRST_BYTES), "less".to_owned()] {
            fs::write(folder.path().join("a"), &text).unwrap();
            assert_eq!(read(true).as_ref(), Some(&text));
        }
        // A new file of that name is not seen while the first one is open; it is seen once the file
        // need not stay open.
        fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        fs::write(folder.path().join("a"), "another").unwrap();
        assert_eq!([read(false), read(false)], [Some("less".into()), Some("another".into())]);
        fs::write(folder.path().join("a"), [0xff]).unwrap();
        assert_eq!(read(false), None);
        // A missing file is looked for again on request.
        let mut late = Kept::new("late");
        let mut read =
            |again| late.read_known(folder.path(), true, again, &mut buffer).map(str::to_owned);
        assert_eq!(read(false), None);
        fs::write(folder.path().join("late"), "come").unwrap();
        let come = Some("come".to_owned());
        assert_eq!([read(false), read(true), read(false)], [None, come.clone(), come]);
        // A missing file differs from one that cannot be read for now.
        let read = |name| {
            Kept::new(name).try_read(folder.path(), true, &mut Buffer::default()).map(|_| ())
        };
        assert!(read("none").is_ok() && read("a").is_ok());
        fs::create_dir(folder.path().join("c")).unwrap();
        assert_eq!(read("c").unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
