//! The records of running domains and of reserved memory, on disk, where parallel starts and later
//! commands find them.
//!
//! Each subject has one file below `/run/nearside/domains`, which is replaced as a whole. A record
//! counts while its lifetime lasts: that of a domain while its cgroup lives. So a domain keeps its
//! claim when the process that started it is gone, and a claim never outlives its domain. The next
//! process that holds the lock removes the records of dead subjects.

mod format;
mod journal;
mod known;
mod lock;
mod process;
mod record;
mod records;

pub use journal::Journal;
pub use known::Known;
pub use lock::{Holder, LockWait, Wait};
pub use record::{Change, CpuBinding, Lifetime, Part, Parts, Record, Reservation, Subject};
pub use records::{Locked, Store};
