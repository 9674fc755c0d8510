//! The second walk: blocks with the coins that the join found for them.
//!
//! A block whose scripts are taken for valid, and of which nothing is kept, is judged by what it claims of its
//! coins, and not read again if they allow it. All others are: worker threads read blocks, see by their
//! fingerprints that they are those of the first walk, or check them once more where none was noted, and judge them. What comes
//! of it is taken in ascending height, so the first that is refused is the lowest.

use super::MergeWork;
use super::answers_in_turn::{AnswersInTurn, OfRange};
use super::joined::Record;
use crate::chain_index::{BlockEntry, ChainIndex, IndexWriter};
use crate::engines::in_order::ChainstateError;
use crate::engines::in_order::keeper::put_undo;
use crate::engines::in_order::keeper::{Keeper, KeptBlock};
use crate::engines::mergesync::{
    Answers, AskedOutputs, BlockJudge, Claims, FingerprintKey, Gathered, JudgeError, Judged, Kept,
    NumberedCoin, RefusedBlock, SeenBlock,
};
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::{RunEnv, ScriptCounts};
use crate::source::ChainSource;
use crate::supply::Walker;
use crate::supply::in_order::{InOrder, Prepared, Put, walk_in_order};
use crate::supply::ranges::take_each;
use crate::supply::{total, weight};
use crate::workdir::{FinishedRange, Workdir};
use apus_chain::{CheckedBlock, CoinSumKey, Height, HeightRange, KnownBlock, OutPoint};
use apus_engine::connect::{ConnectContext, ConnectError};
use std::any::Any;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Blocks whose scripts may be running beside those of the one whose verdict is waited for.
const PENDING_MAX: usize = 4;

/// What judging needs beside the blocks.
pub(super) struct JudgeWalk<'a> {
    pub(super) work: &'a MergeWork<'a>,
    pub(super) workdir: &'a Workdir<'a>,
    /// That of the first walk.
    pub(super) key: FingerprintKey,
    pub(super) done: &'a [FinishedRange<Gathered>],
    pub(super) sum_key: CoinSumKey,
    /// Whether coins have their numbers behind them.
    pub(super) numbered: bool,
    /// The last block whose witnesses are left alone.
    pub(super) unseen: Height,
    /// The last block whose coins come bare.
    pub(super) bare: Height,
    pub(super) end: Height,
}

/// Those who take blocks that were judged.
#[derive(Default)]
pub(super) struct Takers<'t, 'a> {
    pub(super) keeper: Option<&'t mut Keeper>,
    pub(super) index: Option<&'t mut (dyn IndexWriter + 'a)>,
}

impl Takers<'_, '_> {
    /// Whether what they have can be made durable as it is.
    fn can_sync(&self) -> bool {
        self.index.as_ref().is_none_or(|index| index.can_commit())
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        self.keeper.as_mut().map_or(Ok(()), |keeper| keeper.sync())?;
        self.index.as_mut().map_or(Ok(()), |index| index.commit())
    }
}

/// How far judging is.
pub(super) struct Judging {
    pub(super) record: Record,
    /// Whether it is to be made durable now and then, and when it last was.
    pub(super) durable: bool,
    pub(super) saved_at: Instant,
}

/// A block, and what was said of it.
struct BlockVerdict {
    id: KnownBlock,
    bytes: u64,
    judged: Result<Judged, JudgeError>,
    /// What an index wants to know of it, if there is one.
    entry: Option<BlockEntry>,
}

/// A block whose scripts may be running.
struct ScriptsPending {
    id: KnownBlock,
    judged: Judged,
    entry: Option<BlockEntry>,
}

impl Prepared for BlockVerdict {
    fn memory_bytes(&self, block_bytes: u64) -> u64 {
        let entry = self.entry.as_ref().map_or(0, |entry| entry.memory_bytes);
        entry + self.judged.as_ref().map_or(0, |judged| judged.memory_bytes(block_bytes))
    }

    fn watch(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        let raw: Arc<dyn Any + Send + Sync> = Arc::clone(self.judged.as_ref().ok()?.raw()?) as _;
        Some(Arc::downgrade(&raw))
    }
}

