#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loader_core::fuzzing::array(bytes));
