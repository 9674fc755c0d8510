//! A planted fault: if fuzzing does not find it, fuzzing finds nothing.
//!
//! It is four comparisons deep, like the faults of parsers: by chance, finding it takes weeks; coverage and
//! recorded comparison operands find it in a moment.
//!
//! Inputs: at most 64 bytes.

#![no_main]

use apus_chain::Reader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut reader = Reader::new(data);
    let Ok(length) = reader.compact_size() else { return };
    let Ok(bytes) = reader.take(length.min(32)) else { return };
    if bytes.len() < 9 || bytes[0] != 0xc0 {
        return;
    }
    let mut inner = Reader::new(&bytes[1..]);
    if inner.u32() == Ok(0x0a05_0a05) && inner.u32() == Ok(0x0b1d_ca9e) {
        panic!("the canary was found");
    }
});
