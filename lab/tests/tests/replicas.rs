//! Copies of program text on a machine of four nodes: two CPUs and 768 MiB on each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "replicas/automatic.rs"]
mod automatic;
#[path = "replicas/coherence.rs"]
mod coherence;
#[path = "replicas/edges.rs"]
mod edges;
#[path = "replicas/helper.rs"]
mod helper;
#[path = "replicas/killing.rs"]
mod killing;
#[path = "replicas/locality.rs"]
mod locality;
#[path = "replicas/packages.rs"]
mod packages;
// Where the lab's own root has its mounts, and on its kernel.
#[path = "../../../crates/replicas/tests/racing.rs"]
mod racing;
#[path = "replicas/room.rs"]
mod room;
#[path = "replicas/running.rs"]
mod running;
#[path = "replicas/sizes.rs"]
mod sizes;
#[path = "replicas/stress.rs"]
mod stress;
