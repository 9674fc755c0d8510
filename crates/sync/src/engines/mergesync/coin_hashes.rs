//! Hashes of the coins that survive the join: [`OutputCount`] has the place of each among all numbered
//! outputs, and [`HashSpill`] collects the hashes sorted by place.

use crate::commitment::{BlockPlaces, CoinHash, CoinHasher, NewHasher};
use crate::engines::mergesync::base_set::BaseSet;
use crate::engines::mergesync::spill::{HeldMemory, Spill};
use crate::engines::mergesync::{FirstPass, SegmentSummary};
use crate::error::{IoError, SyncError};
use crate::workdir::{FinishedRange, RunInfo, Workdir};
use apus_chain::{CoinRef, HeaderChain, Height, OutPoint};

/// The number of numbered outputs in each block, and so the place of each output.
pub struct OutputCount<'a> {
    chain: &'a HeaderChain,
    places: BlockPlaces,
    /// Number of outputs in all blocks.
    total: u64,
}

impl<'a> OutputCount<'a> {
    /// Reads the counts of a base and of the segments above it, which cover all blocks of the chain.
    pub(super) fn read(
        workdir: &Workdir<'_>,
        base: &BaseSet,
        done: &[FinishedRange<SegmentSummary>],
        chain: &'a HeaderChain,
    ) -> Result<Self, SyncError> {
        let (mut places, mut total) = (BlockPlaces::default(), 0);
        let mut add = |counts: &[[u8; 4]]| {
            for count in counts {
                let count = u64::from(u32::from_be_bytes(*count));
                places.push(count);
                total += count;
            }
        };
        add(base.added.as_chunks().0);
        for done in done {
            let damaged =
                || SyncError::Io(IoError::WorkdirDamaged { file: workdir.describe(done) });
            let run = workdir.read_run(done.run(FirstPass::ADDED).ok_or_else(damaged)?)?;
            let (counts, rest) = run.as_chunks();
            if counts.len() as u64 != u64::from(done.range.count()) || !rest.is_empty() {
                return Err(damaged());
            }
            add(counts);
        }
        Ok(Self { chain, places, total })
    }

    /// Returns the number of outputs in all blocks.
    pub(super) fn total(&self) -> u64 {
        self.total
    }
}

/// The sort key of the hashes. Both kinds give the order in which the chain created the coins.
#[derive(Clone, Copy)]
pub enum HashKeys<'a> {
    /// By place.
    Places(&'a OutputCount<'a>),
    /// By height and number in the block, if the counts of other blocks are unknown.
    Numbers(&'a HeaderChain),
}

impl<'a> HashKeys<'a> {
    fn chain(&self) -> &'a HeaderChain {
        match self {
            Self::Places(count) => count.chain,
            Self::Numbers(chain) => chain,
        }
    }

    /// Returns the key of the block's output with this number; `None` if the block is known not to have it.
    fn of(&self, height: Height, number: u32) -> Option<u64> {
        match self {
            Self::Places(count) => count.places.of(height, number),
            Self::Numbers(_) => Some(u64::from(height) << 32 | u64::from(number)),
        }
    }
}

/// The hashes that a join must produce.
#[derive(Clone, Copy)]
pub struct WantedHashes<'a> {
    /// Creates hashers of coins.
    pub hasher: NewHasher,
    /// The order of the hashes.
    pub by: HashKeys<'a>,
}

/// Collects the hashes of surviving coins, which arrive in any order.
pub(super) struct HashSpill<'s> {
    by: HashKeys<'s>,
    hasher: Box<dyn CoinHasher>,
    /// The keys of the coins that are in no run yet.
    keys: Vec<u64>,
    /// Their hashes, as far as they are computed.
    hashes: Vec<CoinHash>,
    spill: Spill<'s>,
}

impl<'s> HashSpill<'s> {
    pub(super) fn new(wanted: WantedHashes<'s>, spill: Spill<'s>) -> Self {
        let WantedHashes { hasher, by } = wanted;
        Self { by, hasher: hasher(), keys: Vec::new(), hashes: Vec::new(), spill }
    }

    /// Takes the coin with this number in its block. Returns `false` if the block has no such output.
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

    /// Writes out all coins whose hashes are computed: either all of them or none.
    fn spill(&mut self) -> Result<(), SyncError> {
        for (key, hash) in self.keys.drain(..).zip(self.hashes.drain(..)) {
            self.spill.push(|out| {
                out.extend_from_slice(&key.to_be_bytes());
                out.extend_from_slice(&hash);
            })?;
        }
        Ok(())
    }

    /// Returns the runs of all hashes, as [`Spill::finish`] does.
    pub(super) fn finish(mut self, held: &HeldMemory) -> Result<Vec<RunInfo>, SyncError> {
        self.hasher.flush(&mut self.hashes);
        self.spill()?;
        self.spill.finish(held)
    }
}
