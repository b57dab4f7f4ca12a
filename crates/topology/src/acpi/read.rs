//! Tables from files.

use super::Tables;
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

/// More than any machine's tables hold together; keeps a path such as `/dev/zero` from filling memory.
const MAX_BYTES: u64 = 64 << 20;

/// Why no tables could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The path or something in it cannot be read; `/sys/firmware/acpi/tables` needs root.
    #[error("cannot read ACPI tables from {}: {source}", path.display())]
    Io {
        /// What could not be read.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is larger than any ACPI table.
    #[error("{} is larger than {} MiB, expected ACPI tables", path.display(), MAX_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// There is something, but no table.
    #[error("{} holds no ACPI table: expected a folder of raw tables, a raw table or the text of acpidump", path.display())]
    NoTable {
        /// What was read.
        path: PathBuf,
    },
}

/// Reads the tables at `path`: `/sys/firmware/acpi/tables` or another folder of raw tables (or dumps), a file with one
/// raw table, or one with the text of `acpidump`. Names of files do not matter; in a folder they are read in the order
/// of their names, and what is no table is passed over.
pub fn read(path: &Path) -> Result<Tables, ReadError> {
    let io_error = |source| ReadError::Io { path: path.to_path_buf(), source };
    let mut files = Vec::new();
    if fs::metadata(path).map_err(io_error)?.is_dir() {
        for entry in fs::read_dir(path).map_err(io_error)? {
            let file = entry.map_err(io_error)?.path();
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
        tables.add(&read_file(&file)?);
    }
    match tables.met.is_empty() {
        true => Err(ReadError::NoTable { path: path.to_path_buf() }),
        false => Ok(tables),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Err(source) => Err(ReadError::Io { path: path.to_path_buf(), source }),
        Ok(_) if bytes.len() as u64 > MAX_BYTES => {
            Err(ReadError::TooLarge { path: path.to_path_buf() })
        }
        Ok(_) => Ok(bytes),
    }
}
