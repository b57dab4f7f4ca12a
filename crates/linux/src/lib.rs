//! The Linux host as a machine: discover, observe, apply.
//!
//! Start from [`Host`]. It reads the machine and its domains into an observation, and applies the
//! transactions that `nearside-policy` decides upon, under the lock of a [`Session`]: cgroups
//! through their owners, memory policies ([`sys`]), and records ([`store`]). Pages move outside the
//! lock ([`migrate`]). A daemon samples the host once an interval with a
//! [`Watcher`](watch::Watcher).

mod actuator;
pub mod advise;
pub mod busy;
pub mod cgroup;
mod confine;
pub mod counters;
mod disks;
mod error;
pub mod escape;
pub mod facts;
#[cfg(any(test, feature = "simulation"))]
mod fault;
#[cfg(not(any(test, feature = "simulation")))]
#[path = "no_fault.rs"]
mod fault;
pub mod folder;
pub mod guest;
mod host;
pub mod huge;
mod incoming;
pub mod launch;
mod lock_file;
#[cfg(test)]
#[path = "../tests/common/made.rs"]
mod made;
mod mappings;
pub mod memory;
pub mod migrate;
mod mountinfo;
mod newcomer;
pub mod oom;
mod read;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
pub mod store;
pub mod sys;
pub mod systemd;
pub mod text;
pub mod threads;
mod unmovable;
pub mod usage;
pub mod vcpus;
mod vm;
pub mod watch;

pub use disks::resolve_disks;
pub use error::{Error, StateFile};
pub use host::{
    Adopted, Batches, Host, NewDomain, OwnMove, Paths, Refusal, Session, Waiting, wants_fallback,
};
pub use incoming::reserve_incoming;
pub use lock_file::LockFile;
pub use unmovable::Unmovable;
