#![no_main]

#[path = "../src/vmm.rs"]
#[allow(unreachable_pub, reason = "a module of two programs")]
mod vmm;

libfuzzer_sys::fuzz_target!(|input: &[u8]| vmm::vmm(input));
