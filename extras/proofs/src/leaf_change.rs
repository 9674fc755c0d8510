//! [`BlockLeafChange`]: what a block does to the Utreexo forest, and what is sent of the coins that it spends.
//!
//! Every output that can be spent is a leaf, unless its own block spends it (BIP-182, draft): so each that has a number is
//! one. A leaf that is spent is named by its coin's block and its number there: how many leaves there are before that
//! block, whichever thread goes over the blocks in their order knows.

use apus_chain::{
    BlockView, Height, OutPoint, Reader, TxView, WitnessView, read_coin_strict, txids_of,
};
use apus_engine::connect::coins_of;
use apus_sync::engines::mergesync::{NumberedCoin, SeenBlock};
use apus_utreexo::{Leaf, NodeHash, Spender, leaf_hashes, write_compact_leaf};
use std::collections::HashMap;

/// A leaf that a block spends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentLeaf {
    /// The block that made its coin.
    pub height: Height,
    /// Which one of that block's leaves it is, counted from 0.
    pub number: u32,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockLeafChange {
    /// The leaves that it spends, in the order of its inputs.
    pub spent: Vec<SpentLeaf>,
    /// The leaf data of these, one after the other (BIP-183, draft).
    pub data: Vec<u8>,
    /// The leaves that it adds.
    pub added: Vec<NodeHash>,
}

impl BlockLeafChange {
    /// Those of a block that was judged with these coins, one for each input but the coinbase's; none where they
    /// are not such.
    pub fn of(block: &SeenBlock<'_>, coins: &[NumberedCoin<'_>]) -> Option<Self> {
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

    /// Hashes the outputs that can be spent, but for the block's own among them.
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

    /// Memory that they take beside the value itself, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let Self { spent, data, added } = self;
        let bytes = spent.capacity() * size_of::<SpentLeaf>()
            + data.capacity()
            + added.capacity() * size_of::<NodeHash>();
        bytes as u64
    }
}

/// What each input spends, and what it shows of that.
fn with_spenders<'b>(tx: &TxView<'b>) -> impl Iterator<Item = (OutPoint, Spender<'b>)> + use<'b> {
    let witnesses: Vec<WitnessView<'b>> = tx.witnesses().collect();
    tx.inputs().zip(witnesses).map(|(input, witness)| {
        let spender = Spender::new(&input, &witness);
        (OutPoint::from_bytes(input.outpoint()), spender)
    })
}
