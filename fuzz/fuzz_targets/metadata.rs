#![no_main]

#[path = "../src/libvirt.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of two programs")]
mod libvirt;

libfuzzer_sys::fuzz_target!(|input: &[u8]| libvirt::metadata(input));
