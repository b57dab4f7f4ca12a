//! Errors of an exchange.

use super::refusal::Refusal;
use crate::file_id::FileId;
use nearside_linux::escape;
use std::{io, path::PathBuf};

/// Why the mappings of a process were not exchanged. The process maps what it mapped before, unless
/// the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum RemapError {
    /// The process was left alone.
    #[error("process {pid}: {why}")]
    Refused {
        /// The process.
        pid: i32,
        /// The reason.
        why: Refusal,
    },
    /// A file below `/proc/PID` could not be read.
    #[error("{}: {source}", escape::text(path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The path shows another file in the mount namespace of the process.
    #[error(
        "process {pid}: {} is file {found} in its mount namespace, not {expected}",
        escape::text(path)
    )]
    OtherFile {
        /// The process.
        pid: i32,
        /// The path.
        path: PathBuf,
        /// The file that it was to show.
        expected: FileId,
        /// The file that it shows.
        found: FileId,
    },
    /// The process may not open the file, or cannot reach it.
    #[error("process {pid}: opening {}: {source}", escape::text(path))]
    Open {
        /// The process.
        pid: i32,
        /// The path.
        path: PathBuf,
        /// The reason that the process got.
        source: io::Error,
    },
    /// A path that no system call takes: it is relative, too long, or contains a zero byte.
    #[error("{}: not an absolute path of at most 4095 bytes", escape::text(path))]
    BadPath {
        /// The path.
        path: PathBuf,
    },
    /// A system call that the process made failed. All changes are undone.
    #[error("process {pid}: {what}: {source}; its mappings are as before")]
    Call {
        /// The process.
        pid: i32,
        /// The call and its purpose.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// Tracing the process failed, usually because it was killed meanwhile.
    #[error("process {pid}: {what}: {source}")]
    Trace {
        /// The process.
        pid: i32,
        /// The request.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// A call failed, and undoing the earlier ones failed, too. Some segments are exchanged, which
    /// the process cannot tell as long as both files are equal.
    #[error("process {pid}: {first}; undoing it failed as well: {then}")]
    NotUndone {
        /// The process.
        pid: i32,
        /// The first failure.
        first: Box<RemapError>,
        /// The failure of the undo.
        then: Box<RemapError>,
    },
    /// No thread could be started to trace from.
    #[error("starting a tracer: {source}")]
    NoTracer {
        /// The reason.
        source: io::Error,
    },
}
