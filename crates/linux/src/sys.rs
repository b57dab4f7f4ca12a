//! The system calls that no safe crate wraps: memory policies, moving pages, CPU affinity of any
//! size, the groups of a socket's peer, and executing a program with the inherited signal settings.
//!
//! All `unsafe` of this crate is here.
#![allow(unsafe_code)]

use nearside_policy::MemoryPolicy;
use nearside_topology::{CpuId, CpuSet, Id, IdSet, NodeId, NodeSet};
use std::{
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::Command,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

/// A memory policy's number (`include/uapi/linux/mempolicy.h`).
const fn mode(policy: MemoryPolicy) -> Option<libc::c_long> {
    match policy {
        MemoryPolicy::Preferred => Some(1),
        MemoryPolicy::Strict => Some(2),
        MemoryPolicy::Interleave => Some(3),
        MemoryPolicy::Local => Some(4),
        MemoryPolicy::PreferredMany => Some(5),
        MemoryPolicy::WeightedInterleave => Some(6),
        MemoryPolicy::Restrictive => None,
    }
}

/// `MPOL_MF_MOVE_ALL`: move pages that other processes map, too (needs `CAP_SYS_NICE`).
const MOVE_ALL: libc::c_int = 1 << 2;
/// `MPOL_MF_MOVE`: move pages that only this process maps.
const MOVE: libc::c_int = 1 << 1;

/// A bit map as the kernel takes it, and the number of bits to pass with it.
///
/// The kernel reads one bit less than the number it gets (`get_nodes` in `mm/mempolicy.c`), hence
/// the extra one.
fn mask<T: Id>(set: &IdSet<T>) -> (Vec<libc::c_ulong>, usize) {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let words = set.iter().next_back().map_or(1, |last| last.number() as usize / BITS + 1);
    let mut mask = vec![0; words];
    for id in set.iter() {
        mask[id.number() as usize / BITS] |= 1 << (id.number() as usize % BITS);
    }
    (mask, words * BITS + 1)
}

/// The set of such a bit map.
fn set(mask: &[libc::c_ulong]) -> CpuSet {
    let bits = libc::c_ulong::BITS;
    let cpus = (0..).zip(mask).flat_map(|(word, &of_word)| {
        (0..bits).filter(move |bit| of_word >> bit & 1 == 1).map(move |bit| word * bits + bit)
    });
    cpus.map(CpuId).collect()
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the calling thread a memory policy, which its children and what it executes inherit
/// (`set_mempolicy(2)`).
///
/// # Errors
/// `EINVAL` if the kernel does not know the policy or no node has memory that the thread may use;
/// `EPERM` if a seccomp filter refuses the call.
pub fn set_memory_policy(policy: MemoryPolicy, nodes: &NodeSet) -> io::Result<()> {
    let Some(mode) = mode(policy) else { return Ok(()) };
    let (mask, bits) = mask(nodes);
    // SAFETY: `mask` has room for `bits - 1` bits, which is what the kernel reads, and lives across
    // the call. Without nodes the kernel gets no mask at all, as MPOL_LOCAL requires.
    let result = unsafe {
        match nodes.is_empty() {
            true => libc::syscall(libc::SYS_set_mempolicy, mode, ptr::null::<libc::c_ulong>(), 0),
            false => libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits),
        }
    };
    check(result)
}

/// Whether a policy can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicySupport {
    /// The kernel accepts the policy.
    Known,
    /// The kernel does not know it.
    Unknown,
    /// A seccomp filter refuses the call before it reaches the kernel's code, as in most
    /// containers.
    Forbidden,
}

impl PolicySupport {
    /// The result of an attempt. The kernel itself never refuses a policy for lack of privilege.
    fn told_by(attempt: &io::Result<()>) -> Self {
        match attempt.as_ref().map_err(io::Error::raw_os_error) {
            Ok(()) => Self::Known,
            Err(Some(libc::EPERM | libc::EACCES)) => Self::Forbidden,
            Err(_) => Self::Unknown,
        }
    }
}

