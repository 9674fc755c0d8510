//! Finds which block is refused, and why: the lowest invalid block, for the reason that Core gives.

use super::{Batches, JoinFor, Segments};
use crate::engines::in_order::ChainstateError;
use crate::engines::mergesync::base_set::BaseSet;
use crate::engines::mergesync::join_result::{Record, division_of};
use crate::engines::mergesync::join_runs::JOINED_RUNS;
use crate::engines::mergesync::walk::{BlockTakers, ConnectProgress, ConnectWalk};
use crate::engines::mergesync::{FirstPass, MergeWork, OutputRecord, SpendRecord};
use crate::error::{InvalidBlock, SyncError};
use crate::progress::stop_if_interrupted;
use crate::runs::{MergeBudget, OutputForm, SpendForm, merge_runs};
use crate::supply::in_order::take_in_order;
use crate::workdir::plan::Plan;
use crate::workdir::{Workdir, runs_of};
use apus_chain::{CheckedBlock, Height, HeightRange, OutPoint};
use apus_engine::connect::ConnectContext;
use apus_engine::connect::rules::{asks_for_bip30, bip30_error, may_repeat, outputs_of};
use std::collections::HashSet;
use std::time::Instant;

/// Whether blocks passed the second walk.
type Verdict = Result<(), SyncError>;

/// Finds the lowest refused block above `base`, and returns its error. `error` may be about a block that the first
/// walk refused: the blocks below it must be validated first. `validate` gets their parts of the segments. It fails
/// if the first walk fails, and otherwise returns the second walk's verdict.
pub fn lowest(
    error: SyncError,
    (base, segments): (Height, &[HeightRange]),
    mut validate: impl FnMut(&[HeightRange]) -> Result<Verdict, SyncError>,
) -> SyncError {
    let mut error = error;
    loop {
        let refused = InvalidBlock::of(&error).map(|refused| refused.block.height);
        let below = refused.map(|height| between(base, segments, height)).unwrap_or_default();
        if below.is_empty() {
            return error;
        }
        match validate(&below) {
            // This block is lower, but perhaps not the lowest.
            Err(lower) if InvalidBlock::of(&lower).is_some() => error = lower,
            Err(other) => return other,
            Ok(validated) => return validated.err().unwrap_or(error),
        }
    }
}

/// The segments between a base and a higher block: the last one is cut below that block, and the first above the base.
fn between(base: Height, segments: &[HeightRange], block: Height) -> Vec<HeightRange> {
    let cut = |range: &HeightRange| {
        let (start, end) = (range.start.max(base + 1), range.end.min(block));
        (start < end).then(|| HeightRange::new(start, end))
    };
    segments.iter().filter_map(cut).collect()
}

impl MergeWork<'_> {
    /// Fails with the error of a block that another machine refused in the second walk, for the reason that Core
    /// gives.
    pub fn refuse<T>(
        &self,
        workdir: &Workdir<'_>,
        plan: &Plan,
        error: SyncError,
    ) -> Result<T, SyncError> {
        Batches { work: self, workdir, plan, base: BaseSet::default(), keeper: None }.refuse(error)
    }
}

impl Batches<'_, '_> {
    /// Returns the error of the lowest refused block of a batch, given the error of the first walk.
    pub(super) fn lowest(&self, error: SyncError) -> SyncError {
        lowest(error, (self.base.at.height, &self.plan.segments), |below| {
            let done = self.gather_below(below)?;
            Ok(self.validate_all(done).or_else(|error| self.refuse(error)))
        })
    }

    /// Runs the first walk over parts of segments, reusing finished segments.
    fn gather_below(&self, segments: &[HeightRange]) -> Result<Segments, SyncError> {
        let (_, mut done) = Workdir::resume::<FirstPass>(self.work.request.env.workdir, self.plan)?;
        let is_within = |range: HeightRange| {
            let is_around =
                |segment: &HeightRange| segment.start <= range.start && range.end <= segment.end;
            segments.iter().any(is_around)
        };
        done.retain(|done| is_within(done.range));
        self.work.gather(self.workdir, self.plan, &self.base, Some(segments), done, None)
    }

