//! Reads the kernel's own files. Each read calls a function that writes the content, and the length
//! of a file is unknown. With a buffer that is large enough from the start, a file takes two calls.
//! The standard library's buffer, which grows from 32 bytes, takes ten.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

/// The first size of a buffer; most files of a cgroup are shorter.
pub(crate) const FIRST_BYTES: usize = 8 << 10;

/// Reads a file from its beginning, so that the kernel writes its content anew.
pub(crate) fn whole(file: &File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    until(file, buffer, |read, _| read == 0)
}

/// As [`whole`], for a file that is one record. The kernel fills the buffer as far as it can
/// (`seq_read_iter` in `fs/seq_file.c`), so remaining room means the end of the file.
pub(crate) fn record(file: &File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    until(file, buffer, |read, room| read < room)
}

/// `is_end` takes the number of bytes read, and the room there was for them.
fn until(
    file: &File,
    buffer: &mut Vec<u8>,
    is_end: impl Fn(usize, usize) -> bool,
) -> io::Result<usize> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            buffer.resize((2 * length).max(FIRST_BYTES), 0);
        }
        let room = buffer.len() - length;
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(read) => {
                length += read;
                if is_end(read, room) {
                    return Ok(length);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The content of a file, with names of cgroups, files and mount points as they are.
pub(crate) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = whole(&File::open(path)?, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// The text of a file. Some files contain names that other programs chose (threads, files, mount
/// points). These need not be UTF-8, and must not make the rest of the file unreadable. Such a name
/// is not the true one here: where it is used, [`bytes`] reads it.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8(bytes(path)?)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Reads a file of `/proc` that is one record. With enough room the kernel writes it in one call
/// (`single_open` in `fs/seq_file.c`).
pub(crate) fn at_once<'b>(path: &Path, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let length = File::open(path)?.read(buffer)?;
    Ok(&buffer[..length])
}
