//! Exchanges the files that a running process maps, without its cooperation.
//!
//! [`attach`] lets a process execute from a replica that is mounted over the path of an executable
//! or library; [`detach`] returns it to the original before the replicas collapse. Both stop all
//! threads once, for any number of files, and inject system calls into one of them: `mmap` with
//! `MAP_FIXED` replaces a segment at its address. The text is the same before and after, so the
//! process cannot tell.
//!
//! - Every page keeps its owner. Pages that the process has written (relocations, breakpoints)
//!   stay.
//! - Names in `/proc/PID/maps` stay, because the process opens the replica by the original's path.
//! - All files of a call are exchanged, or none. Before a segment is replaced, `mremap` with
//!   `MREMAP_DONTUNMAP` puts a second mapping of it aside; an undo moves that back.
//! - A process that is unsafe to change is refused before anything in it changes ([`Refusal`]).
//!
//! # Limits
//! - It changes no descriptors that are in flight over sockets, registered with io_uring, or in a
//!   descriptor table that one thread has for itself.
//! - A memory policy of a segment (`mbind`) is lost. It only concerned pages written later.
//! - Meanwhile no other thread of the caller may wait for any child (`waitpid(-1)`), or for this
//!   process: it would take the reports of the stopped threads.
//! - The caller's handler of `SIGALRM` is replaced.
//! - `madvise` and `mlock` count as they were shortly before the stop.
//! - If the tracer is killed during the stop, the thread that executes the calls is left with their
//!   registers. An error or a panic of the tracer restores them. `exchanger` is a process of its
//!   own for this reason.
//!
//! x86-64 only; elsewhere both refuse.

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "without registers there is no exchange")
)]

mod descriptors;
mod error;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod exchange;
mod maps;
mod pagemap;
mod plan;
mod process;
mod query;
mod refusal;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod registers;
mod report;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod stopped;

pub use descriptors::{Descriptor, fdinfo};
pub use error::RemapError;
pub(crate) use exchange::hold_and_exchange;
pub use maps::{Advice, MapsFile, PAGE_BYTES, Properties, Protection, Segment, maps, properties};
pub use pagemap::{Parts, parts};
pub use plan::{Keep, Kept};
pub use process::{Process, Views};
pub(crate) use query::segments_at;
pub use refusal::{Facts, Operation, Refusal, Sharer, refusal};
pub use report::{Exchange, Report};

/// Lets the process use the replica that each path shows in its mount namespace, for all text and
/// read-only data of the original that it has mapped.
///
/// A segment with private pages stays, and so do writable and shared ones; the report names them.
/// Descriptors stay as they are.
///
/// # Errors
/// [`RemapError`]; each variant says what has changed, in nearly all cases nothing.
pub fn attach(process: &Process, exchanges: &[Exchange]) -> Result<Report, RemapError> {
    exchange(process, None, exchanges, Operation::Attach)
}

/// Returns the process from replicas to the originals that the paths show again: every mapping, but
/// for pages that the process has written, and every read-only descriptor, at its number and
/// offset. The replicas are files whose device is the same in `/proc/PID/maps` and in `stat(2)`, as
/// those of a tmpfs are.
///
/// # Errors
/// [`RemapError`]; each variant says what has changed, in nearly all cases nothing.
pub fn detach(process: &Process, exchanges: &[Exchange]) -> Result<Report, RemapError> {
    exchange(process, None, exchanges, Operation::Detach)
}

/// [`attach`] or [`detach`], for a caller that may know what the process maps. Works in a thread of
/// its own, because the kernel releases what a thread traces when it ends.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn exchange(
    process: &Process,
    segments: Option<Vec<Segment>>,
    exchanges: &[Exchange],
    operation: Operation,
) -> Result<Report, RemapError> {
    std::thread::scope(|scope| {
        let tracer = std::thread::Builder::new().name("remap".into());
        let exchange = || exchange::exchange(process, segments, exchanges, operation);
        let tracer = tracer
            .spawn_scoped(scope, exchange)
            .map_err(|source| RemapError::NoTracer { source })?;
        tracer.join().unwrap_or_else(|_| {
            let source = std::io::Error::other("the tracer failed");
            Err(RemapError::NoTracer { source })
        })
    })
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod exchange {
    use super::{Exchange, Process, Refusal, RemapError, Report};

    pub(crate) fn hold_and_exchange(
        process: &Process,
        _: &[Exchange],
        _: impl FnOnce(),
    ) -> Result<Option<Report>, RemapError> {
        Err(process.refused(Refusal::UnsupportedArchitecture))
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn exchange(
    process: &Process,
    _: Option<Vec<Segment>>,
    _: &[Exchange],
    _: Operation,
) -> Result<Report, RemapError> {
    Err(process.refused(Refusal::UnsupportedArchitecture))
}
