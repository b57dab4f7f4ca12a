//! Tables from files.

use super::tables::Tables;
use crate::bounded_file;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Bytes that one file of tables may have: several times the `acpidump` text of a large server.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reasons why no tables were read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The folder cannot be listed.
    #[error("cannot read ACPI tables from {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be read, is not regular or too large; `/sys/firmware/acpi/tables` needs root.
    #[error("cannot read ACPI tables from {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: bounded_file::Error,
    },
    /// The path exists, but has no table.
    #[error(
        "{} holds no ACPI table: expected a folder of raw tables, a raw table or the text of \
         acpidump", path.display()
    )]
    NoTable {
        /// The file or folder.
        path: PathBuf,
    },
}

/// Reads the tables at `path`: `/sys/firmware/acpi/tables` or another folder of raw tables (or
/// dumps), a file with one raw table, or one with the text of `acpidump`. Names of files do not
/// matter; in a folder they are read in the order of their names, and files without a table are
/// passed over.
///
/// # Errors
/// The path or a file in the folder cannot be read or has more than [`MAX_FILE_BYTES`], the path is
/// neither a folder nor a regular file, or there is no table.
pub fn read(path: &Path) -> Result<Tables, ReadError> {
    let mut files = Vec::new();
    if path.is_dir() {
        let failed = |source| ReadError::Folder { path: path.to_path_buf(), source };
        for entry in fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.is_file() {
                files.push(file);
            }
        }
        files.sort();
    } else {
        files.push(path.to_path_buf());
    }
    let mut tables = Tables { source: path.display().to_string(), ..Tables::default() };
    for file in files {
        let bytes = bounded_file::read(&file, MAX_FILE_BYTES)
            .map_err(|source| ReadError::File { path: file, source })?;
        tables.add(&bytes);
    }
    match tables.has_any {
        true => Ok(tables),
        false => Err(ReadError::NoTable { path: path.to_path_buf() }),
    }
}
