//! Messages between machines that share a sync: never a panic, and accepted messages are written back unchanged.
//!
//! Input: which message to begin with, then the bytes after its first ones.
//!
//! Inputs: at most 4000 bytes.

#![no_main]

use apus_fuzz::Input;
use apus_jobs::{WIRE_VERSION, reads_as_sent};
use libfuzzer_sys::fuzz_target;

/// The first bytes of messages (`extras/jobs/src/queue`).
const BEGINNINGS: [&[u8; 8]; 5] = [b"APUSJOBS", b"APUSANSW", b"APUSTOLD", b"APUSSPEC", b"APUSDONE"];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let choice = usize::from(input.u8());
    let bytes = match BEGINNINGS.get(choice % 6) {
        Some(magic) => [&magic[..], &WIRE_VERSION.to_le_bytes(), input.rest()].concat(),
        None => input.rest().to_vec(),
    };
    reads_as_sent(&bytes);
});
