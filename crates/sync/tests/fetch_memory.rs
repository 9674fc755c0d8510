//! Tests the memory for a block's coins with a full block of only inputs, which spend coins with the longest
//! scripts.
//!
//! Its coins take a quarter of a gigabyte. If no script is run and no undo data is kept, they pass through a
//! few megabytes, and the sum of the fetched coins is the same as without the bound. Running its scripts makes
//! no copy of them.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod heavy;

use apus_chain::{BlockHash, CoinRef, CoinSum, KnownBlock, Network, OutPoint, Params};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{CoinBytes, CoinsStore, Flush, StoreError};
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use heavy::{KEY, MIB, block, coin, connect, most_bytes};
use std::sync::Arc;

/// A store that returns a coin with the longest script for every outpoint, without holding any.
struct Everything {
    at_once: usize,
}

impl CoinsStore for Everything {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        Ok(None)
    }

    fn get(&self, _: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(Some(coin()))
    }

    fn at_once(&self) -> usize {
        self.at_once
    }

    fn write(&self, _: &Flush<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn undo(&self, _: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn for_each(&self, _: &mut EachCoin<'_>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A single test, because others would use memory at the same time.
#[test]
fn long_scripts_do_not_increase_the_memory_for_a_blocks_coins() {
    let params = Params::of(Network::Regtest).clone();
    let block = block();
    let raw = serialize(&block);
    assert!(block.weight().to_wu() > 3_900_000, "{}", block.weight());
    let mut sum = CoinSum::default();
    for txin in &block.txdata[1].input {
        let txid = apus_chain::Txid(txin.previous_output.txid.to_byte_array());
        sum.sub(KEY.coin(&OutPoint { txid, vout: 0 }, coin().as_bytes()));
    }
    for (tx, height) in [(&block.txdata[0], 1), (&block.txdata[1], 1)] {
        let txid = apus_chain::Txid(tx.compute_txid().to_byte_array());
        for (vout, output) in tx.output.iter().enumerate() {
            if output.script_pubkey.is_op_return() {
                continue;
            }
            let coin = CoinBytes::new(CoinRef {
                height,
                coinbase: tx.is_coinbase(),
                amount: output.value.to_sat(),
                script: output.script_pubkey.as_bytes(),
            });
            sum.add(KEY.coin(&OutPoint { txid, vout: vout as u32 }, coin.as_bytes()));
        }
    }
    let before = most_bytes().unwrap_or(0);
    // Fetches coins one by one, and in batches as for a remote store.
    for at_once in [1, 8 * 170] {
        let store = Arc::new(Everything { at_once });
        assert_eq!(connect(&params, store, &raw, 2, None).1, sum);
    }
    #[cfg(feature = "kernel")]
    run_scripts(&block.txdata[1]);
    let most = most_bytes().unwrap_or(0) - before;
    // Without the bound, this would be more than all coins, 240 million bytes. It varies by some ten million,
    // because threads run ahead of each other.
    assert!(most < 128 * MIB, "{most} bytes more than before");
}

/// Runs some of a transaction's scripts, whose coins are one coin in memory. A copy for each input would take
/// as much as all of them.
#[cfg(feature = "kernel")]
fn run_scripts(tx: &bitcoin::Transaction) {
    // The longest script that still succeeds: it pushes bytes and drops them.
    let dropped = [&[0x4d, 8, 2][..], &[7; 520], &[0x75]].concat();
    let script = [dropped.repeat(19), vec![0x51]].concat();
    assert!(script.len() > 9_900);
    let coin = CoinBytes::new(CoinRef { height: 1, coinbase: false, amount: 1, script: &script });
    let spent = vec![coin; tx.input.len()];
    let prepared = apus_engine::script::interpreter().unwrap().prepare(&serialize(tx), &spent);
    let prepared = prepared.unwrap();
    for input in [0, 1, 23_999] {
        prepared.verify(input, 0).unwrap();
    }
    assert!(prepared.verify(24_000, 0).is_err());
}
