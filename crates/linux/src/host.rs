//! This host as a machine: observes it, and changes it in transactions.
//!
//! [`Host::begin`] is the only way to a change. It takes the lock, rolls back a transaction that a
//! killed process left unfinished, and returns a [`Session`], which checks the needs of
//! transactions and applies each as a whole. Moving pages needs no session: see [`Batches`] for
//! the daemon's moves, and [`move_pages`](nearside_policy::Machine::move_pages) for those of `set`.

mod adoption;
mod batch;
mod bindings;
mod cell_bindings;
mod guests;
mod handle;
mod looks;
mod machine;
mod memory_policy;
mod moving;
mod pending;
mod records;
mod refusal;
mod reservations;
mod session;
mod walks;

pub use adoption::Adopted;
pub use batch::Batches;
pub(crate) use handle::allowed;
pub use handle::{Host, Paths, Waiting};
pub use memory_policy::policy_forbidden;
pub(crate) use memory_policy::take_policy;
pub use moving::OwnMove;
pub use records::{NewDomain, wants_fallback};
pub use refusal::Refusal;
pub use session::Session;
