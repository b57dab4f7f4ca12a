//! Replays the corpus of the fuzz targets, so that every run of the tests tries the inputs that
//! fuzzers found.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "a crate of its own for the fuzzer, a module here")]
mod targets;

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
fn acpi() {
    replay("acpi", targets::acpi);
}

#[test]
fn acpidump() {
    replay("acpidump", targets::acpidump);
}

#[test]
fn nodeset() {
    replay("nodeset", targets::nodeset);
}

#[test]
fn machine_file() {
    replay("machine_file", targets::machine_file);
}

#[test]
fn fake() {
    replay("fake", targets::fake);
}

#[test]
fn sysfs() {
    replay("sysfs", targets::sysfs::sysfs);
}
