//! The second walk: validates blocks with the coins that the join found for them.
//!
//! If a block's scripts are assumed valid and no part of it is kept, its spend summary decides, and if the
//! coins allow that summary, the block is not read again. Worker threads read all other blocks, compare their
//! fingerprints with the first walk's (or check blocks without one again), and validate them. The calling
//! thread takes results in ascending height, so the first refused block is the lowest.

use super::join_result::Record;
use super::prevouts_in_order::{PrevoutsInOrder, RangePrevouts};
use super::{MergeWork, bare_up_to, fingerprint_key, sum_key};
use crate::chain_index::{BlockEntry, ChainIndex, IndexWriter};
use crate::engines::in_order::ChainstateError;
use crate::engines::in_order::datadir_writer::put_undo;
use crate::engines::in_order::datadir_writer::{BlockWithUndo, DatadirWriter};
use crate::engines::mergesync::{
    BlockConnector, BlockUndoData, ConnectFailure, IndexedCoin, SeenBlock, SegmentPrevouts,
    SegmentSummary, SpendSummary, ValidatedBlock,
};
use crate::error::SyncError;
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::{RunEnv, ScriptCounts};
use crate::supply::Walker;
use crate::supply::in_order::{InOrder, Put, QueueItem, walk_in_order};
use crate::supply::{total, weight};
use crate::workdir::plan::Plan;
use crate::workdir::{FinishedRange, Workdir, damaged};
use apus_chain::{Height, HeightRange, KnownBlock};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Maximum number of blocks whose scripts may run while the walk waits for another block's verdict.
const PENDING_MAX: usize = 4;

/// The second walk: validates blocks with joined coins.
pub(super) struct ConnectWalk<'a> {
    pub(super) work: &'a MergeWork<'a>,
    pub(super) workdir: &'a Workdir<'a>,
    pub(super) plan: &'a Plan,
    pub(super) done: &'a [FinishedRange<SegmentSummary>],
}

/// The receivers of validated blocks.
#[derive(Default)]
pub(super) struct BlockTakers<'t, 'a> {
    pub(super) keeper: Option<&'t mut DatadirWriter>,
    pub(super) index: Option<&'t mut (dyn IndexWriter + 'a)>,
}

impl BlockTakers<'_, '_> {
    /// Whether the receivers' state can be made durable now.
    fn can_sync(&self) -> bool {
        self.index.as_ref().is_none_or(|index| index.can_commit())
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        self.keeper.as_mut().map_or(Ok(()), |keeper| keeper.sync())?;
        self.index.as_mut().map_or(Ok(()), |index| index.commit())
    }
}

/// Progress of the walk.
pub(super) struct ConnectProgress {
    pub(super) record: Record,
    /// Whether to make the progress durable periodically, and when that last happened.
    pub(super) durable: bool,
    pub(super) saved_at: Instant,
}

/// A block and its verdict.
struct BlockVerdict {
    id: KnownBlock,
    bytes: u64,
    validated: Result<ValidatedBlock, ConnectFailure>,
    /// The index's entry for it, if there is an index.
    entry: Option<BlockEntry>,
}

/// A block whose scripts may still be running.
struct ScriptsPending {
    id: KnownBlock,
    validated: ValidatedBlock,
    entry: Option<BlockEntry>,
}

impl QueueItem for BlockVerdict {
    fn memory_bytes(&self, block_bytes: u64) -> u64 {
        let entry = self.entry.as_ref().map_or(0, |entry| entry.memory_bytes);
        entry + self.validated.as_ref().map_or(0, |validated| validated.memory_bytes(block_bytes))
    }

    fn watch(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        let raw: Arc<dyn Any + Send + Sync> = Arc::clone(self.validated.as_ref().ok()?.raw()?) as _;
        Some(Arc::downgrade(&raw))
    }
}

/// The rules for validating blocks.
struct WalkRules<'j> {
    connector: &'j BlockConnector<'j>,
    /// The index, if there is one, and the last block that it has.
    index: Option<(&'j dyn ChainIndex, Height)>,
}

