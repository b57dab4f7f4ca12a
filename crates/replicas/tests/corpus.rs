//! Replays the corpus of the fuzz targets, so that every test run repeats the inputs that a fuzzer
//! found.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../../fuzz/src/replicas.rs"]
#[allow(unreachable_pub, reason = "a crate of its own for the fuzzer, a module here")]
mod targets;

use std::{fs, path::Path};

#[test]
fn proc_maps() {
    replay("proc_maps", targets::proc_maps);
}

#[test]
fn mountinfo() {
    replay("mountinfo", targets::mountinfo);
}

#[test]
fn replicator() {
    replay("replicator", targets::replicator);
}

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&fs::read(path).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", corpus.display());
}
