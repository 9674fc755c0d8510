//! A script: the count of its signature operations equals the `bitcoin` crate's, and its short form expands to
//! the script.
//!
//! Inputs: at most 11000 bytes.

#![no_main]

use apus_chain::{compress_script, is_unspendable, legacy_sigops, witness_commitment};
use bitcoin::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let theirs = Script::from_bytes(data);
    assert_eq!(legacy_sigops(data) as usize, theirs.count_sigops_legacy());
    assert_eq!(is_unspendable(data), data.len() > 10_000 || theirs.is_op_return());
    let commitment = witness_commitment(data);
    assert_eq!(commitment.is_some(), data.len() >= 38 && data[..6] == *b"\x6a\x24\xaa\x21\xa9\xed");
    let short = compress_script(data).map(|short| short.as_bytes()[0]);
    match short {
        Some(0) => assert!(theirs.is_p2pkh()),
        Some(1) => assert!(theirs.is_p2sh()),
        Some(kind @ 2..=5) => {
            assert!(theirs.is_p2pk() && data[1] == if kind < 4 { kind } else { 4 })
        }
        Some(kind) => panic!("there is no kind {kind}"),
        None => assert!(!theirs.is_p2pkh() && !theirs.is_p2sh()),
    }
});