impl ConnectWalk<'_> {
    /// Validates all remaining blocks and passes them to the receivers.
    pub(super) fn validate(
        &self,
        state: &mut ConnectProgress,
        mut takers: BlockTakers<'_, '_>,
    ) -> Result<ScriptCounts, SyncError> {
        let MergeWork { request, dir, ref checks, ref pool, .. } = *self.work;
        request.env.observer.event(Event::Started(Phase::Connect));
        let from = state.record.validated + 1;
        let (base, end) = (state.record.base, state.record.end);
        if from > base + 1 {
            let (segments, of) = (state.record.validated as usize, self.plan.last() as usize);
            request.env.observer.event(Event::Resumed { segments, of });
        }
        let joined = state.record.joined.clone();
        let answers =
            PrevoutsInOrder::open(&request.env, self.workdir, self.done, joined.answers, from)?;
        let keeps_blocks = takers.keeper.is_some() || dir.archive().is_some();
        let connector = BlockConnector {
            params: request.env.params,
            chain: dir.chain(),
            existed: &joined.existed,
            scripts: pool.as_ref(),
            assumed: checks.last_assumed().unwrap_or_default(),
            sum_key: keeps_blocks.then(|| sum_key(self.plan)),
            bare: bare_up_to(self.plan),
            numbered: self.plan.identity.numbered,
        };
        let best_block = takers.index.as_ref().map(|index| index.best_block());
        let index = request.index().zip(best_block);
        let rules = WalkRules { connector: &connector, index };
        let walk = |walker: &mut Walker<'_>, range, put: &mut Put<'_, BlockVerdict>| {
            self.range(&rules, answers.take(range)?, walker, put)
        };
        let range = HeightRange::new(from, end + 1);
        let (mut scripts, mut bytes) = (ScriptCounts::default(), 0);
        let heights = (range, self.plan.identity.unseen, bare_up_to(self.plan));
        walk_in_order(&request.env, dir, heights, &walk, |ahead| {
            (scripts, bytes) = self.take_all(ahead, state, &mut takers)?;
            Ok(())
        })?;
        answers.expect_end()?;
        let phase = Phase::Connect;
        request.env.observer.event(match end == self.plan.last() {
            true => Event::Ended { phase, bytes },
            false => Event::Paused { phase, bytes },
        });
        Ok(scripts)
    }

    /// Validates the blocks of a range, on a worker thread.
    fn range(
        &self,
        rules: &WalkRules<'_>,
        of_range: RangePrevouts<'_>,
        walker: &mut Walker<'_>,
        put: &mut Put<'_, BlockVerdict>,
    ) -> Result<bool, SyncError> {
        let answers = of_range.answers().ok_or_else(|| self.workdir.damaged())?;
        let noted = |height| of_range.fingerprint(height);
        let waiting = |height| of_range.waiting(height);
        let key = fingerprint_key(self.plan);
        let mut left: Option<HeightRange> = None;
        let mut validate = |range: HeightRange, put: &mut Put<'_, BlockVerdict>| {
            walker.take_again(range, &key, (&noted, &waiting), &mut |block| {
                let height = block.id().height;
                let verdict =
                    Self::block(rules, block, &answers).ok_or_else(|| self.workdir.damaged())?;
                put(height, verdict.bytes, verdict);
                Ok(())
            })
        };
        for (height, claims) in of_range.claims() {
            let allowed = |claims: &SpendSummary<'_>| {
                rules.index.is_none()
                    && rules.connector.allows(height, claims, answers.of_block(height))
            };
            if let Some(claims) = claims.filter(allowed) {
                let hash = self.work.dir.chain().hash(height).copied().unwrap_or_default();
                let id = KnownBlock { height, hash };
                let (bytes, validated) = (claims.block_bytes(), Ok(ValidatedBlock::by_claims()));
                put(height, bytes, BlockVerdict { id, bytes, validated, entry: None });
                if let Some(range) = left.take()
                    && !validate(range, put)?
                {
                    return Ok(false);
                }
            } else {
                let start = left.map_or(height, |range| range.start);
                left = Some(HeightRange::new(start, height + 1));
            }
        }
        left.map_or(Ok(true), |range| validate(range, put))
    }

    /// Validates a block with its inputs' coins; `None` if the coins should have numbers and do not.
    fn block(
        rules: &WalkRules<'_>,
        block: &SeenBlock<'_>,
        answers: &SegmentPrevouts<'_>,
    ) -> Option<BlockVerdict> {
        let id = block.id();
        let validated = rules.connector.block(block, answers.of_block(id.height));
        let mut entry = None;
        if let Some((index, _)) =
            rules.index.filter(|(_, has)| validated.is_ok() && id.height > *has)
        {
            let coins: Option<Vec<_>> =
                answers.of_block(id.height).map(IndexedCoin::read).collect();
            entry = Some(index.of_block(block, &coins?)?);
        }
        Some(BlockVerdict { id, bytes: block.view().raw().len() as u64, validated, entry })
    }

    fn take_all(
        &self,
        ahead: &InOrder<BlockVerdict>,
        state: &mut ConnectProgress,
        takers: &mut BlockTakers<'_, '_>,
    ) -> Result<(ScriptCounts, u64), SyncError> {
        let MergeWork { request, dir, ref checks, .. } = *self.work;
        let mut pending: VecDeque<ScriptsPending> = VecDeque::new();
        let (mut scripts, mut progress) =
            (ScriptCounts::default(), total(dir, 1..=self.plan.last()));
        for height in 1..=state.record.validated {
            *(if checks.needed(height) { &mut scripts.run } else { &mut scripts.assumed }) += 1;
            progress.blocks += 1;
            progress.bytes += dir.block_bytes(height);
            progress.weight += weight(dir, height);
        }
        let before = progress.bytes;
        let mut reported_at = Instant::now();
        let mut taken = state.record.validated;
        loop {
            let next = match stop_if_interrupted(request.env.interrupt).and_then(|()| ahead.next())
            {
                Ok(next) => next,
                Err(error) => {
                    // If a block below proves invalid, report that one.
                    self.settle(&mut pending, 0, takers)?;
                    let more = matches!(error, SyncError::Interrupted)
                        && state.durable
                        && taken > state.record.validated;
                    if more && takers.can_sync() {
                        self.save(state, taken, takers)?;
                    }
                    return Err(error);
                }
            };
            let Some((height, BlockVerdict { id, bytes, validated, entry })) = next else { break };
            match validated {
                Ok(validated) => pending.push_back(ScriptsPending { id, validated, entry }),
                Err(error) => {
                    // If a block below proves invalid, report that one.
                    self.settle(&mut pending, 0, takers)?;
                    return Err(refusal(&request.env, (id, error)));
                }
            }
            taken = height;
            let run = checks.needed(height);
            *(if run { &mut scripts.run } else { &mut scripts.assumed }) += 1;
            self.settle(&mut pending, if run { PENDING_MAX } else { 0 }, takers)?;
            let (blocks, bytes) = (progress.blocks + 1, progress.bytes + bytes);
            let weight = progress.weight + weight(dir, height);
            progress = Progress { blocks, bytes, weight, ..progress };
            if reported_at.elapsed() >= PROGRESS_INTERVAL {
                reported_at = Instant::now();
                request.env.observer.event(Event::Progress(Phase::Connect, progress));
            }
            if state.durable && state.saved_at.elapsed() >= request.env.checkpoint_interval {
                self.settle(&mut pending, 0, takers)?;
                if takers.can_sync() {
                    self.save(state, height, takers)?;
                }
            }
        }
        self.settle(&mut pending, 0, takers)?;
        takers.index.as_mut().map_or(Ok(()), |index| index.finish())?;
        request.env.observer.event(Event::Progress(Phase::Connect, progress));
        if state.durable && state.record.validated < state.record.end {
            self.save(state, state.record.end, takers)?;
        }
        Ok((scripts, progress.bytes - before))
    }

    /// Makes the kept blocks durable, then records how far blocks were validated.
    fn save(
        &self,
        state: &mut ConnectProgress,
        validated: Height,
        takers: &mut BlockTakers<'_, '_>,
    ) -> Result<(), SyncError> {
        takers.sync()?;
        self.work.dir.sync()?;
        state.record.validated = validated;
        state.record.write(self.workdir)?;
        state.saved_at = Instant::now();
        Ok(())
    }

    /// Waits for verdicts until at most this many blocks are pending.
    fn settle(
        &self,
        pending: &mut VecDeque<ScriptsPending>,
        most: usize,
        takers: &mut BlockTakers<'_, '_>,
    ) -> Result<(), SyncError> {
        while pending.len() > most {
            let Some(ScriptsPending { id, validated, entry }) = pending.pop_front() else { break };
            let refuse = |error| refusal(&self.work.request.env, (id, error));
            let kept = validated.wait().map_err(refuse)?;
            if let (Some(index), Some(entry)) = (&mut takers.index, entry) {
                index.append(id, entry)?;
            }
            let Some(BlockUndoData { raw, undo, spent }) = kept else { continue };
            let block = BlockWithUndo { id, raw, undo, spent };
            match (&mut takers.keeper, self.work.dir.archive()) {
                (Some(keeper), _) => keeper.put(block)?,
                (None, Some(archive)) => put_undo(archive, &block, sum_key(self.plan))?,
                (None, None) => {}
            }
        }
        Ok(())
    }
}

/// The error for a block that was not accepted.
pub fn refusal(env: &RunEnv<'_>, (block, error): (KnownBlock, ConnectFailure)) -> SyncError {
    match error {
        ConnectFailure::Refused(error) => ChainstateError::Invalid { block, error }.into(),
        ConnectFailure::Script(what) => ChainstateError::Script { block, what }.into(),
        ConnectFailure::NoInterpreter(error) => ChainstateError::from(error).into(),
        // If this start wants scripts, a plan without them is refused earlier.
        ConnectFailure::Bare | ConnectFailure::Answer(_) => damaged(env.workdir),
    }
}
