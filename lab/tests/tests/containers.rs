//! Copies of program text in containers and on overlays, on a machine of four nodes with two CPUs
//! and 768 MiB each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "containers/foreign.rs"]
mod foreign;
#[path = "replicas/helper.rs"]
#[allow(dead_code, reason = "the guest `replicas` needs more of it")]
mod helper;
#[path = "containers/overlay.rs"]
mod overlay;
#[path = "containers/podman.rs"]
mod podman;
#[path = "containers/running.rs"]
mod running;
