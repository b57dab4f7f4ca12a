//! Notes and errors about the files of a machine.

use core::fmt;
use std::{io, path::PathBuf};

/// A file that could not be read as expected, so that the topology lacks its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The file (or folder), below the root that was given.
    pub file: PathBuf,
    /// The content or error that was read, the content that was expected, and the value used
    /// instead.
    pub why: alloc::string::String,
    /// Whether it affects the amount of memory that can be claimed, and not only the quality of
    /// placement.
    pub about_memory: bool,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.why)
    }
}

/// A root without a readable machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The root cannot be opened as a folder.
    #[error("{}: cannot be read as the root of a Linux file tree: {error}", root.display())]
    Root {
        /// The root as it was given.
        root: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The root has neither nodes nor CPUs nor memory.
    #[error(
        "{}: expected sys/devices/system/node, sys/devices/system/cpu or proc/meminfo below it, \
         found none of them", root.display()
    )]
    Nothing {
        /// The root as it was given.
        root: PathBuf,
    },
}
