//! Files of `/proc`, whole.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Room for most of them. Without it the standard library begins with reads of 32 bytes, because
/// these files have no size, and the kernel writes some lines anew for each read.
const ROOM_BYTES: usize = 16 << 10;

/// The content of a file.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    whole(File::open(path)?)
}

/// The content of an open file, from its position on.
pub(crate) fn whole(mut file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(ROOM_BYTES);
    file.read_to_end(&mut text)?;
    Ok(text)
}
