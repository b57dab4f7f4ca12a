//! Leases: the kernel asks before anyone writes to a file.

use crate::{original::Original, sys};
use nearside_policy::replication::Bar;
use rustix::io::Errno;
use std::{fs::File, io, os::fd::AsFd};

/// The answer to a request for a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Held until it is released, or the process ends.
    Granted,
    /// Someone has the file open for writing.
    Writer,
    /// Never.
    Barred(Bar),
}

/// Asks for read leases on the file and on those below it.
pub(crate) fn take(original: &Original) -> Answer {
    let taken = files(original).try_for_each(|file| sys::take_read_lease(file.as_fd()));
    let Err(error) = taken else { return Answer::Granted };
    release(original);
    refused(original, &error)
}

fn refused(original: &Original, error: &io::Error) -> Answer {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => Answer::Writer,
        Some(Errno::ACCESS | Errno::PERM) => Answer::Barred(Bar::NotPermitted),
        _ => {
            Answer::Barred(Bar::NoLease { name: original.file_system(), error: error.to_string() })
        }
    }
}

/// Gives the leases back, so that a waiting writer goes on. False if one was held no more: the
/// kernel takes it from a holder that lets a writer wait for longer than `fs.lease-break-time`.
pub(crate) fn release(original: &Original) -> bool {
    // It fails only if there is none.
    let released = files(original).map(|file| sys::release_lease(file.as_fd()).is_ok());
    released.fold(true, |all, it| all & it)
}

/// Whether nobody waits for the end of a lease.
pub(crate) fn is_whole(original: &Original) -> bool {
    files(original).all(|file| sys::lease_is_whole(file.as_fd()))
}

fn files(original: &Original) -> impl Iterator<Item = &File> {
    std::iter::once(&*original.file).chain(&original.layers)
}
