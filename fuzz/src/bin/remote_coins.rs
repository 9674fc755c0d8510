//! Answers of servers with a store of coins, and the store's record, chunks of a flush and coin names in them.
//! Never a panic, and accepted bytes are written back unchanged.
//!
//! Input: which of them, and whether its digest is corrected; then the bytes.
//!
//! Inputs: at most 4096 bytes.

#![no_main]

use apus_coins::stored::{answers, chunk, field, record, sealed};
use apus_engine::utxo::CoinBytes;
use apus_fuzz::Input;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let kind = input.u8();
    if kind & 8 != 0 {
        let bytes = input.rest();
        assert!(answers(bytes) <= bytes.len());
        return;
    }
    if kind & 3 == 2 {
        let (bits, bucket) = (input.u8(), input.u16());
        let bytes = input.rest();
        if let Some(again) = field(bits, bucket, bytes) {
            assert_eq!(again, bytes);
        }
        return;
    }
    let bytes = match kind & 4 {
        0 => input.rest().to_vec(),
        _ => sealed(input.rest()),
    };
    let again = match kind & 3 {
        0 => record(&bytes),
        1 => chunk(&bytes),
        _ => CoinBytes::read(&bytes)
            .ok()
            .map(|coin| CoinBytes::new(coin.coin().as_ref()))
            .map(|coin| coin.as_bytes().to_vec()),
    };
    if let Some(again) = again {
        assert_eq!(again, bytes);
    }
});
