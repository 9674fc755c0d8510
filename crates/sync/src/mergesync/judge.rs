//! The second walk: blocks with the coins that the join found for them.
//!
//! Blocks are read, checked and prepared by worker threads, and judged in ascending height, as their
//! answers come. So the first that is refused is the lowest.

use super::Work;
use super::join::Joined;
use crate::connect::keeper::Keeper;
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::Scripts;
use crate::runs::{Answers as AnswersForm, MergeBudget, Merging};
use crate::supply::in_order::{InOrder, take_in_order};
use crate::supply::ranges::take_each;
use crate::supply::total;
use crate::workdir::{Done, Workdir};
use apus_chain::{CheckedBlock, CoinSumKey, Height, HeightRange};
use apus_engine::connect::{ConnectContext, ConnectError, Connected, PreparedBlock};
use apus_engine::mergesync::{
    AnswerRecord, Answers, Asked, Gathered, Judge, JudgeError, Judged, Refused,
};
use apus_engine::pass::RunKind;
use apus_engine::utxo::ChainstateError;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Blocks whose scripts may be running while the next one is judged.
const PENDING_MAX: usize = 4;

/// What judging needs beside the blocks.
pub(super) struct Walk<'a> {
    pub(super) work: &'a Work<'a>,
    pub(super) workdir: &'a Workdir<'a>,
    pub(super) done: &'a [Done<Gathered>],
    pub(super) joined: &'a Joined,
    pub(super) sum_key: CoinSumKey,
    pub(super) end: Height,
}

impl Walk<'_> {
    /// Judges all blocks, and gives them to what keeps them.
    pub(super) fn judge(&self, mut keeper: Option<&mut Keeper>) -> Result<Scripts, SyncError> {
        let Work { request, dir, .. } = *self.work;
        request.observer.event(Event::Started(Phase::Connect));
        let prepare = |block| Arc::new(PreparedBlock::new(request.params, block));
        let range = HeightRange::new(1, self.end + 1);
        let (mut scripts, mut bytes) = (Scripts::default(), 0);
        take_in_order(request, dir, range, &prepare, |ahead| {
            (scripts, bytes) = self.take_all(ahead, &mut keeper)?;
            Ok(())
        })?;
        request.observer.event(Event::Ended { phase: Phase::Connect, bytes });
        Ok(scripts)
    }

    fn take_all(
        &self,
        ahead: &InOrder<Arc<PreparedBlock>>,
        keeper: &mut Option<&mut Keeper>,
    ) -> Result<(Scripts, u64), SyncError> {
        let Work { request, dir, ref checks, ref pool, .. } = *self.work;
        let judge = Judge {
            params: request.params,
            scripts: pool.as_ref(),
            sum_key: keeper.is_some().then_some(self.sum_key),
        };
        let mut answers = Stream::open(self)?;
        let mut pending: VecDeque<(Arc<PreparedBlock>, Judged)> = VecDeque::new();
        let (mut scripts, mut progress) = (Scripts::default(), total(dir, 1..=self.end));
        let mut told_at = Instant::now();
        loop {
            let next = ahead.next();
            if next.is_err() {
                // A block below that proves invalid is the one to tell of.
                self.settle(&mut pending, 0, keeper)?;
            }
            let Some((height, block)) = next? else { break };
            stop_if_interrupted(request.interrupt)?;
            let coins = answers.of_block(height)?;
            let existed = self.joined.existed.get(&height).map(Vec::as_slice).unwrap_or_default();
            let check_scripts = checks.needed(height);
            let context = ConnectContext { ancestry: dir.chain(), check_scripts };
            match judge.block(&block, &coins, existed, &context) {
                Ok(judged) => pending.push_back((Arc::clone(&block), judged)),
                Err(error) => {
                    // A block below that proves invalid is the one to tell of.
                    self.settle(&mut pending, 0, keeper)?;
                    return Err(self.refusal(&block, error));
                }
            }
            *(if check_scripts { &mut scripts.run } else { &mut scripts.assumed }) += 1;
            self.settle(&mut pending, if check_scripts { PENDING_MAX } else { 0 }, keeper)?;
            let counts = block.counts();
            progress = Progress {
                blocks: progress.blocks + 1,
                bytes: progress.bytes + counts.bytes,
                ..progress
            };
            if told_at.elapsed() >= PROGRESS_INTERVAL {
                told_at = Instant::now();
                request.observer.event(Event::Progress(Phase::Connect, progress));
            }
        }
        self.settle(&mut pending, 0, keeper)?;
        request.observer.event(Event::Progress(Phase::Connect, progress));
        answers.expect_end()?;
        Ok((scripts, progress.bytes))
    }

    /// Waits for verdicts until no more blocks are pending than so many.
    fn settle(
        &self,
        pending: &mut VecDeque<(Arc<PreparedBlock>, Judged)>,
        most: usize,
        keeper: &mut Option<&mut Keeper>,
    ) -> Result<(), SyncError> {
        while pending.len() > most {
            let Some((block, judged)) = pending.pop_front() else { break };
            let connected: Connected =
                judged.wait().map_err(|error| self.refusal(&block, error))?;
            if let Some(keeper) = keeper {
                keeper.put(vec![connected])?;
            }
        }
        Ok(())
    }

    /// Why a block was not taken.
    fn refusal(&self, block: &PreparedBlock, error: JudgeError) -> SyncError {
        let id = block.id();
        let told = match error {
            JudgeError::Refused(refused) => match self.told(block, refused) {
                Ok(error) => ChainstateError::Invalid { block: id, error },
                Err(error) => return error,
            },
            JudgeError::Script(what) => ChainstateError::Script { block: id, what },
            JudgeError::NoInterpreter(error) => error.into(),
        };
        told.into()
    }

    /// The rule that a block breaks, once it is known which of its outputs were there before.
    fn told(&self, block: &PreparedBlock, refused: Refused) -> Result<ConnectError, SyncError> {
        let (asked, below) = (Asked::of(&refused), HeightRange::new(1, block.id().height));
        let mut there = HashSet::new();
        if !asked.is_empty() && !below.is_empty() {
            let Work { request, dir, .. } = *self.work;
            let of = |block: CheckedBlock| asked.touched(&block.bytes());
            take_each(Phase::Connect, request, dir, &[below], &of, &mut |touched| {
                for (outpoint, made) in touched {
                    if made {
                        there.insert(outpoint)
                    } else {
                        there.remove(&outpoint)
                    };
                }
            })?;
        }
        Ok(refused.told(block, |outpoint| there.contains(outpoint)))
    }
}

