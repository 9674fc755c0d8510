//! Undo data of blocks that the source keeps, from coins that others gave.
//!
//! They wait in the work folder with the segments that they belong to, and are stored with the blocks only after the
//! sums have balanced: stored undo data are taken for proven. If the sums differ, they are deleted with the progress.

use super::{HintedSync, Segments, SwiftSync};
use crate::engines::mergesync::{BlockUndoData, sum_key};
use crate::error::SyncError;
use crate::progress::{Event, Phase, stop_if_interrupted};
use crate::source::{BlockArchive, ChainSource, not_kept, without_undo};
use crate::supply::ranges::take_missing;
use crate::supply::total;
use apus_chain::{CoinSum, CoinSumKey, HeightRange, KeyedCoinSum, Reader};
use apus_datadir::SpentCoins;

/// The undo data of a segment's blocks, by ascending height: for each block their length (4 bytes), the undo data, and
/// the sum of the coins (8 bytes).
#[derive(Default)]
pub(super) struct KeptUndo {
    run: Vec<u8>,
    block_bytes: usize,
}

/// The undo data of a segment may be longer than its blocks by this much. On the main chain they are a tenth as long;
/// without a limit, invented coins with long scripts would fill the memory before the sums refuse them.
const LONGER_MAX: usize = 16 << 20;

impl KeptUndo {
    /// Appends those of the next block. Fails if they are too long.
    pub(super) fn push(&mut self, block: &BlockUndoData) -> Result<(), String> {
        let BlockUndoData { raw, undo, spent } = block;
        self.block_bytes += raw.len();
        if self.run.len() + undo.len() > self.block_bytes + LONGER_MAX {
            return Err("the coins are longer than the blocks that spend them".to_owned());
        }
        // A block has at most four million bytes, and each coin of its inputs ten thousand.
        self.run.extend_from_slice(&(undo.len() as u32).to_le_bytes());
        self.run.extend_from_slice(undo);
        self.run.extend_from_slice(&spent.to_bytes());
        Ok(())
    }

    pub(super) fn into_run(self) -> Vec<u8> {
        self.run
    }
}

/// Reads those of the next block.
fn next<'r>(reader: &mut Reader<'r>, key: CoinSumKey) -> Option<SpentCoins<'r>> {
    let length = reader.u32().ok()?;
    let undo = reader.take(length as usize).ok()?;
    let sum = CoinSum::from_bytes(*reader.array().ok()?);
    Some(SpentCoins { undo, sum: KeyedCoinSum { key, sum } })
}

/// Drops segments that an earlier start finished without keeping undo data.
pub(super) fn expect_kept(dir: &dyn ChainSource, done: &mut Segments) {
    done.retain(|done| {
        let is_there = done.run(SwiftSync::UNDO).is_some_and(|run| run.bytes > 0);
        is_there || without_undo(dir, done.range).is_empty()
    });
}

impl HintedSync<'_, '_> {
    /// Stores the undo data of all segments, which the sums have proven, with the blocks that the source keeps.
    pub(super) fn keep_undo(&self, done: &Segments) -> Result<(), SyncError> {
        let Self { request, dir, plan, .. } = *self;
        let Some(archive) = dir.archive() else { return Ok(()) };
        take_missing(&request.env, dir, &not_kept(dir, plan.last()))?;
        request.env.observer.event(Event::Started(Phase::Copy));
        let (mut progress, mut bytes) = (total(dir, 1..=plan.last()), 0);
        for done in done {
            stop_if_interrupted(request.env.interrupt)?;
            if !without_undo(dir, done.range).is_empty() {
                let run = done.run(SwiftSync::UNDO).map(|run| self.workdir.read_run(run));
                let run = run.transpose()?.unwrap_or_default();
                bytes += run.len() as u64;
                self.keep_run(archive, done.range, &run)?;
            }
            progress.blocks += u64::from(done.range.count());
            request.env.observer.event(Event::Progress(Phase::Copy, progress));
        }
        dir.sync()?;
        request.env.observer.event(Event::Ended { phase: Phase::Copy, bytes });
        Ok(())
    }

    fn keep_run(
        &self,
        archive: &dyn BlockArchive,
        range: HeightRange,
        run: &[u8],
    ) -> Result<(), SyncError> {
        let (chain, key) = (self.dir.chain(), sum_key(self.plan));
        let mut reader = Reader::new(run);
        for height in range.heights() {
            let spent = next(&mut reader, key).ok_or_else(|| self.workdir.damaged())?;
            let (Some(hash), Some(prev)) = (chain.hash(height), chain.hash(height - 1)) else {
                return Err(self.workdir.damaged());
            };
            archive.put_undo(hash, prev, spent)?;
        }
        Ok(())
    }
}
