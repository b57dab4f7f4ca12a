//! The Linux host as a machine: discover, observe, apply.
//!
//! [`Host`] explains the crate: it reads the machine and its domains into an observation, and applies the actions that
//! `nearside-policy` decides upon: cgroups ([`cgroup`], or [`systemd`] where that owns them), memory policies and
//! moving pages ([`sys`], [`migrate`]). What it knows of running domains is in the [`store`]. A daemon, which looks again and
//! again, does so by [`watch`].

pub mod busy;
pub mod cgroup;
mod confine;
pub mod counters;
mod error;
pub mod facts;
pub mod folder;
mod host;
pub mod huge;
pub mod launch;
pub mod memory;
pub mod migrate;
mod mountinfo;
mod read;
pub mod store;
pub mod sys;
pub mod systemd;
pub mod threads;
pub mod usage;
pub mod watch;

pub use error::Error;
pub use host::{Batches, Host, Paths, wants_fallback};