/// Whether a policy can be set here. A short-lived thread tries, because a policy belongs to a
/// thread.
pub fn memory_policy_support(policy: MemoryPolicy, nodes: &NodeSet) -> PolicySupport {
    let nodes = if policy == MemoryPolicy::Local { &NodeSet::new() } else { nodes };
    let attempt = std::thread::scope(|scope| {
        let trying =
            std::thread::Builder::new().spawn_scoped(scope, || set_memory_policy(policy, nodes));
        trying.ok().and_then(|thread| thread.join().ok())
    });
    // If no thread can be started, the later call will show.
    attempt.map_or(PolicySupport::Known, |attempt| PolicySupport::told_by(&attempt))
}

/// Allows a thread (0: the calling one) these CPUs only (`sched_setaffinity(2)`).
pub fn set_cpu_affinity(thread: i32, cpus: &CpuSet) -> io::Result<()> {
    let (mask, _) = mask(cpus);
    // SAFETY: the length in bytes is that of `mask`, which lives across the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            std::mem::size_of_val(mask.as_slice()),
            mask.as_ptr(),
        )
    };
    check(result)
}

/// The CPUs that a thread (0: the calling one) may run on, as far as they are online
/// (`sched_getaffinity(2)`).
pub fn cpu_affinity(thread: i32) -> io::Result<CpuSet> {
    let mut mask: Vec<libc::c_ulong> = vec![0; 16];
    loop {
        let bytes = std::mem::size_of_val(mask.as_slice());
        // SAFETY: the length in bytes is that of `mask`, which the kernel fills and which lives
        // across the call.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, bytes, mask.as_mut_ptr()) };
        match check(result) {
            // The mask may be too short for the kernel's CPUs; their number is bounded by this.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && mask.len() < 1 << 12 => {
                mask.resize(mask.len() * 2, 0);
            }
            read => return read.map(|()| set(&mask)),
        }
    }
}

/// The kernel's answer for one page: its node, or the error number of a failed query or move.
pub type PageStatus = Result<NodeId, i32>;

/// The error number of a page without an answer. The kernel never returns this one itself.
pub const NOT_SAID: i32 = libc::ECANCELED;

/// The nodes of the pages at `addresses` of a process. A missing page has `ENOENT`.
///
/// # Errors
/// `ESRCH` if the process has ended, `EPERM` without `CAP_SYS_PTRACE` over it.
pub fn page_nodes(process: i32, addresses: &[usize]) -> io::Result<Vec<PageStatus>> {
    pages(process, addresses, None, 0)
}

/// Moves the pages at `addresses` of a process, each to its node in `to`. With `all`, also pages
/// that other processes map.
///
/// The kernel stops at the first run with a page that does not move, and gives no status for that
/// run and the ones behind it: their pages have [`NOT_SAID`]. [`page_nodes`] gives their present
/// nodes.
///
/// # Errors
/// As [`page_nodes`]; `EACCES` if a node is not allowed in the process's cpuset, `ENOMEM` if a node
/// is full.
pub fn move_pages(
    process: i32,
    addresses: &[usize],
    to: &[NodeId],
    all: bool,
) -> io::Result<Vec<PageStatus>> {
    let flags = if all { MOVE_ALL } else { MOVE };
    let to: Vec<_> = to.iter().map(|node| node.0 as libc::c_int).collect();
    if to.len() != addresses.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    pages(process, addresses, Some(&to), flags)
}

fn pages(
    process: i32,
    addresses: &[usize],
    to: Option<&[libc::c_int]>,
    flags: libc::c_int,
) -> io::Result<Vec<PageStatus>> {
    let mut status: Vec<libc::c_int> = vec![-NOT_SAID; addresses.len()];
    let to = to.map_or(ptr::null(), <[_]>::as_ptr);
    // SAFETY: `addresses`, `to` (when not null, checked by the caller above) and `status` have the
    // same length, which is passed, and live across the call. The addresses are the other process's
    // and only the kernel follows them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            process,
            addresses.len(),
            addresses.as_ptr(),
            to,
            status.as_mut_ptr(),
            flags,
        )
    };
    check(result)?;
    Ok(status.into_iter().map(|s| if s < 0 { Err(-s) } else { Ok(NodeId(s as u32)) }).collect())
}

/// True if `SIGPIPE` was ignored when this process started, as in services of systemd.
static INHERITED_IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores `SIGPIPE` before `main`, so the inherited setting must be read earlier.
/// The loader calls the function in this section before any other code of the program.
#[used]
// SAFETY: the section holds addresses of functions of the C ABI, which the loader calls before
// `main`; this is one. It makes a system call and stores a flag, and needs neither Rust's runtime
// nor other initializers.
#[unsafe(link_section = ".init_array")]
static LOOK_AT_SIGPIPE: extern "C" fn() = look_at_sigpipe;

