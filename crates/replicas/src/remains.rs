//! Copies out of use whose memory does not return yet: a process has written to a page of its
//! mapping, or was started from the copy. The kernel frees them with the last such process.

use crate::sys;
use nearside_linux::sys::{move_pages, page_bytes, page_nodes};
use nearside_topology::NodeId;
use std::{fs::File, io, os::fd::AsFd};

/// Mapped and moved at a time.
const WINDOW_BYTES: u64 = 64 << 20;

/// The kernel leaves a run of pages at the first one that does not move, so the rest are tried
/// again.
const MAX_ATTEMPTS: usize = 8;

/// What is left of a copy without a name.
#[derive(Debug)]
pub(crate) struct Remains {
    file: File,
    /// The node of its memory.
    pub(crate) node: NodeId,
    /// Its memory, in bytes.
    pub(crate) bytes: u64,
}

impl Remains {
    /// `file` is the copy's, open for reading.
    pub(crate) fn of(file: File, node: NodeId, bytes: u64) -> Self {
        Self { file, node, bytes }
    }

    /// Whether anyone else has it open, mapped, or as the executable. Only a file without other
    /// users grants a write lease (`check_conflicting_open` in `fs/locks.c`).
    pub(crate) fn is_held(&self) -> bool {
        let taken = sys::take_write_lease(self.file.as_fd());
        _ = sys::release_lease(self.file.as_fd());
        taken.is_err()
    }

    /// Moves its memory to a node. Pages that others map by a way that was not found stay.
    ///
    /// # Errors
    /// If the kernel does not tell where its pages lie.
    pub(crate) fn move_to(&mut self, node: NodeId) -> io::Result<()> {
        let bytes = rustix::fs::fstat(&self.file)?.st_size.cast_unsigned();
        let page = usize::try_from(page_bytes()).map_err(io::Error::other)?;
        let mut offset = 0;
        while offset < bytes {
            let window = WINDOW_BYTES.min(bytes - offset);
            let length = usize::try_from(window).map_err(io::Error::other)?;
            let mapped = sys::Mapped::of(&self.file, offset, length)?;
            move_all(&mapped.pages(page), node)?;
            offset += window;
        }
        self.node = node;
        Ok(())
    }
}

fn move_all(addresses: &[usize], node: NodeId) -> io::Result<()> {
    let mut elsewhere = addresses.to_vec();
    for _ in 0..MAX_ATTEMPTS {
        let nodes = page_nodes(0, &elsewhere)?;
        let places = elsewhere.iter().zip(nodes);
        elsewhere = places.filter(|(_, it)| *it != Ok(node)).map(|(at, _)| *at).collect();
        if elsewhere.is_empty() {
            break;
        }
        // Of a full node the pages moved so far are elsewhere in the next look.
        _ = move_pages(0, &elsewhere, &vec![node; elsewhere.len()], false);
    }
    Ok(())
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
        let mut remains = Remains::of(opened, NodeId(0), 0);
        assert!(!remains.is_held());
        let other = File::open(&path).unwrap();
        assert!(remains.is_held());
        let mapped = sys::Mapped::of(&other, 0, 1).unwrap();
        drop(other);
        assert!(remains.is_held(), "a mapping is a user");
        // Its pages lie on the only node that every machine has.
        remains.move_to(NodeId(0)).unwrap();
        drop(mapped);
        assert!(!remains.is_held());
    }
}
