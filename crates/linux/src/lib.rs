//! The Linux host as a machine: discover, observe, apply.
//!
//! [`Host`] explains the crate: it reads the machine and its domains into an observation, and applies the actions that
//! `nearside-policy` decides upon: cgroups ([`cgroup`], or [`systemd`] where that owns them), memory policies and
//! moving pages ([`sys`], [`migrate`]). What it knows of running domains is in the [`store`].

pub mod cgroup;
pub mod counters;
mod error;
pub mod facts;
mod host;
pub mod launch;
pub mod memory;
pub mod migrate;
pub mod store;
pub mod sys;
pub mod systemd;
pub mod threads;
pub mod usage;

pub use error::Error;
pub use host::{Host, Paths};
