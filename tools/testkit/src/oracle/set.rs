//! Whole sets: the snapshot file and the two hashes that nodes compute for a set.

use super::coin::{coin_bytes, varint};
use crate::chain::{ModelCoin, UtxoSet};
use bitcoin::consensus::encode::{VarInt, serialize};
use bitcoin::hashes::Hash;
use bitcoin::{BlockHash, OutPoint, Txid};
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};
use num_bigint::BigUint;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Makes the file that `dumptxoutset` writes (version 2) for `coins` after the block `base`.
pub fn snapshot(magic: [u8; 4], base: BlockHash, coins: &UtxoSet) -> Vec<u8> {
    let mut file = b"utxo\xff\x02\x00".to_vec();
    file.extend(magic);
    file.extend(base.to_byte_array());
    file.extend((coins.len() as u64).to_le_bytes());
    let mut by_txid: BTreeMap<[u8; 32], Vec<(u32, &ModelCoin)>> = BTreeMap::new();
    for (outpoint, coin) in coins {
        by_txid.entry(outpoint.txid.to_byte_array()).or_default().push((outpoint.vout, coin));
    }
    for (txid, mut outputs) in by_txid {
        // The order of the node's database: by the bytes of the key, not by the number.
        outputs.sort_by_key(|(vout, _)| varint(u64::from(*vout)));
        file.extend(txid);
        file.extend(serialize(&VarInt(outputs.len() as u64)));
        for (vout, coin) in outputs {
            file.extend(serialize(&VarInt(u64::from(vout))));
            file.extend(coin_bytes(coin));
        }
    }
    file
}

/// Encodes a coin for both hashes (Core `kernel/coinstats.cpp`, `TxOutSer`).
fn hashed_form(outpoint: &OutPoint, coin: &ModelCoin) -> Vec<u8> {
    let code = coin.height * 2 + u32::from(coin.coinbase);
    [
        outpoint.txid.to_byte_array().to_vec(),
        outpoint.vout.to_le_bytes().to_vec(),
        code.to_le_bytes().to_vec(),
        serialize(&coin.output),
    ]
    .concat()
}

/// Computes `gettxoutsetinfo hash_serialized_3`, in display order.
pub fn hash_serialized_3(coins: &UtxoSet) -> String {
    let mut hasher = Sha256::new();
    let mut sorted: Vec<_> = coins.iter().collect();
    sorted.sort_by_key(|(outpoint, _)| (txid_bytes(outpoint.txid), outpoint.vout));
    for (outpoint, coin) in sorted {
        hasher.update(hashed_form(outpoint, coin));
    }
    display(&Sha256::digest(hasher.finalize()))
}

fn txid_bytes(txid: Txid) -> [u8; 32] {
    txid.to_byte_array()
}

/// Computes `gettxoutsetinfo muhash`, in display order: each coin becomes a number of 3,072 bits, and the set
/// is their product modulo a prime (Core `crypto/muhash.h`).
pub fn muhash(coins: &UtxoSet) -> String {
    let prime = (BigUint::from(1u32) << 3072u32) - BigUint::from(1_103_717u32);
    let mut product = BigUint::from(1u32);
    for (outpoint, coin) in coins {
        let key: [u8; 32] = Sha256::digest(hashed_form(outpoint, coin)).into();
        let mut element = [0u8; 384];
        ChaCha20::new(&key.into(), &[0u8; 12].into()).apply_keystream(&mut element);
        product = product * BigUint::from_bytes_le(&element) % &prime;
    }
    let mut bytes = product.to_bytes_le();
    bytes.resize(384, 0);
    display(&Sha256::digest(bytes))
}

fn display(hash: &[u8]) -> String {
    hash.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}
