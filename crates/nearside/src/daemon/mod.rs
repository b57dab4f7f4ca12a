//! The parts of the daemon (docs/adr/0008-daemon.md).
//!
//! The loop and the API are two threads that meet in two places. The loop publishes what it saw and decided
//! ([`snapshot::Published`]), and whoever asks is answered from that; so no reader waits for the loop. Changes go the
//! other way, through a channel of [`snapshot::Event`]s that the loop empties.

pub mod access;
pub mod api;
pub mod attachment;
pub mod audit;
pub mod charge;
pub mod config;
pub(crate) mod keeper;
mod metrics;
pub mod notify;
pub mod remembered;
pub mod snapshot;
mod socket;
mod wishes;
