//! The credit scheduler on a real kernel. No test here depends on the speed of the emulated
//! machine: `lab/measure` measures time, on the modelled machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unsafe_code)]

mod attached;
mod cgroup;
mod decisions;
mod homes;
mod lifetime;
mod shapes;
mod shares;
