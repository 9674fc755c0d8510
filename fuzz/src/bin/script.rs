//! A script: deferred signature checks do not change its verdict. The tests of the engine include the same code.
//!
//! Inputs: at most 200 bytes.

#![no_main]

#[path = "../../../crates/engine/tests/scripts/bytes.rs"]
mod bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bytes::passes(data);
});
