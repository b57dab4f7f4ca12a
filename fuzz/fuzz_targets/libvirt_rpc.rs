#![no_main]

#[path = "../src/libvirt_rpc.rs"]
#[allow(unreachable_pub, reason = "a module of two programs")]
mod libvirt_rpc;

libfuzzer_sys::fuzz_target!(|input: &[u8]| libvirt_rpc::libvirt_rpc(input));
