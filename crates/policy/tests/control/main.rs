//! The homes controller on machines in software: scenarios, and properties on random machines.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing unwrap here is a failing test")]

mod cells;
mod confinement;
mod dropped;
mod machine;
#[path = "../placement/machines.rs"]
mod machines;
mod properties;
mod refused;
mod scenarios;
mod transactions;
