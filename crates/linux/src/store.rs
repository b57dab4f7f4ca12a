//! The records of running domains and of reserved memory, on disk, for parallel starts and later
//! commands.
//!
//! Each subject has one file below `/run/nearside/domains`, which is replaced as a whole. A record
//! counts while its subject's lifetime lasts; a domain's lasts while its cgroup lives. So a domain
//! keeps its claim after the process that started it has ended, and a claim never outlives its
//! domain. The next process that holds the lock removes the records of dead subjects.

mod arguments;
mod format;
mod journal;
mod known;
mod lock;
mod names;
mod process;
mod record;
mod records;
mod unreadable;

pub use journal::Journal;
pub use known::Known;
pub(crate) use lock::Wait;
pub use lock::{Holder, LockWait};
pub(crate) use process::Process;
pub use record::{Change, CpuBinding, Lifetime, Mover, Part, Parts, Record, Reservation, Subject};
pub use records::{Locked, Store, Subjects};
pub use unreadable::{Blocks, Unreadable};
