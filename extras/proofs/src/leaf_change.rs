//! [`BlockLeafChange`]: the leaves that a block spends and adds, and the leaf data of the coins that it
//! spends.
//!
//! Every spendable output is a leaf, unless its own block spends it (BIP-182, draft), so every numbered
//! output is one. A spent leaf is named by its coin's block and its number in that block; the thread that
//! processes blocks in order knows how many leaves there are before that block.

use apus_chain::{
    BlockView, Height, OutPoint, Reader, TxView, WitnessView, read_coin_strict, txids_of,
};
use apus_engine::connect::coins_of;
use apus_sync::engines::mergesync::{IndexedCoin, SeenBlock};
use apus_utreexo::{Leaf, NodeHash, Spender, leaf_hashes, write_compact_leaf};
use std::collections::HashMap;

/// A leaf that a block spends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentLeaf {
    /// Height of the block that created its coin.
    pub height: Height,
    /// Index among that block's leaves, from 0.
    pub number: u32,
}

/// The change that a block makes to the Utreexo forest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockLeafChange {
    /// The leaves that it spends, in the order of its inputs.
    pub spent: Vec<SpentLeaf>,
    /// The leaf data of the spent leaves, in the same order (BIP-183, draft).
    pub data: Vec<u8>,
    /// The leaves that it adds.
    pub added: Vec<NodeHash>,
}

impl BlockLeafChange {
    /// Computes the change of a block validated with these coins, one for each input except the coinbase's;
    /// `None` if the coins do not match.
    pub fn of(block: &SeenBlock<'_>, coins: &[IndexedCoin<'_>]) -> Option<Self> {
        let view = block.view();
        let spends = view.txs().skip(1).map(|tx| tx.inputs().len()).sum::<usize>();
        if spends != coins.len() {
            return None;
        }
        let mut leaves = Self::default();
        let mut own = Vec::new();
        let inputs = view.txs().skip(1).flat_map(|tx| with_spenders(&tx));
        for ((outpoint, spender), numbered) in inputs.zip(coins) {
            let coin = read_coin_strict(&mut Reader::new(numbered.coin)).ok()?;
            match numbered.number {
                None => own.push(outpoint),
                Some(number) => {
                    leaves.spent.push(SpentLeaf { height: coin.height, number });
                    write_compact_leaf(&mut leaves.data, coin.as_ref(), &spender).ok()?;
                }
            }
        }
        leaves.add(block, &view, &own);
        Some(leaves)
    }

    /// Hashes the spendable outputs, except the outputs `own` that the block itself spends.
    fn add(&mut self, block: &SeenBlock<'_>, view: &BlockView<'_>, own: &[OutPoint]) {
        let (id, txids) = (block.id(), txids_of(view));
        let mut places = HashMap::new();
        if !own.is_empty() {
            places.extend(txids.iter().zip(0u32..));
        }
        let place = |outpoint: &OutPoint| Some((*places.get(&outpoint.txid)?, outpoint.vout));
        let mut own: Vec<(u32, u32)> = own.iter().filter_map(place).collect();
        own.sort_unstable();
        let mut own = own.into_iter().peekable();
        let mut added = Vec::with_capacity(view.output_count());
        for (at, (txid, tx)) in (0..).zip(txids.iter().zip(view.txs())) {
            for (outpoint, coin) in coins_of(id.height, *txid, &tx, at == 0) {
                if own.next_if_eq(&(at, outpoint.vout)).is_none() {
                    added.push(Leaf { block: &id.hash, outpoint, coin });
                }
            }
        }
        leaf_hashes(&added, &mut self.added);
    }

    /// Heap memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let Self { spent, data, added } = self;
        let bytes = spent.capacity() * size_of::<SpentLeaf>()
            + data.capacity()
            + added.capacity() * size_of::<NodeHash>();
        bytes as u64
    }
}

/// For each input, the outpoint that it spends and the parts that can reveal the script.
fn with_spenders<'b>(tx: &TxView<'b>) -> impl Iterator<Item = (OutPoint, Spender<'b>)> + use<'b> {
    let witnesses: Vec<WitnessView<'b>> = tx.witnesses().collect();
    tx.inputs().zip(witnesses).map(|(input, witness)| {
        let spender = Spender::new(&input, &witness);
        (OutPoint::from_bytes(input.outpoint()), spender)
    })
}
