//! Copies the blocks under hints into a data directory, with the undo data that the pass proved.
//!
//! The files may have changed since the pass read them. So the copied coins are summed again, and each segment's sum
//! must be the one that balanced. Only then is the segment's last block stored: a stored last block tells the next
//! start that its segment is proven. If a sum differs, the progress is deleted, and the directory stays a draft.

use super::aggregate::{AggregateKind, Sums};
use super::takes_undo;
use super::undo_pass::StoredCoins;
use super::{ConnectByUndo, HintedSync, Partial, Segments, UndoPass, UndoPassError, UndoReader};
use crate::engines::in_order::{BlockWithUndo, DatadirWriter};
use crate::engines::mergesync::{BlockUndoData, sum_key};
use crate::error::{SourceError, SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, stop_if_interrupted};
use crate::request::{HintedTask, Request};
use crate::sink::datadir::DraftWithBlocks;
use crate::source::ChainSource;
use crate::supply::Walker;
use crate::supply::in_order::{InOrder, Put, QueueItem, walk_in_order};
use crate::supply::{bytes_of, total};
use crate::workdir::record::Record;
use crate::workdir::{FinishedRange, Workdir};
use apus_chain::{BlockBytes, HeightRange, KnownBlock};
use std::time::Instant;

/// Fails if the request wants a data directory with all blocks, and nothing would prove the undo data copied into it.
pub(super) fn expect_proof(request: &Request<'_>, task: &HintedTask<'_>) -> Result<(), SyncError> {
    if !request.folders.iter().any(FolderOutput::has_all_undo) {
        return Ok(());
    }
    if request.env.is_shared {
        let what = "a data directory with all blocks, which copies undo data under hints,";
        return Err(SyncError::Usage(UsageError::NotOnCluster { what }));
    }
    if !takes_undo(task) {
        return Err(SyncError::Usage(UsageError::UndoUnproven));
    }
    match Workdir::read_plan(request.env.workdir)? {
        Some(plan) if plan.identity.aggregate != AggregateKind::Coins => {
            Err(request.env.other_run("that did not read undo data"))
        }
        _ => Ok(()),
    }
}

/// Fails if blocks would be copied with spent coins from elsewhere: such coins are asked for by ascending height, which
/// copying does not do. Blocks that the source keeps get them in the pass.
pub(super) fn expect_kept(request: &Request<'_>, dir: &dyn ChainSource) -> Result<(), SyncError> {
    let copies = request.folders.iter().any(FolderOutput::has_all_undo) && dir.archive().is_none();
    match copies {
        false => Ok(()),
        true => Err(SyncError::Usage(UsageError::SpentNotKept)),
    }
}

/// A block to copy, and the sum of the coins that it spends.
struct BlockCopy {
    block: BlockWithUndo,
    sums: Sums,
}

impl QueueItem for BlockCopy {
    fn memory_bytes(&self, block_bytes: u64) -> u64 {
        block_bytes + self.block.undo.len() as u64
    }
}

impl UndoPass<'_> {
    /// Reads what is copied of a block.
    fn copied(
        &self,
        undo: &mut dyn UndoReader,
        stored: &mut StoredCoins,
        block: &BlockBytes<'_>,
    ) -> Result<BlockCopy, UndoPassError> {
        let kept = self.connect(undo, stored, block)?;
        let BlockUndoData { raw, undo, spent } = kept.expect("the connector has a key");
        let mut sums = self.swiftsync.aggregator.begin();
        let inputs = block.view().txs().skip(1).flat_map(|tx| tx.inputs());
        inputs
            .zip(stored.coins())
            .for_each(|(input, coin)| sums.spend_coin(input.outpoint(), coin));
        let id = KnownBlock { height: block.height(), hash: block.hash() };
        Ok(BlockCopy { block: BlockWithUndo { id, raw, undo, spent }, sums: sums.finish() })
    }
}

