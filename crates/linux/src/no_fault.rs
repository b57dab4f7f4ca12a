//! Outside tests no fault is injected. Tests of `nearside` have the feature `simulation`, and so
//! have the programs that cargo builds for them.

use rustix::io::Errno;

/// Stands before each write to the store and to cgroups.
#[inline(always)]
pub(crate) fn before_write() -> Result<(), Errno> {
    Ok(())
}
