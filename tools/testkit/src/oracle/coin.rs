//! A coin's bytes, as in the chainstate and in snapshots (Core `coins.h`, `compressor.cpp`).

use crate::chain::ModelCoin;
use bitcoin::Script;
use bitcoin::secp256k1::PublicKey;

/// Encodes Core's VARINT (`serialize.h`): base 128, most significant digit first; all digits except the last
/// have their top bit set and count one more than their value, so that every number has one form.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut digits = vec![(number % 128) as u8];
    while number >= 128 {
        number = number / 128 - 1;
        digits.push((number % 128) as u8 | 0x80);
    }
    digits.reverse();
    digits
}

/// Computes Core's short form of an amount (`compressor.cpp`): decimal zeros become an exponent.
pub fn compress_amount(satoshi: u64) -> u64 {
    if satoshi == 0 {
        return 0;
    }
    let (mut number, mut exponent) = (satoshi, 0);
    while number % 10 == 0 && exponent < 9 {
        number /= 10;
        exponent += 1;
    }
    match exponent {
        9 => 1 + (number - 1) * 10 + 9,
        _ => 1 + ((number / 10) * 9 + number % 10 - 1) * 10 + exponent,
    }
}

/// Encodes a script: in short form if it has one of six forms, otherwise after its length.
fn compressed_script(script: &Script) -> Vec<u8> {
    match script.as_bytes() {
        [0x76, 0xa9, 20, hash @ .., 0x88, 0xac] if hash.len() == 20 => [&[0], hash].concat(),
        [0xa9, 20, hash @ .., 0x87] if hash.len() == 20 => [&[1], hash].concat(),
        [33, key @ .., 0xac] if key.len() == 33 && (key[0] == 2 || key[0] == 3) => key.to_vec(),
        [65, key @ .., 0xac] if key.len() == 65 && key[0] == 4 && is_point(key) => {
            [&[4 + (key[64] & 1)], &key[1..33]].concat()
        }
        other => [&varint(other.len() as u64 + 6)[..], other].concat(),
    }
}

fn is_point(key: &[u8]) -> bool {
    PublicKey::from_slice(key).is_ok()
}

/// Encodes height and coinbase flag, amount, script.
pub fn coin_bytes(coin: &ModelCoin) -> Vec<u8> {
    [
        varint(u64::from(coin.height) * 2 + u64::from(coin.coinbase)),
        varint(compress_amount(coin.output.value.to_sat())),
        compressed_script(&coin.output.script_pubkey),
    ]
    .concat()
}
