#![no_main]

#[path = "../src/qmp.rs"]
#[allow(unreachable_pub, reason = "a module of two programs")]
mod qmp;

libfuzzer_sys::fuzz_target!(|input: &[u8]| qmp::qmp(input));
