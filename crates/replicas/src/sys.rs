//! The system calls that no safe crate wraps. All `unsafe` of the crate is here and in the modules
//! below.
#![allow(unsafe_code)]

mod interruptions;
mod processes;

pub(crate) use interruptions::{Interruptions, Seizing};
use nearside_linux::sys::page_bytes;
pub(crate) use processes::*;
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    thread::{UnshareFlags, unshare_unsafe},
};
use std::{
    ffi::c_void,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::null_mut,
};

/// Takes a read lease (fcntl(2), `F_SETLEASE`) on the open file behind `file`. Someone who opens
/// the file for writing then waits, and this process gets `SIGIO`.
pub(crate) fn take_read_lease(file: BorrowedFd<'_>) -> io::Result<()> {
    set_lease(file, libc::F_RDLCK)
}

/// Takes a write lease on the open file behind `file`. That fails if anyone else has the file open.
pub(crate) fn take_write_lease(file: BorrowedFd<'_>) -> io::Result<()> {
    set_lease(file, libc::F_WRLCK)
}

/// Gives a lease back.
pub(crate) fn release_lease(file: BorrowedFd<'_>) -> io::Result<()> {
    set_lease(file, libc::F_UNLCK)
}

fn set_lease(file: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the command takes an integer, and the descriptor is open as long as it is borrowed.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    checked(result.into())
}

/// Whether the read lease on `file` is held and nobody waits for its end.
pub(crate) fn lease_is_whole(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the command takes no argument, and the descriptor is open as long as it is borrowed.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
    result == libc::F_RDLCK
}

/// Whether a thread runs before all ordinary ones (`SCHED_RR` of sched(7)), because a writer waits
/// for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It does not, nor do threads that it starts.
    Ordinary,
    /// It alone does.
    Thread,
    /// It does, and so do threads that it starts.
    WithThreads,
}

/// Sets the urgency of this thread.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` and with a `RLIMIT_RTPRIO` of 0, or where the kernel gives the
/// group no time for such threads (`CONFIG_RT_GROUP_SCHED`).
pub(crate) fn set_urgency(urgency: Urgency) -> io::Result<()> {
    let (policy, sched_priority) = match urgency {
        Urgency::Ordinary => (libc::SCHED_OTHER, 0),
        Urgency::Thread => (libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1),
        Urgency::WithThreads => (libc::SCHED_RR, 1),
    };
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the kernel reads the parameters.
    checked(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) }.into())
}

/// Gives this thread a mount namespace of its own, and a root and working directory of its own.
pub(crate) fn unshare_mounts() -> rustix::io::Result<()> {
    // SAFETY: descriptors, the only thing whose sharing other code may rely on, stay shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
}

/// Gives this thread a root and working directory of its own.
pub(crate) fn unshare_folders() -> rustix::io::Result<()> {
    // SAFETY: as above.
    unsafe { unshare_unsafe(UnshareFlags::FS) }
}

/// Makes a mount that is not attached anywhere read-only (mount_setattr(2)), without devices.
pub(crate) fn make_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    set_mount_attributes(mount, libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV)
}

/// Takes set-user-ID and file capabilities from a mount, or the right to execute.
pub(crate) fn restrict(mount: BorrowedFd<'_>, nosuid: bool, noexec: bool) -> io::Result<()> {
    let attribute = |is_set, attribute| if is_set { attribute } else { 0 };
    let nosuid = attribute(nosuid, libc::MOUNT_ATTR_NOSUID);
    set_mount_attributes(mount, nosuid | attribute(noexec, libc::MOUNT_ATTR_NOEXEC))
}

fn set_mount_attributes(mount: BorrowedFd<'_>, attr_set: u64) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is a C string, and the structure lives as long as the call and has the size
    // given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    checked(result)
}

fn checked(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Mapped at a time to tell where the pages of a file lie.
pub(crate) const WINDOW_BYTES: u64 = 64 << 20;

/// A file that is mapped and resident, so that the kernel can tell where its pages lie.
#[derive(Debug)]
pub(crate) struct Mapped {
    start: *mut c_void,
    bytes: usize,
}

impl Mapped {
    /// Maps `bytes` of `file` from `offset` on, which is a multiple of the page size.
    pub(crate) fn of(file: &impl AsFd, offset: u64, bytes: usize) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses an address, so no memory of this process is replaced.
        let start = unsafe { mmap(null_mut(), bytes, ProtFlags::READ, flags, file, offset) }?;
        Ok(Self { start, bytes })
    }

    /// The addresses of its pages. Nobody reads through them: the file may shrink.
    pub(crate) fn pages(&self, page_bytes: usize) -> Vec<usize> {
        (0..self.bytes).step_by(page_bytes).map(|offset| self.start.addr() + offset).collect()
    }
}

/// Maps a file part by part, and gives the addresses of each part's pages while it is mapped.
pub(crate) fn for_each_window(
    file: &File,
    window_bytes: u64,
    mut take: impl FnMut(&[usize]) -> io::Result<()>,
) -> io::Result<()> {
    let page = usize::try_from(page_bytes()).map_err(io::Error::other)?;
    let bytes = rustix::fs::fstat(file)?.st_size.cast_unsigned();
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(window_bytes.min(bytes - offset)).map_err(io::Error::other)?;
        let mapped = Mapped::of(file, offset, length)?;
        take(&mapped.pages(page))?;
        offset += window_bytes;
    }
    Ok(())
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range is that of `of`, and no reference into it exists.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}
