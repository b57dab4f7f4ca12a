#![no_main]

#[path = "../src/api.rs"]
#[allow(unreachable_pub, reason = "a module of two programs")]
mod api;

libfuzzer_sys::fuzz_target!(|input: &[u8]| api::api(input));