impl HintedSync<'_, '_> {
    /// Copies the blocks of all segments, once these are proven, if the request wants a data directory with all
    /// blocks.
    pub(super) fn copy_blocks(
        &self,
        pass: UndoPass<'_>,
        done: &Segments,
    ) -> Result<Option<DraftWithBlocks>, SyncError> {
        let Self { request, dir, plan, .. } = *self;
        if request.stop.end_in(dir)? > plan.last() && Record::read(request.env.workdir)?.is_some() {
            // An earlier start copied them and connected blocks above.
            return Ok(None);
        }
        let key = sum_key(plan);
        let end_of = |range: HeightRange| {
            let height = range.end - 1;
            KnownBlock { height, hash: dir.chain().hash(height).copied().unwrap_or_default() }
        };
        let ends: Vec<KnownBlock> = done.iter().map(|done| end_of(done.range)).collect();
        let options = request.expect_connect()?;
        let started = DatadirWriter::start_after(request, options, dir, &ends, key)?;
        let Some((mut writer, stored)) = started else { return Ok(None) };
        // The pass has run the scripts.
        let (assumed, scripts, sum_key) = (plan.last(), None, Some(key));
        let connector = ConnectByUndo { assumed, scripts, sum_key, ..pass.connector };
        let pass = UndoPass { connector, ..pass };
        let walk = |walker: &mut Walker<'_>, range, put: &mut Put<'_, BlockCopy>| {
            let (mut undo, mut stored) = (pass.undo.reader(range), StoredCoins::default());
            walker.take(range, &mut |block| {
                let copied = pass.copied(&mut *undo, &mut stored, block)?;
                put(block.height(), block.view().raw().len() as u64, copied);
                Ok(())
            })
        };
        let todo = &done[stored..];
        let end = plan.last() + 1;
        let range = HeightRange::new(todo.first().map_or(end, |first| first.range.start), end);
        request.env.observer.event(Event::Started(Phase::Copy));
        let mut bytes = 0;
        walk_in_order(&request.env, dir, (range, 0, 0), &walk, |ahead| {
            bytes = self.take_all(ahead, &pass, todo, &mut writer)?;
            Ok(())
        })?;
        request.env.observer.event(Event::Ended { phase: Phase::Copy, bytes });
        writer.end().map(Some)
    }

    /// Passes the blocks of the remaining segments to the writer, and returns their bytes.
    fn take_all(
        &self,
        ahead: &InOrder<BlockCopy>,
        pass: &UndoPass<'_>,
        todo: &[FinishedRange<Partial>],
        writer: &mut DatadirWriter,
    ) -> Result<u64, SyncError> {
        let Self { request, dir, workdir, plan, .. } = *self;
        let mut progress = total(dir, 1..=plan.last());
        let below = todo.first().map_or(plan.last(), |first| first.range.start - 1);
        progress.blocks = below.into();
        progress.bytes = bytes_of(dir, HeightRange::new(1, below + 1));
        let (before, mut reported_at) = (progress.bytes, Instant::now());
        for FinishedRange { range, partial, .. } in todo {
            let mut sums = pass.swiftsync.aggregator.zero();
            for height in range.heights() {
                stop_if_interrupted(request.env.interrupt)?;
                let copied = ahead.next()?.filter(|(at, _)| *at == height);
                let (_, copied) = copied.ok_or(SourceError::Incomplete { range: *range })?;
                sums.merge(&copied.sums).map_err(|_| workdir.damaged())?;
                if height + 1 == range.end && !sums.spends_as(&partial.sums) {
                    // This is the error to report, even if the folder cannot be deleted.
                    let _ = workdir.wipe();
                    return Err(UndoPassError::Changed { range: *range }.into());
                }
                progress.blocks += 1;
                progress.bytes += copied.block.raw.raw().len() as u64;
                writer.put(copied.block)?;
                if reported_at.elapsed() >= PROGRESS_INTERVAL {
                    reported_at = Instant::now();
                    request.env.observer.event(Event::Progress(Phase::Copy, progress));
                }
            }
        }
        request.env.observer.event(Event::Progress(Phase::Copy, progress));
        Ok(progress.bytes - before)
    }
}
