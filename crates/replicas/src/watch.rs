//! Watches on files, by which the kernel tells of changes.

use nearside_policy::replication::Bar;
use rustix::fs::inotify::{self, WatchFlags};
use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

/// Watches a file. The kernel has one watch in `changes` for all that is watched of it.
///
/// # Errors
/// If there are too many watches.
pub(crate) fn watch(changes: &OwnedFd, file: &File, events: WatchFlags) -> Result<i32, Bar> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    inotify::add_watch(changes, path, events | WatchFlags::MASK_ADD)
        .map_err(|error| Bar::NotWatched { error: io::Error::from(error).to_string() })
}
