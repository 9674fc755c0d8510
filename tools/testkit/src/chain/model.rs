//! The coins at the end of a chain, computed in the most obvious way.
//!
//! It follows Core's rules for which outputs become coins; it does not validate, so a spend of a missing coin
//! is ignored.

use bitcoin::{Block, OutPoint, Script, TxOut};
use std::collections::BTreeMap;

/// An unspent output, and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCoin {
    /// Amount and script.
    pub output: TxOut,
    /// Height of the block that created it.
    pub height: u32,
    /// Whether a coinbase transaction created it.
    pub coinbase: bool,
}

/// All coins by outpoint. The order is (txid in internal byte order, vout as a number).
pub type UtxoSet = BTreeMap<OutPoint, ModelCoin>;

/// Returns whether an output never becomes a coin (Core `script/script.h`, `CScript::IsUnspendable`).
pub fn is_unspendable(script: &Script) -> bool {
    script.as_bytes().first() == Some(&0x6a) || script.len() > 10_000
}

/// Removes the coins that `block` spends and adds its outputs.
pub fn apply_block(coins: &mut UtxoSet, height: u32, block: &Block) {
    // The genesis block's output is not a coin (Core `validation.cpp`, `ConnectBlock`).
    if height == 0 {
        return;
    }
    for (place, tx) in block.txdata.iter().enumerate() {
        let coinbase = place == 0;
        if !coinbase {
            for input in &tx.input {
                coins.remove(&input.previous_output);
            }
        }
        let txid = tx.compute_txid();
        for (vout, output) in (0..).zip(&tx.output) {
            if !is_unspendable(&output.script_pubkey) {
                let coin = ModelCoin { output: output.clone(), height, coinbase };
                coins.insert(OutPoint { txid, vout }, coin);
            }
        }
    }
}

/// Returns the coins after `chain`, which starts with the genesis block.
pub fn utxo_set<'a>(chain: impl IntoIterator<Item = &'a Block>) -> UtxoSet {
    let mut coins = UtxoSet::new();
    for (height, block) in (0..).zip(chain) {
        apply_block(&mut coins, height, block);
    }
    coins
}

/// Returns the hints for `chain`: for each block after the genesis block, which of its spendable outputs are
/// coins at the end (BIP-456: outputs are counted in block order, without unspendable ones).
pub fn hints<'a>(chain: impl IntoIterator<Item = &'a Block>, coins: &UtxoSet) -> Vec<Vec<u32>> {
    (0..).zip(chain).skip(1).map(|(height, block)| block_hints(height, block, coins)).collect()
}

fn block_hints(height: u32, block: &Block, coins: &UtxoSet) -> Vec<u32> {
    let mut unspent = Vec::new();
    let mut index = 0;
    for tx in &block.txdata {
        let txid = tx.compute_txid();
        for (vout, output) in (0..).zip(&tx.output) {
            if is_unspendable(&output.script_pubkey) {
                continue;
            }
            // A later transaction with the same id may have replaced the coin (BIP-30): then the coin in the set has
            // another height, and this output is no longer in it.
            if coins.get(&OutPoint { txid, vout }).is_some_and(|coin| coin.height == height) {
                unspent.push(index);
            }
            index += 1;
        }
    }
    unspent
}