/// Answers in the order of the chain: those of the join, and those that segments gave themselves.
struct Stream<'a> {
    walk: &'a Walk<'a>,
    joined: Merging<'a, AnswersForm>,
    /// Segments whose own answers were not read yet.
    segments: core::slice::Iter<'a, Done<Gathered>>,
    own: Vec<u8>,
    /// Where in these the next one begins.
    at: usize,
    /// Up to which height, exclusive, they reach.
    until: Height,
}

impl<'a> Stream<'a> {
    fn open(walk: &'a Walk<'a>) -> Result<Self, SyncError> {
        let (request, runs) = (walk.work.request, walk.joined.answers.clone());
        let budget = MergeBudget::new(request.memory_bytes / 8);
        let go_on = || stop_if_interrupted(request.interrupt);
        let mut joined = Merging::open(request.workdir, runs, budget, &go_on)?;
        joined.next()?;
        Ok(Self { walk, joined, segments: walk.done.iter(), own: Vec::new(), at: 0, until: 1 })
    }

    /// Those of the next block.
    fn of_block(&mut self, height: Height) -> Result<Answers, SyncError> {
        let mut joined = Vec::new();
        let is_of = |record: &&[u8]| record.starts_with(&height.to_be_bytes());
        while let Some(record) = self.joined.current().filter(is_of) {
            joined.extend_from_slice(record);
            self.joined.next()?;
        }
        while height >= self.until {
            let Some(done) = self.segments.next() else { return Err(self.damaged()) };
            let Some(run) = done.run(RunKind::Answers) else { return Err(self.damaged()) };
            (self.own, self.at) = (self.walk.workdir.read_run(run)?, 0);
            self.until = done.range.end;
        }
        let start = self.at;
        while let Some((record, rest)) = AnswerRecord::read(&self.own[self.at..])
            && record.height == height
        {
            self.at = self.own.len() - rest.len();
        }
        let range = HeightRange::new(height, height + 1);
        let answers = Answers::read(range, &[&joined, &self.own[start..self.at]]);
        answers.ok_or_else(|| self.damaged())
    }

    /// All of them were wanted.
    fn expect_end(self) -> Result<(), SyncError> {
        match self.joined.current().is_none() && self.at == self.own.len() {
            true => self.joined.close(),
            false => Err(self.damaged()),
        }
    }

    fn damaged(&self) -> SyncError {
        let file = self.walk.work.request.workdir.describe("");
        SyncError::Io(IoError::WorkdirDamaged { file })
    }
}
