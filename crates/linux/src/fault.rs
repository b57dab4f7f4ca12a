//! Faults of the system that tests inject at writes to the store and to cgroups.

use rustix::io::Errno;
use std::cell::RefCell;

/// The faults of a thread.
struct Faults {
    errno: Errno,
    /// Whether the write with this number fails. The first is 0.
    fails: Box<dyn Fn(usize) -> bool>,
    writes: usize,
    failed: usize,
}

thread_local! {
    static FAULTS: RefCell<Option<Faults>> = const { RefCell::new(None) };
}

/// Lets those of this thread's writes fail that `fails` chooses by their number, from 0.
pub fn inject(errno: Errno, fails: impl Fn(usize) -> bool + 'static) {
    FAULTS.set(Some(Faults { errno, fails: Box::new(fails), writes: 0, failed: 0 }));
}

/// Ends the faults. Returns the number of writes that have failed.
pub fn end() -> usize {
    FAULTS.take().map_or(0, |faults| faults.failed)
}

/// Stands before each write. Fails in place of it if that is due.
pub(crate) fn before_write() -> Result<(), Errno> {
    FAULTS.with_borrow_mut(|faults| {
        let Some(faults) = faults else { return Ok(()) };
        let fails = (faults.fails)(faults.writes);
        faults.writes += 1;
        faults.failed += usize::from(fails);
        if fails { Err(faults.errno) } else { Ok(()) }
    })
}
