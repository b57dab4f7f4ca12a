//! The system calls that no safe crate wraps: `ptrace` requests with real-time signals and signal
//! masks, `kcmp`, and queries of segments.

use rustix::ioctl::{Updater, ioctl, opcode};
use std::{io, os::fd::AsFd};

/// `KCMP_FILE` and `KCMP_VM` (`include/uapi/linux/kcmp.h`).
const KCMP_FILE: libc::c_long = 0;
const KCMP_VM: libc::c_long = 1;

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// True if two processes have one address space (`kcmp(2)`).
///
/// # Errors
/// `ENOSYS` if the kernel lacks the call, `EPERM` if one of them may not be traced, `ESRCH` if one
/// has ended.
pub(crate) fn share_memory(one: i32, other: i32) -> io::Result<bool> {
    // SAFETY: the call takes numbers only and writes no memory of the caller.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0_usize, 0_usize) };
    check(order).map(|()| order == 0)
}

/// True if two descriptors of a process are duplicates, so that they share an offset (`kcmp(2)`).
///
/// # Errors
/// As [`share_memory`]; `EBADF` if one of the descriptors is closed.
pub(crate) fn same_open_file(process: i32, one: u32, other: u32) -> io::Result<bool> {
    let (one, other) = (one as usize, other as usize);
    // SAFETY: the call takes numbers only and writes no memory of the caller.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, process, process, KCMP_FILE, one, other) };
    check(order).map(|()| order == 0)
}

/// `struct procmap_query` (`include/uapi/linux/fs.h`).
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct SegmentQuery {
    bytes: u64,
    flags: u64,
    address: u64,
    pub start: u64,
    pub end: u64,
    /// `PROCMAP_QUERY_VMA_READABLE` and the flags after it.
    pub protection: u64,
    page_bytes: u64,
    pub offset_bytes: u64,
    pub inode: u64,
    pub major: u32,
    pub minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name_address: u64,
    build_id_address: u64,
}

/// `PROCMAP_QUERY`
const QUERY_SEGMENT: rustix::ioctl::Opcode = opcode::read_write::<SegmentQuery>(b'f', 17);

