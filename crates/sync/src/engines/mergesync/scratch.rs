//! [`ScratchUse`]: how much disk space a batch takes, and so where it must end.
//!
//! The space is measured, not predicted: a batch is as long as its records, its base, and what the join will make of
//! them fit into the scratch space.

use super::base_set::BaseSet;
use super::join_runs::{merge_budget, spill_bytes};
use super::{FirstPass, MergeWork, SegmentSummary, SpendRecord};
use crate::engines::pass::PartialResult;
use crate::error::{IoError, SyncError};
use crate::workdir::{FinishedRange, RunInfo};
use apus_chain::Height;
use parking_lot::Mutex;

/// Bytes of a joined prevout: whole, as of most coins, and stripped.
const PREVOUT_BYTES: u64 = 41;
const STRIPPED_BYTES: u64 = 19;

/// Bytes of a coin in the in-order engine's store, at most: 51 where 166 million coins were loaded.
const STORED_COIN_BYTES: u64 = 60;

/// The disk space of a batch.
pub(super) struct ScratchUse {
    /// The limit in bytes; `None` if all blocks must be one batch.
    limit: Option<u64>,
    /// A fixed number of segments in each batch, for tests.
    segments: Option<usize>,
    /// Segments in progress at a time.
    under_way: u64,
    /// Runs that a join opens; more are merged into longer ones first.
    fan_in: usize,
    /// Length of the runs of joined prevouts.
    prevout_run_bytes: u64,
    base_bytes: u64,
    base_coins: u64,
    /// The last block with stripped prevouts.
    bare: Height,
    taken: Mutex<BatchSize>,
}

/// What the segments of a batch take.
#[derive(Clone, Copy, Default)]
struct BatchSize {
    count: usize,
    bytes: u64,
    /// The longest segment's.
    longest: u64,
    /// Of these, the records of coins.
    made: u64,
    spends: u64,
    /// By how many coins the set grows, at most.
    growth: i64,
    /// The prevouts that the join will make.
    prevouts: u64,
}

impl BatchSize {
    /// Bytes of the records of spends.
    fn spent(&self) -> u64 {
        self.spends * SpendRecord::SIZE as u64
    }

    fn with(self, done: &FinishedRange<SegmentSummary>, bare: Height) -> Self {
        let of = |kind| done.run(kind).map_or(0, RunInfo::file_bytes);
        let bytes = done.runs.iter().map(RunInfo::file_bytes).sum();
        let spends = of(FirstPass::SPENT) / SpendRecord::SIZE as u64;
        let is_bare = done.range.end <= bare + 1;
        let prevout = if is_bare { STRIPPED_BYTES } else { PREVOUT_BYTES };
        Self {
            count: self.count + 1,
            bytes: self.bytes + bytes,
            longest: self.longest.max(bytes),
            made: self.made + of(FirstPass::MADE),
            spends: self.spends + spends,
            growth: self.growth + done.partial.coins_about(),
            prevouts: self.prevouts + spends * prevout,
        }
    }
}

impl ScratchUse {
    pub(super) fn new(work: &MergeWork<'_>, base: &BaseSet, bare: Height) -> Self {
        let request = work.request;
        let (memory_bytes, threads) = (request.env.memory_bytes, request.env.threads);
        // Other machines keep the records of all blocks, and an index follows all blocks at once.
        let one_batch = request.env.is_shared || request.index().is_some();
        let limits = request.env.scratch.filter(|_| !one_batch);
        Self {
            limit: limits.map(|limits| limits.bytes),
            segments: limits.and_then(|limits| limits.segments),
            under_way: work.under_way() as u64,
            fan_in: merge_budget(memory_bytes, threads).fan_in,
            prevout_run_bytes: (spill_bytes(memory_bytes, threads)[0] / 2).max(1),
            base_bytes: base.disk_bytes(),
            base_coins: base.coins,
            bare,
            taken: Mutex::default(),
        }
    }

    /// Whether there is a limit.
    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Adds a finished segment; returns whether no further one should begin.
    pub(super) fn take(&self, done: &FinishedRange<SegmentSummary>) -> bool {
        let mut taken = self.taken.lock();
        *taken = taken.with(done, self.bare);
        if let Some(segments) = self.segments {
            return taken.count >= segments;
        }
        let under_way = self.under_way * taken.longest;
        self.limit.is_some_and(|limit| self.needed(&taken) + under_way > limit)
    }

    /// Bytes on disk when the join of these segments ends.
    fn needed(&self, taken: &BatchSize) -> u64 {
        let joined = taken.prevouts + self.next_base(taken);
        // The short runs stay while longer ones are made of them, and while these are joined.
        let is_merged = taken.count > self.fan_in;
        let longer = if is_merged { taken.made + taken.spent() } else { 0 };
        let is_merged = taken.prevouts / self.prevout_run_bytes > self.fan_in as u64;
        let longer_prevouts = if is_merged { taken.prevouts } else { 0 };
        self.base_bytes + taken.bytes + joined + longer.max(longer_prevouts)
    }

    /// Coins of the next base, at most.
    fn left(&self, taken: &BatchSize) -> u64 {
        self.base_coins.saturating_add_signed(taken.growth)
    }

    /// Bytes of the next base: coins that are spent are about as long as the others.
    fn next_base(&self, taken: &BatchSize) -> u64 {
        let left = self.left(taken);
        let joined = (left + taken.spends).max(1);
        let bytes = u128::from(self.base_bytes + taken.made) * u128::from(left);
        (bytes / u128::from(joined)) as u64
    }

    /// Whether the first `count` segments can be joined while the others stay.
    pub(super) fn fits(&self, done: &[FinishedRange<SegmentSummary>], count: usize) -> bool {
        if let Some(segments) = self.segments {
            return count <= segments;
        }
        self.limit.is_none_or(|limit| self.needed_for(done, count) <= limit)
    }

    fn needed_for(&self, done: &[FinishedRange<SegmentSummary>], count: usize) -> u64 {
        let (batch, rest) = done.split_at(count);
        self.needed(&self.size_of(batch)) + self.size_of(rest).bytes
    }

    fn size_of(&self, done: &[FinishedRange<SegmentSummary>]) -> BatchSize {
        done.iter().fold(BatchSize::default(), |sum, done| sum.with(done, self.bare))
    }

    /// Fails if there is no room for the set after these last segments, once as a base and once in the store of the
    /// in-order engine.
    pub(super) fn expect_store_room(
        &self,
        done: &[FinishedRange<SegmentSummary>],
    ) -> Result<(), SyncError> {
        let all = self.size_of(done);
        let needed = self.next_base(&all) + self.left(&all) * STORED_COIN_BYTES;
        match self.limit.filter(|limit| self.segments.is_none() && needed > *limit) {
            Some(limit) => Err(SyncError::Io(IoError::LittleScratch { needed, limit })),
            None => Ok(()),
        }
    }

    /// Fails if there is no room to join the first segment.
    pub(super) fn expect_room(
        &self,
        done: &[FinishedRange<SegmentSummary>],
    ) -> Result<(), SyncError> {
        match self.limit.filter(|_| !self.fits(done, 1)) {
            Some(limit) => {
                let needed = self.needed_for(done, 1);
                Err(SyncError::Io(IoError::LittleScratch { needed, limit }))
            }
            None => Ok(()),
        }
    }

    /// Whether a batch may end before a height: not among the last blocks.
    pub(super) fn may_end(&self, end: Height, first_of_last: Height) -> bool {
        self.limit.is_some() && (self.segments.is_some() || end <= first_of_last)
    }
}
