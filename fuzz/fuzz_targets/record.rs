#![no_main]

#[path = "../src/linux.rs"]
#[allow(dead_code, unreachable_pub, reason = "targets of two programs")]
mod linux;

libfuzzer_sys::fuzz_target!(|input: &[u8]| linux::record(input));