/// What blocks are judged by.
struct WalkRules<'j> {
    judge: &'j BlockJudge<'j>,
    /// Outputs of blocks that were there before them.
    existed: &'j BTreeMap<Height, Vec<OutPoint>>,
    /// An index, if there is one, and up to where it has the blocks.
    index: Option<(&'j dyn ChainIndex, Height)>,
}

impl JudgeWalk<'_> {
    /// Judges all blocks that were not yet, and gives them to who takes them.
    pub(super) fn judge(
        &self,
        judging: &mut Judging,
        mut takers: Takers<'_, '_>,
    ) -> Result<ScriptCounts, SyncError> {
        let MergeWork { request, dir, ref pool, .. } = *self.work;
        request.env.observer.event(Event::Started(Phase::Connect));
        let from = judging.record.judged + 1;
        if from > 1 {
            let (segments, of) = (judging.record.judged as usize, self.end as usize);
            request.env.observer.event(Event::Resumed { segments, of });
        }
        let joined = judging.record.joined.clone();
        let answers =
            AnswersInTurn::open(&request.env, self.workdir, self.done, joined.answers, from)?;
        let judge = BlockJudge {
            params: request.env.params,
            scripts: pool.as_ref(),
            sum_key: (takers.keeper.is_some() || dir.archive().is_some()).then_some(self.sum_key),
            bare: self.bare,
        };
        let best_block = takers.index.as_ref().map(|index| index.best_block());
        let index = request.index().zip(best_block);
        let rules = WalkRules { judge: &judge, existed: &joined.existed, index };
        let walk = |walker: &mut Walker<'_>, range, put: &mut Put<'_, BlockVerdict>| {
            self.range(&rules, answers.take(range)?, walker, put)
        };
        let range = HeightRange::new(from, self.end + 1);
        let (mut scripts, mut bytes) = (ScriptCounts::default(), 0);
        walk_in_order(&request.env, dir, (range, self.unseen, self.bare), &walk, |ahead| {
            (scripts, bytes) = self.take_all(ahead, judging, &mut takers)?;
            Ok(())
        })?;
        answers.expect_end()?;
        request.env.observer.event(Event::Ended { phase: Phase::Connect, bytes });
        Ok(scripts)
    }

    /// Judges the blocks of a range, on a worker's thread.
    fn range(
        &self,
        rules: &WalkRules<'_>,
        of_range: OfRange<'_>,
        walker: &mut Walker<'_>,
        put: &mut Put<'_, BlockVerdict>,
    ) -> Result<bool, SyncError> {
        let answers = of_range.answers().ok_or_else(|| self.workdir.damaged())?;
        let noted = |height| of_range.fingerprint(height);
        let mut left: Option<HeightRange> = None;
        let mut judge = |range: HeightRange, put: &mut Put<'_, BlockVerdict>| {
            walker.take_again(range, &self.key, &noted, &mut |block| {
                let height = block.id().height;
                let coins: Vec<&[u8]> = answers.of_block(height).collect();
                let verdict =
                    self.block(rules, block, coins).ok_or_else(|| self.workdir.damaged())?;
                put(height, verdict.bytes, verdict);
                Ok(())
            })
        };
        for (height, claims) in of_range.claims() {
            let allowed = |claims: &Claims<'_>| self.allows(rules, height, claims, &answers);
            if let Some(claims) = claims.filter(allowed) {
                let verdict = self.by_claims(height, &claims);
                put(height, verdict.bytes, verdict);
                if let Some(range) = left.take()
                    && !judge(range, put)?
                {
                    return Ok(false);
                }
            } else {
                let start = left.map_or(height, |range| range.start);
                left = Some(HeightRange::new(start, height + 1));
            }
        }
        left.map_or(Ok(true), |range| judge(range, put))
    }

    /// Whether a block need not be looked at again, since its coins allow what it claims.
    fn allows(
        &self,
        rules: &WalkRules<'_>,
        height: Height,
        claims: &Claims<'_>,
        answers: &Answers<'_>,
    ) -> bool {
        let MergeWork { request, dir, ref checks, .. } = *self.work;
        let wanted = rules.judge.sum_key.is_some() || rules.index.is_some();
        !wanted
            && !checks.needed(height)
            && !rules.existed.contains_key(&height)
            && claims.allowed(request.env.params, height, dir.chain(), answers.of_block(height))
    }

    /// The verdict on such a block.
    fn by_claims(&self, height: Height, claims: &Claims<'_>) -> BlockVerdict {
        let hash = self.work.dir.chain().hash(height).copied().unwrap_or_default();
        BlockVerdict {
            id: KnownBlock { height, hash },
            bytes: claims.block_bytes(),
            judged: Ok(Judged::by_claims()),
            entry: None,
        }
    }

    /// Judges a block with what its inputs take; none where these are no coins with numbers, though they should be.
    fn block(
        &self,
        rules: &WalkRules<'_>,
        block: &SeenBlock<'_>,
        mut coins: Vec<&[u8]>,
    ) -> Option<BlockVerdict> {
        let MergeWork { dir, ref checks, .. } = *self.work;
        let id = block.id();
        let existed = rules.existed.get(&id.height).map(Vec::as_slice).unwrap_or_default();
        let check_scripts = checks.needed(id.height);
        let context = ConnectContext { ancestry: dir.chain(), check_scripts };
        let mut numbered = Vec::new();
        if self.numbered && id.height > self.bare {
            numbered = coins.into_iter().map(NumberedCoin::read).collect::<Option<_>>()?;
            coins = numbered.iter().map(|numbered| numbered.coin).collect();
        }
        let judged = rules.judge.block(block, &coins, existed, &context);
        let mut entry = None;
        if let Some((index, _)) = rules.index.filter(|(_, has)| judged.is_ok() && id.height > *has)
        {
            entry = Some(index.of_block(block, &numbered)?);
        }
        Some(BlockVerdict { id, bytes: block.view().raw().len() as u64, judged, entry })
    }

    fn take_all(
        &self,
        ahead: &InOrder<BlockVerdict>,
        judging: &mut Judging,
        takers: &mut Takers<'_, '_>,
    ) -> Result<(ScriptCounts, u64), SyncError> {
        let MergeWork { request, dir, ref checks, .. } = *self.work;
        let mut pending: VecDeque<ScriptsPending> = VecDeque::new();
        let (mut scripts, mut progress) = (ScriptCounts::default(), total(dir, 1..=self.end));
        for height in 1..=judging.record.judged {
            *(if checks.needed(height) { &mut scripts.run } else { &mut scripts.assumed }) += 1;
            progress.blocks += 1;
            progress.bytes += dir.block_bytes(height);
            progress.weight += weight(dir, height);
        }
        let before = progress.bytes;
        let mut told_at = Instant::now();
        let mut taken = judging.record.judged;
        loop {
            let next = match stop_if_interrupted(request.env.interrupt).and_then(|()| ahead.next())
            {
                Ok(next) => next,
                Err(error) => {
                    // A block below that proves invalid is the one to tell of.
                    self.settle(&mut pending, 0, takers)?;
                    let more = matches!(error, SyncError::Interrupted)
                        && judging.durable
                        && taken > judging.record.judged;
                    if more && takers.can_sync() {
                        self.save(judging, taken, takers)?;
                    }
                    return Err(error);
                }
            };
            let Some((height, BlockVerdict { id, bytes, judged, entry })) = next else { break };
            match judged {
                Ok(judged) => pending.push_back(ScriptsPending { id, judged, entry }),
                Err(error) => {
                    // A block below that proves invalid is the one to tell of.
                    self.settle(&mut pending, 0, takers)?;
                    return Err(self.refusal(id, error));
                }
            }
            taken = height;
            let run = checks.needed(height);
            *(if run { &mut scripts.run } else { &mut scripts.assumed }) += 1;
            self.settle(&mut pending, if run { PENDING_MAX } else { 0 }, takers)?;
            let (blocks, bytes) = (progress.blocks + 1, progress.bytes + bytes);
            let weight = progress.weight + weight(dir, height);
            progress = Progress { blocks, bytes, weight, ..progress };
            if told_at.elapsed() >= PROGRESS_INTERVAL {
                told_at = Instant::now();
                request.env.observer.event(Event::Progress(Phase::Connect, progress));
            }
            if judging.durable && judging.saved_at.elapsed() >= request.env.checkpoint_interval {
                self.settle(&mut pending, 0, takers)?;
                if takers.can_sync() {
                    self.save(judging, height, takers)?;
                }
            }
        }
        self.settle(&mut pending, 0, takers)?;
        takers.index.as_mut().map_or(Ok(()), |index| index.finish())?;
        request.env.observer.event(Event::Progress(Phase::Connect, progress));
        if judging.durable && judging.record.judged < self.end {
            self.save(judging, self.end, takers)?;
        }
        Ok((scripts, progress.bytes - before))
    }

    /// Makes durable how far blocks were judged, after those that are kept.
    fn save(
        &self,
        judging: &mut Judging,
        judged: Height,
        takers: &mut Takers<'_, '_>,
    ) -> Result<(), SyncError> {
        takers.sync()?;
        self.work.dir.sync()?;
        judging.record.judged = judged;
        judging.record.write(self.workdir)?;
        judging.saved_at = Instant::now();
        Ok(())
    }

    /// Waits for verdicts until no more blocks are pending than so many.
    fn settle(
        &self,
        pending: &mut VecDeque<ScriptsPending>,
        most: usize,
        takers: &mut Takers<'_, '_>,
    ) -> Result<(), SyncError> {
        while pending.len() > most {
            let Some(ScriptsPending { id, judged, entry }) = pending.pop_front() else { break };
            let kept = judged.wait().map_err(|error| self.refusal(id, error))?;
            if let (Some(index), Some(entry)) = (&mut takers.index, entry) {
                index.append(id, entry)?;
            }
            let Some(Kept { raw, undo, spent }) = kept else { continue };
            let block = KeptBlock { id, raw, undo, spent };
            match (&mut takers.keeper, self.work.dir.archive()) {
                (Some(keeper), _) => keeper.put(block)?,
                (None, Some(archive)) => put_undo(archive, &block, self.sum_key)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Why a block was not taken.
    fn refusal(&self, id: KnownBlock, error: JudgeError) -> SyncError {
        let MergeWork { request, dir, .. } = *self.work;
        refusal(&request.env, dir, (id, error), &|| ())
    }
}

/// Why a block was not taken. `alive` is called after each block that is looked at for it.
pub fn refusal(
    env: &RunEnv<'_>,
    dir: &dyn ChainSource,
    (id, error): (KnownBlock, JudgeError),
    alive: &(dyn Fn() + Sync),
) -> SyncError {
    let told = match error {
        JudgeError::Refused(refused) => match told(env, dir, (id, refused), alive) {
            Ok(error) => ChainstateError::Invalid { block: id, error },
            Err(error) => return error,
        },
        JudgeError::Script(what) => ChainstateError::Script { block: id, what },
        JudgeError::NoInterpreter(error) => error.into(),
        // A plan that leaves scripts out is refused where they are wanted.
        JudgeError::Bare | JudgeError::Answer(_) => {
            let file = env.workdir.describe("");
            return SyncError::Io(IoError::WorkdirDamaged { file });
        }
    };
    told.into()
}

/// The rule that a block breaks, once it is known which of its outputs were there before.
fn told(
    env: &RunEnv<'_>,
    dir: &dyn ChainSource,
    (id, refused): (KnownBlock, RefusedBlock),
    alive: &(dyn Fn() + Sync),
) -> Result<ConnectError, SyncError> {
    let (asked, below) = (AskedOutputs::of(&refused), HeightRange::new(1, id.height));
    let mut there = HashSet::new();
    if !asked.is_empty() && !below.is_empty() {
        let of = |block: CheckedBlock| {
            alive();
            asked.touched(&block.bytes())
        };
        take_each(Phase::Connect, env, dir, &[below], &of, &mut |touched| {
            for (outpoint, made) in touched {
                if made {
                    there.insert(outpoint)
                } else {
                    there.remove(&outpoint)
                };
            }
        })?;
    }
    Ok(refused.told(|outpoint| there.contains(outpoint)))
}
