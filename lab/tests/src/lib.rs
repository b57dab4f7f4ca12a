//! Helpers of the tests in the lab: they run Nearside as a user would, and read the kernel's own
//! files to see the effects.
//!
//! These readers are deliberately not the product's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod command;
pub mod daemon;
mod domain;
mod files;
pub mod libvirt;
mod look;
mod memory;
pub mod numad;
mod starts;

pub use command::{
    Signal, await_that, domains, json, nearside, run, run_as_nobody, send, stderr, stdout,
    waits_for_lock, words,
};
pub use domain::{Domain, toucher};
pub use files::{MIB, huge_pages, read, status, write};
pub use look::{Look, available_bytes, by_node, reservations};
pub use memory::{
    Mapping, Own, charged, killed_for_memory, mapping, mapping_of_size, node_memory, own_memory,
    text_pages,
};
pub use starts::{
    Levelling, assert_refused, assert_the_kernel_covers, assert_the_kernel_covers_all_claims, end,
    go_on, parallel_starts,
};
