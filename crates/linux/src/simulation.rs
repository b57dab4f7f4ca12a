//! Refused writes and started domains of a simulated host, for tests.

use crate::{Host, error::Error, store::Record};

pub use crate::fault::{end, inject};

/// Records a domain as `nearside run` does once its cgroup is made, under the lock. The caller
/// checks that its claim fits.
///
/// # Errors
/// If another process holds the lock, or the record cannot be written.
pub fn start(host: &mut Host, record: &Record) -> Result<(), Error> {
    drop(host.begin()?);
    host.store().lock()?.put(record)
}