extern "C" fn look_at_sigpipe() {
    INHERITED_IGNORED_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// Whether this process ignores a signal.
pub fn is_ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing changes, and `now` has room for the present one; zeroes
    // are a valid one, too.
    let now = unsafe {
        libc::sigaction(signal, ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    now.sa_sigaction == libc::SIG_IGN
}

/// Replaces this process by a program, with the blocked and ignored signals that this process
/// inherited. The standard library alone would unblock all signals and let `SIGPIPE` end the
/// program. Returns only if that fails.
pub fn execute(command: &mut Command) -> io::Error {
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: without a new mask nothing changes, and `blocked` has room for the present one;
    // zeroes are a valid one.
    let blocked = unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), blocked.as_mut_ptr());
        blocked.assume_init()
    };
    let restore = move || {
        // SAFETY: both calls are async-signal-safe; the mask lives across the call.
        unsafe {
            if INHERITED_IGNORED_PIPE.load(Ordering::Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: `restore` runs last before the program is executed, and no other thread can interfere
    // with it.
    let error = unsafe { command.pre_exec(restore) }.exec();
    // SAFETY: restores the setting of Rust's runtime, so that a closed pipe does not end this
    // process.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    error
}

/// The supplementary groups of the process at the other end of a unix socket, as they were when it
/// connected (`SO_PEERGROUPS`, Linux 4.13).
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let mut bytes = std::mem::size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, the size of `groups`, and then sets
        // `bytes` to the number it wrote or needs. Both live across the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / std::mem::size_of::<libc::gid_t>();
        match check(result.into()) {
            // A process has 65,536 groups at most (`NGROUPS_MAX`).
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && count > groups.len() => {
                groups.resize(count, 0)
            }
            read => {
                groups.truncate(count);
                return read.map(|()| groups);
            }
        }
    }
}

/// Base page size in bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_reach_beyond_a_word_and_announce_a_bit_more() {
        assert_eq!(mask(&NodeSet::from([NodeId(0), NodeId(3)])), (vec![9], 65));
        assert_eq!(mask(&NodeSet::from([NodeId(64)])), (vec![0, 1], 129));
        for cpus in [CpuSet::new(), CpuSet::from([CpuId(0), CpuId(63), CpuId(64), CpuId(200)])] {
            assert_eq!(set(&mask(&cpus).0), cpus);
        }
    }

    #[test]
    fn ignored_signals_are_detected() {
        // Rust's runtime ignores the first signal; the second has its default.
        assert!(is_ignored(libc::SIGPIPE) && !is_ignored(libc::SIGURG));
    }

    #[test]
    fn peer_groups_are_those_of_the_process() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let told: std::collections::BTreeSet<u32> =
            peer_groups(std::os::fd::AsFd::as_fd(&near)).unwrap().into_iter().collect();
        let groups = rustix::process::getgroups().unwrap();
        assert_eq!(told, groups.iter().map(|group| group.as_raw()).collect());
        assert!(peer_groups(std::os::fd::AsFd::as_fd(&std::fs::File::open("/").unwrap())).is_err());
    }

    #[test]
    fn a_forbidden_policy_differs_from_an_unknown_one() {
        let told = |number: i32| PolicySupport::told_by(&Err(io::Error::from_raw_os_error(number)));
        assert_eq!(PolicySupport::told_by(&Ok(())), PolicySupport::Known);
        assert_eq!([libc::EPERM, libc::EACCES].map(told), [PolicySupport::Forbidden; 2]);
        assert_eq!([libc::EINVAL, libc::ENOSYS].map(told), [PolicySupport::Unknown; 2]);
    }

    #[test]
    fn a_page_of_this_process_lies_on_a_node_that_exists() {
        let page = vec![1_u8; 1 << 14];
        let address = page.as_ptr() as usize & !(page_bytes() as usize - 1);
        let status = page_nodes(0, &[address + page_bytes() as usize]).unwrap();
        let node = status[0].unwrap();
        assert!(
            std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists()
                || node.0 == 0
        );
    }
}
