//! The credit scheduler: a sched_ext scheduler in which domains *prefer* nodes and share CPU time
//! by weight.
//!
//! [`Scheduler::attach`] puts it in charge of all normal tasks of the host; dropping the
//! [`Scheduler`], or the end of the process in any way, gives them back to the stock scheduler.
//! [`Scheduler::set_domain`] sets the nodes that a cgroup prefers, [`Scheduler::set_thread`] those
//! of single threads in it. It reads the rest (weights,
//! caps, hard affinity) from the kernel.
//!
//! The decisions are in `nearside-credit`; the BPF program in `src/bpf` measures, iterates and
//! locks.

mod attach;
mod error;
mod exit;
mod machine;
mod skeleton;
mod statistics;
mod thread;
mod trial;

pub use attach::{Affinity, Options, Scheduler, in_charge, is_in_charge};
pub use error::Error;
pub use exit::Exit;
pub use machine::Unsuitable;
pub use statistics::{Counters, DomainUsage, Statistics};
pub use thread::Thread;
pub use trial::try_in_kernel;
