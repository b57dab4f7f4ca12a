//! Faults of the system that tests inject at writes to the store and to cgroups.

use rustix::io::Errno;
use std::cell::Cell;

/// The faults of a thread.
#[derive(Debug, Clone, Copy)]
struct Faults {
    /// Writes until the first that fails.
    before: usize,
    /// Writes that fail from there on.
    failing: usize,
    errno: Errno,
    have_begun: bool,
}

thread_local! {
    static FAULTS: Cell<Option<Faults>> = const { Cell::new(None) };
}

/// Lets this thread's writes after the first `before` fail, `failing` of them.
pub(crate) fn inject(before: usize, failing: usize, errno: Errno) {
    FAULTS.set(Some(Faults { before, failing, errno, have_begun: false }));
}

/// Ends the faults. Returns whether a write has failed.
pub(crate) fn end() -> bool {
    FAULTS.take().is_some_and(|faults| faults.have_begun)
}

/// Stands before each write. Fails in place of it if that is due.
pub(crate) fn before_write() -> Result<(), Errno> {
    let Some(mut faults) = FAULTS.get() else { return Ok(()) };
    let is_due = faults.before == 0 && faults.failing > 0;
    match is_due {
        true => (faults.failing, faults.have_begun) = (faults.failing - 1, true),
        false => faults.before = faults.before.saturating_sub(1),
    }
    FAULTS.set(Some(faults));
    if is_due { Err(faults.errno) } else { Ok(()) }
}
