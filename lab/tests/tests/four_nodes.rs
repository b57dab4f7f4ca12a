//! What an operator of a machine of four nodes sees: two CPUs and half a gigabyte on each, neighbours in pairs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "four_nodes/claims.rs"]
mod claims;
#[path = "four_nodes/policies.rs"]
mod policies;
#[path = "four_nodes/running.rs"]
mod running;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tests share one machine's memory, so one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}
