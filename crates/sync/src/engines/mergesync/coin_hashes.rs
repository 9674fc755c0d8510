//! Hashes of the coins that survive, out of the join: [`OutputCount`] says which place each has among all numbered outputs,
//! and [`HashSpill`] has the hashes sorted by that.

use crate::commitment::{BlockPlaces, CoinHash, CoinHasher, NewHasher};
use crate::engines::mergesync::spill::{HeldMemory, Spill};
use crate::engines::mergesync::{Gather, Gathered};
use crate::error::{IoError, SyncError};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_chain::{CoinRef, HeaderChain, Height, OutPoint};

/// How many outputs each block numbers, and so which place each has.
pub struct OutputCount<'a> {
    chain: &'a HeaderChain,
    places: BlockPlaces,
    /// Those of all blocks.
    total: u64,
}

impl<'a> OutputCount<'a> {
    /// Reads what the segments counted, which are all blocks of the chain from the first on.
    pub(super) fn read(
        workdir: &Workdir<'_>,
        done: &[FinishedRange<Gathered>],
        chain: &'a HeaderChain,
    ) -> Result<Self, SyncError> {
        let (mut places, mut total) = (BlockPlaces::default(), 0);
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

    /// Outputs of all blocks.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

/// By what hashes are sorted, which is the order in which the chain made their coins either way.
#[derive(Clone, Copy)]
pub enum HashKeys<'a> {
    /// By their places.
    Places(&'a OutputCount<'a>),
    /// By height and number in the block, where how many others there are is not known.
    Numbers(&'a HeaderChain),
}

impl<'a> HashKeys<'a> {
    fn chain(&self) -> &'a HeaderChain {
        match self {
            Self::Places(count) => count.chain,
            Self::Numbers(chain) => chain,
        }
    }

    /// Where a block's output of this number comes; none where the block has no such output, as far as that is known.
    fn of(&self, height: Height, number: u32) -> Option<u64> {
        match self {
            Self::Places(count) => count.places.of(height, number),
            Self::Numbers(_) => Some(u64::from(height) << 32 | u64::from(number)),
        }
    }
}

/// Hashes that are wanted of a join.
#[derive(Clone, Copy)]
pub struct WantedHashes<'a> {
    /// What hashes coins.
    pub hasher: NewHasher,
    /// By what they are sorted.
    pub by: HashKeys<'a>,
}

/// Takes the coins that survive, in any order.
pub(super) struct HashSpill<'s> {
    by: HashKeys<'s>,
    hasher: Box<dyn CoinHasher>,
    /// The keys of those that are in no run yet.
    keys: Vec<u64>,
    /// Their hashes, as far as they are known.
    hashes: Vec<CoinHash>,
    spill: Spill<'s>,
}

impl<'s> HashSpill<'s> {
    pub(super) fn new(wanted: WantedHashes<'s>, spill: Spill<'s>) -> Self {
        let WantedHashes { hasher, by } = wanted;
        Self { by, hasher: hasher(), keys: Vec::new(), hashes: Vec::new(), spill }
    }

    /// Takes a coin of this number in its block. `false` where the block has no such output.
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
        self.hasher.push(block, outpoint, coin, &mut self.hashes);
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
                out.extend_from_slice(&hash);
            })?;
        }
        Ok(())
    }

    /// The runs of all, as [`Spill::finish`] leaves them.
    pub(super) fn finish(mut self, held: &HeldMemory) -> Result<Vec<RunInfo>, SyncError> {
        self.hasher.flush(&mut self.hashes);
        self.spill()?;
        self.spill.finish(held)
    }
}
