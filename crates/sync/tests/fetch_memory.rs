//! The memory of a block's coins: a full block of nothing but inputs, with the longest scripts behind them.
//!
//! Its coins are a quarter of a gigabyte. Where no script is run and no undo data kept, they pass
//! through a few megabytes, and the sum of what was taken is that of the whole coins. To run its scripts takes no copy
//! of them.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod heavy;

use apus_chain::{BlockHash, CoinRef, CoinSum, KnownBlock, Network, OutPoint, Params};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{CoinBytes, CoinsStore, Flush, StoreError};
use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::Hash;
use heavy::{KEY, MIB, block, coin, connect, most_bytes};
use std::sync::Arc;

/// Has a coin with the longest script under every name, and holds none of them.
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

/// One test, since others would use memory beside it.
#[test]
fn the_coins_of_a_block_take_little_memory_however_long_their_scripts_are() {
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
    // One by one, and as many at once as a store on servers is asked for.
    for at_once in [1, 8 * 170] {
        let store = Arc::new(Everything { at_once });
        assert_eq!(connect(&params, store, &raw, 2, None).1, sum);
    }
    #[cfg(feature = "kernel")]
    run_scripts(&block.txdata[1]);
    let most = most_bytes().unwrap_or(0) - before;
    // Without a bound it would be the coins, 240 million bytes, and more. How far threads run ahead of one another
    // makes some ten million of a difference.
    assert!(most < 128 * MIB, "{most} bytes more than before");
}

/// Runs some of the scripts of a transaction, whose coins are one that is there once. A copy for each input would be as
/// much as all of them.
#[cfg(feature = "kernel")]
fn run_scripts(tx: &bitcoin::Transaction) {
    // As long as a script can be that is run to its end: bytes to look at, which are not kept.
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
