//! The control loop on machines in software, and what it must never do on any.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing unwrap here is a failing test")]

mod machine;
#[path = "../placement/machines.rs"]
mod machines;
mod properties;
mod scenarios;
