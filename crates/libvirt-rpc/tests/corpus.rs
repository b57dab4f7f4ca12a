//! Replays the corpus of the fuzz target, so that every test run repeats the inputs that a fuzzer
//! found.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../../fuzz/src/libvirt_rpc.rs"]
#[allow(unreachable_pub, reason = "a crate of its own for the fuzzer, a module here")]
mod targets;

use std::{fs, path::Path};

#[test]
fn libvirt_rpc() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/libvirt_rpc");
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        targets::libvirt_rpc(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", corpus.display());
}
