#![no_main]

#[path = "../src/scenario.rs"]
#[allow(unreachable_pub, reason = "a module of two programs")]
mod scenario;

libfuzzer_sys::fuzz_target!(|input: &[u8]| scenario::scenario(input));
