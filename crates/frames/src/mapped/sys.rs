//! Mappings, and the node that their memory comes from: all `unsafe` of the crate.

use crate::ids::Node;
use core::{
    ffi::{c_int, c_long, c_ulong, c_void},
    ptr::{NonNull, null_mut},
    sync::atomic::AtomicU64,
};
use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags},
};
use std::os::fd::AsFd;

/// A mapping of this process, until it is dropped. It consists of whole words.
#[derive(Debug)]
pub(super) struct Mapping {
    words: NonNull<AtomicU64>,
    count: usize,
}

/// How firmly memory belongs to a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// From no other node.
    Only,
    /// From this node while it has some.
    First,
}

// SAFETY: it owns the mapping, and hands out atomic words alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// All of a file, whose size nobody can change.
    pub(super) fn of(file: impl AsFd, bytes: u64) -> Result<Self, Errno> {
        let count = usize::try_from(bytes).map_err(|_| Errno::FBIG)? / 8;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so no memory of others is replaced. Where the
        // kernel has no page for a word, it ends the process; that is not undefined behaviour.
        let words = unsafe {
            rustix::mm::mmap(null_mut(), count * 8, protection, MapFlags::SHARED, file, 0)
        }?;
        Self::at(words, count)
    }

    /// Memory of this process alone, at least so many bytes, all zero.
    pub(super) fn private(bytes: u64) -> Result<Self, Errno> {
        let count = usize::try_from(bytes).map_err(|_| Errno::FBIG)?.div_ceil(8);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `of`.
        let words = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), count * 8, protection, MapFlags::PRIVATE)
        }?;
        Self::at(words, count)
    }

    fn at(words: *mut c_void, count: usize) -> Result<Self, Errno> {
        let words = NonNull::new(words.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { words, count })
    }

    /// Has the kernel take its pages from a node. For a file of usual pages that holds in all
    /// processes, for one of huge pages in this mapping.
    pub(super) fn take_from(&self, node: Node, rule: Rule) -> Result<(), Errno> {
        let mode: c_int = match rule {
            Rule::Only => libc::MPOL_BIND,
            Rule::First => libc::MPOL_PREFERRED,
        };
        let mask: u64 = 1_u64.checked_shl(u32::from(node.0)).ok_or(Errno::INVAL)?;
        // The kernel takes the number of bits plus one.
        let bits: c_ulong = 65;
        // SAFETY: the kernel reads the mask, which lives until the call returns, and changes the
        // policy of this mapping's pages alone.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.words.as_ptr(),
                self.count * 8,
                c_long::from(mode),
                &raw const mask,
                bits,
                0_u64,
            )
        };
        if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(last_error())) }
    }

    /// Has the kernel supply all of its pages.
    pub(super) fn populate(&self) -> Result<(), Errno> {
        let (first, bytes) = (self.words.as_ptr().cast(), self.count * 8);
        // SAFETY: pages are touched as if by a write that changes nothing.
        let done =
            unsafe { rustix::mm::madvise(first, bytes, rustix::mm::Advice::LinuxPopulateWrite) };
        // A fault that found no memory (madvise(2)).
        done.map_err(|errno| if errno == Errno::FAULT { Errno::NOMEM } else { errno })
    }

    /// Its words. Other processes may change those of a file at any time.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, is aligned to pages, and lives as long as `self`.
        // Every content is a valid word, and all access in this process is atomic.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr(), self.count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference to its words any more.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.count * 8) };
    }
}

fn last_error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