/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`
const OR_THE_NEXT: u64 = 0x10;

/// The segment at an address or the next one behind it, from an open `/proc/PID/maps`. Its name
/// goes to the start of `name` if that has room. Returns the segment and the length of its name.
///
/// # Errors
/// `ENOENT` if there is none, `ENOTTY` on kernels before 6.11, `ESRCH` if the process has no
/// memory, `ENAMETOOLONG` if `name` is too short.
pub(crate) fn segment_from(
    maps: &impl AsFd,
    address: u64,
    name: &mut [u8],
) -> rustix::io::Result<(SegmentQuery, usize)> {
    let mut query = SegmentQuery {
        bytes: size_of::<SegmentQuery>() as u64,
        flags: OR_THE_NEXT,
        address,
        ..SegmentQuery::default()
    };
    if !name.is_empty() {
        query.name_bytes = u32::try_from(name.len()).unwrap_or(u32::MAX);
        query.name_address = name.as_mut_ptr().expose_provenance() as u64;
    }
    // SAFETY: the number is that of a request with this structure, whose size it tells the kernel.
    // The kernel writes at most `name_bytes` bytes to `name`, whose address is exposed and which is
    // borrowed meanwhile.
    unsafe { ioctl(maps, Updater::<QUERY_SEGMENT, SegmentQuery>::new(&mut query)) }?;
    // It counts the zero at the end.
    let name_bytes = query.name_bytes.saturating_sub(1) as usize;
    Ok((query, name_bytes))
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use tracing::*;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tracing {
    use super::check;
    use std::{io, mem::MaybeUninit};

    /// `PTRACE_GETSIGMASK` and the requests after it (`include/uapi/linux/ptrace.h`).
    const GET_SIGNAL_MASK: libc::c_uint = 0x420a;
    const SET_SIGNAL_MASK: libc::c_uint = 0x420b;
    const GET_RSEQ: libc::c_uint = 0x420f;
    const GET_SYSCALL_DISPATCH: libc::c_uint = 0x4211;

    /// How a stopped thread goes on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[repr(u32)]
    pub(crate) enum Resume {
        /// It runs on.
        Run = libc::PTRACE_CONT,
        /// It runs to the next entry to a system call, or the end of one.
        ToSyscall = libc::PTRACE_SYSCALL,
    }

    /// Lets a stopped thread of this tracer go on. Delivers `signal` unless it is 0; `nix` cannot
    /// name real-time signals.
    ///
    /// # Errors
    /// `ESRCH` if the thread has ended or is not stopped.
    pub(crate) fn resume(thread: i32, how: Resume, signal: i32) -> io::Result<()> {
        // SAFETY: neither request reads or writes memory of the caller; the kernel checks that the
        // thread is a stopped tracee of the caller.
        check(unsafe { libc::ptrace(how as libc::c_uint, thread, 0_usize, signal as usize) })
    }

    /// The signals that a stopped thread of this tracer blocks.
    ///
    /// # Errors
    /// As [`resume`].
    pub(crate) fn signal_mask(thread: i32) -> io::Result<u64> {
        let mut mask = 0_u64;
        // SAFETY: the kernel writes the 8 bytes that the third argument names, and `mask` has them.
        let done =
            unsafe { libc::ptrace(GET_SIGNAL_MASK, thread, size_of::<u64>(), &raw mut mask) };
        check(done).map(|()| mask)
    }

    /// Sets the signals that a stopped thread of this tracer blocks.
    ///
    /// # Errors
    /// As [`resume`].
    pub(crate) fn set_signal_mask(thread: i32, mask: u64) -> io::Result<()> {
        // SAFETY: the kernel reads the 8 bytes that the third argument names, and `mask` has them.
        check(unsafe { libc::ptrace(SET_SIGNAL_MASK, thread, size_of::<u64>(), &raw const mask) })
    }

    /// `struct ptrace_rseq_configuration`.
    #[repr(C)]
    struct RseqConfiguration {
        address: u64,
        bytes: u32,
        signature: u32,
        flags: u32,
        padding: u32,
    }

    /// The address of a thread's `struct rseq`; `None` if it has registered none, or on kernels
    /// before 5.13.
    ///
    /// # Errors
    /// As [`resume`].
    pub(crate) fn rseq_address(thread: i32) -> io::Result<Option<u64>> {
        let mut configuration = MaybeUninit::<RseqConfiguration>::zeroed();
        // SAFETY: the kernel writes at most the number of bytes that the third argument names.
        let done = unsafe {
            libc::ptrace(
                GET_RSEQ,
                thread,
                size_of::<RseqConfiguration>(),
                configuration.as_mut_ptr(),
            )
        };
        if done == -1 {
            let error = io::Error::last_os_error();
            return if is_unknown(&error) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the memory was zeroed, and any bytes are valid for these integers.
        let address = unsafe { configuration.assume_init() }.address;
        Ok((address != 0).then_some(address))
    }

    /// `struct ptrace_sud_config`.
    #[repr(C)]
    struct DispatchConfiguration {
        mode: u64,
        selector: u64,
        offset: u64,
        bytes: u64,
    }

    /// True if a thread has its system calls sent to itself as signals, as Wine does
    /// (`PR_SET_SYSCALL_USER_DISPATCH`). Kernels before 6.4 do not tell.
    ///
    /// # Errors
    /// As [`resume`].
    pub(crate) fn dispatches_syscalls(thread: i32) -> io::Result<bool> {
        let mut configuration = MaybeUninit::<DispatchConfiguration>::zeroed();
        // SAFETY: the kernel writes the number of bytes that the third argument names.
        let done = unsafe {
            libc::ptrace(
                GET_SYSCALL_DISPATCH,
                thread,
                size_of::<DispatchConfiguration>(),
                configuration.as_mut_ptr(),
            )
        };
        if done == -1 {
            let error = io::Error::last_os_error();
            return if is_unknown(&error) { Ok(false) } else { Err(error) };
        }
        // SAFETY: the memory was zeroed, and any bytes are valid for these integers.
        Ok(unsafe { configuration.assume_init() }.mode != 0)
    }

    /// The answer to a request that the kernel does not know.
    fn is_unknown(error: &io::Error) -> bool {
        matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL))
    }
}
