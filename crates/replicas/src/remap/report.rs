//! The task of an exchange, and its result.

use super::{descriptors::Descriptor, maps::Segment, plan::Kept};
use crate::file_id::FileId;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// One file to exchange for another one with the same content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The absolute path that shows the new file in the mount namespace of the process. The process
    /// opens it there, so `/proc/PID/maps` shows this path.
    pub path: PathBuf,
    /// The file that the process maps now.
    pub from: FileId,
    /// The new file. If the path shows another one, nothing is exchanged.
    pub to: FileId,
}

/// The result for one process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Segments that map the new file, as a whole or but for their private pages.
    pub changed: Vec<Segment>,
    /// Segments, or their private pages, that are as before.
    pub kept: Vec<Kept>,
    /// Descriptors that are open on the new file. Only detaching changes descriptors.
    pub descriptors: Vec<u32>,
    /// Descriptors that can write and so stay open on the old file.
    pub kept_descriptors: Vec<Descriptor>,
    /// Changed descriptors through which the process held a lock on the old file. The lock is gone.
    pub lost_locks: Vec<u32>,
    /// The number of threads that were stopped. None is stopped if there is nothing to change.
    pub threads: usize,
    /// How long they were stopped.
    pub stopped: Duration,
}

impl Report {
    /// True if the process had nothing to exchange.
    pub(crate) fn is_empty(&self) -> bool {
        let mappings = self.changed.len() + self.kept.len();
        mappings + self.descriptors.len() + self.kept_descriptors.len() == 0
    }
}
