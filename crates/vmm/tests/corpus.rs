//! Replays the corpora of the fuzz targets, so that every test run repeats the inputs that a fuzzer
//! found.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../../fuzz/src/qmp.rs"]
#[allow(unreachable_pub, reason = "a crate of its own for the fuzzer, a module here")]
mod qmp;
#[path = "../../../fuzz/src/vmm.rs"]
#[allow(unreachable_pub, reason = "a crate of its own for the fuzzer, a module here")]
mod vmm;

use std::{fs, path::Path};

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

#[test]
fn command_lines() {
    replay("vmm", vmm::vmm);
}

#[test]
fn answers_of_monitors() {
    replay("qmp", qmp::qmp);
}
