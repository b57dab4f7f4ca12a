//! Copies out of use whose memory does not return yet. A process has written to a page of its
//! mapping, was started from the copy, or could not be returned to the original. The kernel frees
//! them with the last such process.

use crate::{file_id::FileId, sys};
use nearside_linux::sys::{move_pages, page_bytes, page_nodes};
use nearside_topology::NodeId;
use std::{fs::File, io, os::fd::AsFd};

/// The kernel leaves a run of pages at the first one that does not move, so the rest are tried
/// again.
const MAX_ATTEMPTS: usize = 8;

/// A copy that has lost its name, and that processes still hold.
#[derive(Debug)]
pub(crate) struct Remains {
    file: File,
    /// The copy.
    pub(crate) copy: FileId,
    /// The node of its memory.
    pub(crate) node: NodeId,
    /// Its memory, in bytes.
    pub(crate) bytes: u64,
    /// Whether an attempt to move it has left pages behind, which others map.
    is_stuck: bool,
}

impl Remains {
    /// `file` is the copy's, open for reading.
    pub(crate) fn of(file: File, copy: FileId, node: NodeId, bytes: u64) -> Self {
        Self { file, copy, node, bytes, is_stuck: false }
    }

    /// Whether anyone else has it open, mapped, or as the executable. Only a file without other
    /// users grants a write lease (`check_conflicting_open` in `fs/locks.c`).
    pub(crate) fn is_held(&self) -> bool {
        let taken = sys::take_write_lease(self.file.as_fd());
        _ = sys::release_lease(self.file.as_fd());
        // Without leases nobody can tell, and this file itself would keep the memory.
        taken.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Whether it may move.
    pub(crate) fn is_movable(&self) -> bool {
        !self.is_stuck
    }

    /// Moves its memory to a node. Pages that another process maps stay where they are. Returns the
    /// bytes that have moved.
    ///
    /// # Errors
    /// If the kernel does not tell where its pages lie.
    pub(crate) fn move_to(&mut self, node: NodeId) -> io::Result<u64> {
        let mut left_bytes = 0;
        sys::for_each_window(&self.file, sys::WINDOW_BYTES, |addresses| {
            left_bytes += move_all(addresses, node)? as u64 * page_bytes();
            Ok(())
        })?;
        self.is_stuck = left_bytes > 0;
        if !self.is_stuck {
            self.node = node;
        }
        Ok(self.bytes.saturating_sub(left_bytes))
    }
}

/// Returns the number of pages that stay elsewhere.
fn move_all(addresses: &[usize], node: NodeId) -> io::Result<usize> {
    let mut elsewhere = addresses.to_vec();
    for attempt in 0..=MAX_ATTEMPTS {
        let nodes = page_nodes(0, &elsewhere)?;
        let places = elsewhere.iter().zip(nodes);
        elsewhere = places.filter(|(_, it)| *it != Ok(node)).map(|(at, _)| *at).collect();
        if elsewhere.is_empty() || attempt == MAX_ATTEMPTS {
            break;
        }
        // The next look tells what has moved.
        _ = move_pages(0, &elsewhere, &vec![node; elsewhere.len()], false);
    }
    Ok(elsewhere.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remains_are_held_as_long_as_a_process_maps_or_opens_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 3 * page_bytes() as usize]).unwrap();
        let opened = File::open(file.path()).unwrap();
        // The handle of the temporary file would be another user.
        let path = file.into_temp_path();
        let id = FileId::of(&opened).unwrap();
        let mut remains = Remains::of(opened, id, NodeId(0), 3 * page_bytes());
        // A child of another test has this test's descriptors until it executes its program.
        let await_free = |remains: &Remains| {
            while remains.is_held() {
                std::thread::yield_now();
            }
        };
        await_free(&remains);
        let other = File::open(&path).unwrap();
        assert!(remains.is_held());
        let mapped = sys::Mapped::of(&other, 0, 1).unwrap();
        drop(other);
        assert!(remains.is_held(), "a mapping is a user");
        drop(mapped);
        await_free(&remains);
        // Every machine has node 0, and this test may run on one that has no other.
        let bytes = 3 * page_bytes();
        assert_eq!((remains.move_to(NodeId(0)).unwrap(), remains.node), (bytes, NodeId(0)));
        assert!(remains.is_movable());
        // There is no such node, so the pages stay.
        assert_eq!((remains.move_to(NodeId(1023)).unwrap(), remains.node), (0, NodeId(0)));
        assert!(!remains.is_movable());
    }
}
