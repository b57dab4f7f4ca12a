#![no_main]

#[path = "../src/replicas.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of several programs")]
mod replicas;

libfuzzer_sys::fuzz_target!(|input: &[u8]| replicas::replicator(input));
