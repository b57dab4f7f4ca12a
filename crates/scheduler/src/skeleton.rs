//! The generated Rust side of the BPF object.
#![allow(
    unsafe_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    elided_lifetimes_in_paths,
    dead_code
)]

include!(concat!(env!("OUT_DIR"), "/main.skel.rs"));
