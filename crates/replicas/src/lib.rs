//! Copies of program text on the nodes that execute it (docs/adr/0019-replicas.md).
//!
//! Start from [`Replicator`]: the helper process that holds leases on files, copies them to a tmpfs
//! on each node, and binds the copies into mount namespaces. Its decisions are
//! [`Life`](nearside_policy::replication::Life)'s. Programs ask it through a [`Client`].
//!
//! - [`original`]: a file that may have copies, and what bars it. `lease`: the kernel's promise to
//!   ask before anyone writes to it. `layers`: what lies below a file of an overlay.
//! - [`store`]: the tmpfs of each node. `attributes`: what a copy takes over beside the content.
//!   `copier`: the thread that copies, with the memory reserved meanwhile. `truncations`: the
//!   thread that empties copies together with their original.
//! - [`namespace`]: a mount namespace with copies. `leftovers`: copies of a helper that was killed.
//! - [`remap`]: exchanges the files that a running process maps. [`exchanger`]: the process that
//!   does this for the helper.
//! - `package_managers`: programs whose start makes copies leave a namespace.
//! - [`protocol`]: the messages between helper and clients.

#[macro_use]
mod log;

mod attributes;
mod census;
mod client;
mod copier;
mod error;
pub mod exchanger;
mod file_id;
mod file_system;
mod layers;
mod lease;
mod leftovers;
pub mod mountinfo;
pub mod namespace;
pub mod original;
mod overlay;
mod package_managers;
mod path_text;
pub mod protocol;
mod remains;
pub mod remap;
mod replicator;
mod schedule;
mod signals;
pub mod store;
mod sys;
mod truncations;
mod users;
mod walk;
mod watch;
mod whole;

pub use client::{Client, private_mounts};
pub use error::Error;
pub use file_id::FileId;
pub use replicator::{Options, Replicator};
