//! Tests that send bytes over real sockets.

mod changing;
mod collectors;
mod connections;
mod description;
mod harness;
mod property;
mod reading;