    /// Validates the blocks of some segments above the base, only to find out whether they pass.
    fn validate_all(&self, done: Segments) -> Result<(), SyncError> {
        let joined = self.join(&done, JoinFor::Set(None), false)?;
        let (base, end) = (self.base.at.height, done.last().map_or(0, |last| last.range.end - 1));
        let division = division_of(&done);
        let record = Record { joined, base, end, division, validated: base, assumed: 0 };
        let mut progress = ConnectProgress { record, durable: false, saved_at: Instant::now() };
        let (work, workdir, plan) = (self.work, self.workdir, self.plan);
        let walk = ConnectWalk { work, workdir, plan, done: &done };
        walk.validate(&mut progress, BlockTakers::default()).map(drop)
    }

    /// Fails with the error of a block that the second walk refused, for the reason that Core gives. Core asks
    /// first whether an output of the block exists already (BIP-30). Where no valid block can repeat a transaction,
    /// the join does not find that out, because segments keep no record of coins that they pair themselves. But
    /// there each coin is made once and spent once, so the records of the blocks below show which coins they left.
    pub(super) fn refuse<T>(&self, error: SyncError) -> Result<T, SyncError> {
        let MergeWork { request, dir, .. } = *self.work;
        let Some(InvalidBlock { block, .. }) = InvalidBlock::of(&error) else { return Err(error) };
        let context = ConnectContext { ancestry: dir.chain(), check_scripts: false };
        let params = request.env.params;
        if may_repeat(params) || !asks_for_bip30(params, block, &context) {
            return Err(error);
        }
        let outputs = self.outputs_of(block.height)?;
        let asked: HashSet<OutPoint> = outputs.iter().map(|(_, outpoint)| *outpoint).collect();
        let below = between(self.base.at.height, &self.plan.segments, block.height);
        let done = self.gather_below(&below)?;
        let mut there = HashSet::new();
        let (storage, one) = (request.env.workdir, MergeBudget::new(0));
        let go_on = || stop_if_interrupted(request.env.interrupt);
        let damaged = || self.workdir.damaged();
        let [made, spent] = JOINED_RUNS.map(|kind| runs_of(&done, kind));
        for run in made.into_iter().chain(self.base.runs.iter().cloned()) {
            merge_runs::<OutputForm>(storage, vec![run], one, &|_| go_on(), &mut |record| {
                let (record, _) = OutputRecord::read(record).ok_or_else(damaged)?;
                let OutputRecord { txid, .. } = record;
                let outpoints = record.coins().map(|coin| OutPoint { txid, vout: coin.vout });
                there.extend(outpoints.filter(|outpoint| asked.contains(outpoint)));
                go_on()
            })?;
        }
        for run in spent {
            merge_runs::<SpendForm>(storage, vec![run], one, &|_| go_on(), &mut |record| {
                there.remove(&SpendRecord::read(record).ok_or_else(damaged)?.0.outpoint);
                go_on()
            })?;
        }
        let exists = |(_, outpoint): &(usize, OutPoint)| there.contains(outpoint);
        let repeated = outputs.into_iter().find(exists).map(bip30_error);
        Err(repeated.map_or(error, |error| ChainstateError::Invalid { block, error }.into()))
    }

    /// Every output of a block, with the index of its transaction.
    fn outputs_of(&self, height: Height) -> Result<Vec<(usize, OutPoint)>, SyncError> {
        let MergeWork { request, dir, .. } = *self.work;
        let only = (HeightRange::new(height, height + 1), self.plan.identity.unseen);
        let of = |block: CheckedBlock| (outputs_of(block.bytes().txs()), 0);
        let mut outputs = Vec::new();
        take_in_order(&request.env, dir, only, &of, |ahead| {
            outputs.extend(ahead.next()?.into_iter().flat_map(|(_, (of_block, _))| of_block));
            Ok(())
        })?;
        Ok(outputs)
    }
}
