//! Leaves of the Utreexo forest that survive, out of the join: [`LeafCount`] says where each lies among all, and
//! [`LeafSink`] hashes them and has them sorted by that.

use super::spill::{HeldMemory, Spill};
use crate::engines::mergesync::Gathered;
use crate::engines::pass::RunKind;
use crate::error::{IoError, SyncError};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_chain::{CoinRef, HeaderChain, Height, OutPoint};
use apus_engine::utxo::forest::Places;
use apus_utreexo::{Leaf, LeafBatch, NodeHash};

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
            let run = workdir.read_run(done.run(RunKind::Added).ok_or_else(damaged)?)?;
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
