//! Leaves of the Utreexo forest that survive, out of the join: [`LeafCount`] says where each lies among all, and
//! [`LeafSink`] hashes them and has them sorted by that.

use crate::engines::mergesync::bare::NumberedCoin;
use crate::engines::mergesync::seen::SeenBlock;
use crate::engines::mergesync::spill::{HeldMemory, Spill};
use crate::engines::mergesync::{Gather, Gathered};
use crate::error::{IoError, SyncError};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_chain::{
    BlockView, CoinRef, HeaderChain, Height, OutPoint, Reader, TxView, WitnessView,
    read_coin_strict, txids_of,
};
use apus_engine::connect::coins_of;
use apus_engine::utxo::forest::Places;
use apus_utreexo::{Leaf, LeafBatch, NodeHash, Spender, leaf_hashes, write_compact_leaf};
use std::collections::HashMap;

/// How many leaves each block adds, and so which leaf of all is which one of a block.
pub struct LeafCount<'a> {
    chain: &'a HeaderChain,
    places: Places,
    /// Leaves of all blocks.
    total: u64,
}

impl<'a> LeafCount<'a> {
    /// Reads what the segments counted, which are all blocks of the chain from the first on.
    pub(super) fn read(
        workdir: &Workdir<'_>,
        done: &[FinishedRange<Gathered>],
        chain: &'a HeaderChain,
    ) -> Result<Self, SyncError> {
        let (mut places, mut total) = (Places::default(), 0);
        for done in done {
            let damaged =
                || SyncError::Io(IoError::WorkdirDamaged { file: workdir.describe(done) });
            let run = workdir.read_run(done.run(Gather::ADDED).ok_or_else(damaged)?)?;
            let (counts, rest) = run.as_chunks();
            if counts.len() as u64 != u64::from(done.range.count()) || !rest.is_empty() {
                return Err(damaged());
            }
            for count in counts {
                let count = u64::from(u32::from_be_bytes(*count));
                places.push(count);
                total += count;
            }
        }
        Ok(Self { chain, places, total })
    }

    /// Leaves of all blocks.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

/// By what leaves are sorted, which is their order in the forest either way.
#[derive(Clone, Copy)]
pub enum LeafKeys<'a> {
    /// By their places among all leaves.
    Places(&'a LeafCount<'a>),
    /// By height and number in the block, where how many others there are is not known.
    Numbers(&'a HeaderChain),
}

impl<'a> LeafKeys<'a> {
    fn chain(&self) -> &'a HeaderChain {
        match self {
            Self::Places(count) => count.chain,
            Self::Numbers(chain) => chain,
        }
    }

    /// Where this one of a block's leaves comes; none where the block has no such leaf, as far as that is known.
    fn of(&self, height: Height, number: u32) -> Option<u64> {
        match self {
            Self::Places(count) => count.places.leaf(height, number),
            Self::Numbers(_) => Some(u64::from(height) << 32 | u64::from(number)),
        }
    }
}

/// Takes the leaves that survive, in any order.
pub(super) struct LeafSink<'s> {
    by: LeafKeys<'s>,
    batch: LeafBatch,
    /// The keys of those that are in no run yet.
    keys: Vec<u64>,
    /// Their hashes, as far as they are known.
    hashes: Vec<NodeHash>,
    spill: Spill<'s>,
}

impl<'s> LeafSink<'s> {
    pub(super) fn new(by: LeafKeys<'s>, spill: Spill<'s>) -> Self {
        let (batch, keys, hashes) = (LeafBatch::default(), Vec::new(), Vec::new());
        Self { by, batch, keys, hashes, spill }
    }

    /// Takes a coin that is this one of its block's leaves. `false` where the block has no such leaf.
    pub(super) fn take(
        &mut self,
        outpoint: &OutPoint,
        coin: CoinRef<'_>,
        number: u32,
    ) -> Result<bool, SyncError> {
        let (Some(key), Some(block)) =
            (self.by.of(coin.height, number), self.by.chain().hash(coin.height))
        else {
            return Ok(false);
        };
        self.keys.push(key);
        self.batch.push(Leaf { block, outpoint: *outpoint, coin }, &mut self.hashes);
        if !self.hashes.is_empty() {
            self.spill()?;
        }
        Ok(true)
    }

    /// Hands on all whose hashes are known, which are all or none.
    fn spill(&mut self) -> Result<(), SyncError> {
        for (key, hash) in self.keys.drain(..).zip(self.hashes.drain(..)) {
            self.spill.push(|out| {
                out.extend_from_slice(&key.to_be_bytes());
                out.extend_from_slice(&hash.0);
            })?;
        }
        Ok(())
    }

    /// The runs of all, as [`Spill::finish`] leaves them.
    pub(super) fn finish(mut self, held: &HeldMemory) -> Result<Vec<RunInfo>, SyncError> {
        self.batch.flush(&mut self.hashes);
        self.spill()?;
        self.spill.finish(held)
    }
}

// [`BlockLeafChange`]: what a block does to the Utreexo forest, and what is sent of the coins that it spends.
//
// Every output that can be spent is a leaf, unless its own block spends it (BIP-182, draft). A leaf that is spent is
// named by its coin's block and its number there: how many leaves there are before that block, whichever thread goes over
// the blocks in their order knows.

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
            match numbered.leaf {
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
