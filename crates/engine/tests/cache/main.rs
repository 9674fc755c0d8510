//! The coins cache: its answers about coins, and what reaches the store, and when.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod flushes;
mod layers;
mod memory;
mod model;
mod store;
mod threads;

use apus_chain::{BlockHash, CoinRef, KnownBlock, OutPoint, Txid};
use apus_engine::utxo::CoinBytes;

/// Returns an outpoint for two numbers; equal first numbers share a txid, and txids are spread
/// evenly over shards.
fn outpoint(tx: u32, vout: u32) -> OutPoint {
    let mut txid = [0; 32];
    txid[..4].copy_from_slice(&tx.wrapping_mul(0x9e37_79b9).to_be_bytes());
    txid[28..].copy_from_slice(&tx.to_be_bytes());
    OutPoint { txid: Txid(txid), vout }
}

/// Returns a coin for a number; some coins have scripts that need an allocation.
fn coin(number: u32) -> CoinBytes {
    let script = vec![0x51; if number.is_multiple_of(5) { 80 } else { 22 }];
    let amount = u64::from(number);
    CoinBytes::new(CoinRef { height: number % 1000, coinbase: false, amount, script: &script })
}

fn block(height: u32) -> KnownBlock {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&height.to_le_bytes());
    KnownBlock { height, hash: BlockHash(hash) }
}
