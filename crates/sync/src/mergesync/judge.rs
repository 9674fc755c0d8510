//! The second walk: blocks with the coins that the join found for them.
//!
//! Blocks are read, checked and prepared by worker threads, and judged in ascending height, as their
//! answers come. So the first that is refused is the lowest.

use super::join::Joined;
use crate::connect::keeper::Keeper;
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::{Request, Scripts};
use crate::runs::{Answers as AnswersForm, MergeBudget, Merging};
use crate::source::ChainSource;
use crate::supply::in_order::{InOrder, take_in_order};
use crate::supply::ranges::take_each;
use crate::supply::total;
use crate::workdir::{Done, Workdir};
use apus_chain::{CheckedBlock, CoinSumKey, Height, HeightRange, OutPoint, ScriptChecks, Txid};
use apus_engine::connect::{ConnectContext, Connected, PreparedBlock};
use apus_engine::mergesync::{
    AnswerRecord, Answers, Gather, Gathered, Join, JoinSink, Judge, JudgeError, Judged, MadeRecord,
    Refused, SpentRecord,
};
use apus_engine::pass::{Pass, RunKind};
use apus_engine::script::ScriptPool;
use apus_engine::utxo::{ChainstateError, CoinBytes};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Blocks whose scripts may be running while the next one is judged.
const PENDING_MAX: usize = 4;

/// What judging needs beside the blocks.
pub(super) struct Walk<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) dir: &'a dyn ChainSource,
    pub(super) workdir: &'a Workdir<'a>,
    pub(super) done: &'a [Done<Gathered>],
    pub(super) joined: &'a Joined,
    pub(super) checks: &'a ScriptChecks,
    pub(super) pool: Option<&'a ScriptPool>,
    pub(super) sum_key: CoinSumKey,
    pub(super) end: Height,
}

impl Walk<'_> {
    /// Judges all blocks, and gives them to what keeps them.
    pub(super) fn judge(&self, mut keeper: Option<&mut Keeper>) -> Result<Scripts, SyncError> {
        let (request, dir) = (self.request, self.dir);
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
        let (request, dir) = (self.request, self.dir);
        let judge = Judge {
            params: request.params,
            scripts: self.pool,
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
            let coins = Answers::of_block(height, answers.of_block(height)?);
            let existed = self.joined.existed.get(&height).map(Vec::as_slice).unwrap_or_default();
            let check_scripts = self.checks.needed(height);
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
    fn told(
        &self,
        block: &PreparedBlock,
        refused: Refused,
    ) -> Result<apus_engine::connect::ConnectError, SyncError> {
        let txids: HashSet<Txid> = refused.asked_before.iter().map(|name| name.txid).collect();
        let height = block.id().height;
        if txids.is_empty() || height == 1 {
            return Ok(refused.told(block, |_| false));
        }
        let pass = Gather::new(self.request.params, self.dir.chain()).only(txids);
        let of = |block: CheckedBlock| {
            let height = block.height();
            let mut segment = pass.begin(HeightRange::new(height, height + 1)).ok()?;
            pass.block(&mut segment, &block.bytes()).ok()?;
            Some(pass.finish(segment).ok()?.runs)
        };
        let mut all = Vec::new();
        let below = [HeightRange::new(1, height)];
        let (request, dir) = (self.request, self.dir);
        take_each(Phase::Connect, request, dir, &below, &of, &mut |runs| all.extend(runs))?;
        let there = survivors(&all);
        Ok(refused.told(block, |outpoint| there.contains(outpoint)))
    }
}

/// The coins that survive all these runs of made and spent coins.
fn survivors(all: &[Vec<Vec<u8>>]) -> BTreeSet<OutPoint> {
    let (mut made, mut spent) = (Vec::new(), Vec::new());
    for runs in all {
        let (mut coins, mut spends) = (&runs[0][..], &runs[1][..]);
        while let Some((record, rest)) = MadeRecord::read(coins) {
            made.push(record);
            coins = rest;
        }
        while let Some((record, rest)) = SpentRecord::read(spends) {
            spent.push(record);
            spends = rest;
        }
    }
    made.sort_by_key(|record| record.outpoint);
    spent.sort_by_key(|record| record.outpoint);
    let mut survivors = Survivors::default();
    let mut join = Join::new(&mut survivors);
    let mut spent = spent.iter().peekable();
    for record in &made {
        while let Some(spend) = spent.next_if(|spend| spend.outpoint < record.outpoint) {
            let Ok(()) = join.spent(spend);
        }
        let Ok(()) = join.made(record);
    }
    for spend in spent {
        let Ok(()) = join.spent(spend);
    }
    let Ok(()) = join.finish();
    survivors.0
}

#[derive(Default)]
struct Survivors(BTreeSet<OutPoint>);

impl JoinSink for Survivors {
    type Error = core::convert::Infallible;

    fn answer(&mut self, _: Height, _: u32, _: &[u8]) -> Result<(), Self::Error> {
        Ok(())
    }

    fn survives(
        &mut self,
        outpoint: &OutPoint,
        _: Height,
        _: u32,
        _: &[u8],
    ) -> Result<(), Self::Error> {
        self.0.insert(*outpoint);
        Ok(())
    }

    fn exists(&mut self, _: Height, _: &OutPoint) -> Result<(), Self::Error> {
        Ok(())
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
        let (request, runs) = (walk.request, walk.joined.answers.clone());
        let budget = MergeBudget::new(request.memory_bytes / 8);
        let go_on = || stop_if_interrupted(request.interrupt);
        let mut joined = Merging::open(request.workdir, runs, budget, &go_on)?;
        joined.next()?;
        Ok(Self { walk, joined, segments: walk.done.iter(), own: Vec::new(), at: 0, until: 1 })
    }

    /// Those of the next block.
    fn of_block(&mut self, height: Height) -> Result<Vec<(u32, CoinBytes)>, SyncError> {
        let mut coins = Vec::new();
        while let Some(bytes) = self.joined.current() {
            let (record, _) = AnswerRecord::read(bytes).ok_or_else(|| self.damaged())?;
            if record.height != height {
                break;
            }
            coins.push(self.coin(&record)?);
            self.joined.next()?;
        }
        while height >= self.until {
            let Some(done) = self.segments.next() else { return Err(self.damaged()) };
            let Some(run) = done.run(RunKind::Answers) else { return Err(self.damaged()) };
            (self.own, self.at) = (self.walk.workdir.read_run(run)?, 0);
            self.until = done.range.end;
        }
        while self.at < self.own.len() {
            let bytes = &self.own[self.at..];
            let (record, rest) = AnswerRecord::read(bytes).ok_or_else(|| self.damaged())?;
            if record.height != height {
                break;
            }
            coins.push(self.coin(&record)?);
            self.at = self.own.len() - rest.len();
        }
        Ok(coins)
    }

    /// All of them were wanted.
    fn expect_end(self) -> Result<(), SyncError> {
        match self.joined.current().is_none() && self.at == self.own.len() {
            true => self.joined.close(),
            false => Err(self.damaged()),
        }
    }

    fn coin(&self, record: &AnswerRecord<'_>) -> Result<(u32, CoinBytes), SyncError> {
        let coin = CoinBytes::read(record.coin).map_err(|_| self.damaged())?;
        Ok((record.place, coin))
    }

    fn damaged(&self) -> SyncError {
        let file = self.walk.request.workdir.describe("");
        SyncError::Io(IoError::WorkdirDamaged { file })
    }
}
