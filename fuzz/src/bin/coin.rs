//! A stored coin: three readers agree, and the strict one accepts only what Core writes.
//!
//! Inputs: at most 11000 bytes.

#![no_main]

use apus_chain::{
    CoinRef, MAX_SCRIPT_SIZE, Reader, read_coin, read_coin_strict, skip_coin, write_coin,
};
use apus_testkit::chain::ModelCoin;
use apus_testkit::oracle::coin_bytes;
use bitcoin::{Amount, ScriptBuf, TxOut};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut reader = Reader::new(data);
    let lenient = read_coin(&mut reader);
    let length = reader.position();
    let skipped = skip_coin(&mut Reader::new(data)).map(<[u8]>::len);
    let mut reader = Reader::new(data);
    let strict = read_coin_strict(&mut reader);
    let strict_length = reader.position();

    if let Ok(coin) = &lenient {
        assert!(coin.script.len() <= MAX_SCRIPT_SIZE);
        if let Ok(skipped) = skipped {
            assert_eq!(skipped, length);
        }
        // Every accepted coin has one encoding, which reads back as the same coin.
        let bytes = written(coin.as_ref());
        let again = read_coin(&mut Reader::new(&bytes)).expect("we wrote it");
        assert_eq!(again.as_ref(), coin.as_ref());
    }
    if let Ok(coin) = &strict {
        assert_eq!(lenient.expect("the strict reader accepted it").as_ref(), coin.as_ref());
        assert_eq!((strict_length, skipped), (length, Ok(length)));
        assert_eq!(written(coin.as_ref()), &data[..length]);
        assert_eq!(oracle(coin.as_ref()), &data[..length]);
    }
});

fn written(coin: CoinRef<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_coin(&mut bytes, coin);
    bytes
}

fn oracle(coin: CoinRef<'_>) -> Vec<u8> {
    let CoinRef { height, coinbase, amount, script } = coin;
    let script_pubkey = ScriptBuf::from_bytes(script.to_vec());
    let output = TxOut { value: Amount::from_sat(amount), script_pubkey };
    coin_bytes(&ModelCoin { output, height, coinbase })
}
