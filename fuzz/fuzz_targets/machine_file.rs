#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nearside_fuzz::machine_file(input));
