//! [`AnswersInTurn`]: what is known of blocks before they are judged, for threads that take ranges of them.
//!
//! Coins are what the join found, and what [segments answered themselves](OwnRuns). Ranges are claimed in the order of
//! the chain, and threads [follow one another](RunLanes) through what the join left: so many runs, each in that order.

use super::join_runs::memory_bytes;
use super::own::{OfBlocks, OwnRuns};
use super::walk::JudgeWalk;
use crate::engines::mergesync::{Answers, Claims, Fingerprint};
use crate::error::SyncError;
use crate::progress::stop_if_interrupted;
use crate::runs::{Answers as AnswersForm, KeyRange, LanePiece, Lot, MergeBudget, RunLanes, Runs};
use crate::workdir::RunInfo;
use apus_chain::{Height, HeightRange};

/// See the module.
pub(super) struct AnswersInTurn<'a> {
    walk: &'a JudgeWalk<'a>,
    joined: RunLanes<'a, AnswersForm>,
    own: OwnRuns<'a>,
}

/// What is known of the blocks of a range.
pub(super) struct OfRange<'a> {
    range: HeightRange,
    /// Coins that the join found.
    joined: Vec<Lot>,
    /// What their own segments left.
    own: Vec<OfBlocks<'a>>,
}

impl OfRange<'_> {
    /// The coins; none where the records make no sense.
    pub(super) fn answers(&self) -> Option<Answers<'_>> {
        let joined = self.joined.iter().flat_map(Lot::pieces).map(LanePiece::bytes);
        let runs: Vec<&[u8]> = joined.chain(self.own.iter().map(OfBlocks::answers)).collect();
        Answers::read(self.range, &runs)
    }

    /// What each of its blocks claims, as far as it was noted.
    pub(super) fn claims(&self) -> impl Iterator<Item = (Height, Option<Claims<'_>>)> {
        self.own.iter().flat_map(OfBlocks::claims)
    }

    pub(super) fn fingerprint(&self, height: Height) -> Option<Fingerprint> {
        self.own.iter().find_map(|own| own.fingerprint(height))
    }
}

/// The first key of a height: behind it stands the place.
fn key_of(height: Height) -> u64 {
    u64::from(height) << 32
}

impl<'a> AnswersInTurn<'a> {
    /// For the blocks from a height on, out of the answers of a join.
    pub(super) fn open(
        walk: &'a JudgeWalk<'a>,
        joined: Vec<RunInfo>,
        from: Height,
    ) -> Result<Self, SyncError> {
        let request = walk.work.request;
        let budget = MergeBudget::new(memory_bytes(&request.env) / 4).by(request.env.threads);
        let go_on = || stop_if_interrupted(request.env.interrupt);
        let runs = Runs::<AnswersForm>::open(request.env.workdir, joined, budget, &go_on)?;
        let joined = RunLanes::open(runs, key_of(from), request.env.threads)?;
        Ok(Self { walk, joined, own: OwnRuns::new(walk, from) })
    }

    /// What is known of the blocks of a range, once those below it were taken.
    pub(super) fn take(&self, range: HeightRange) -> Result<OfRange<'a>, SyncError> {
        let keys = KeyRange { from: key_of(range.start), until: Some(key_of(range.end)) };
        Ok(OfRange { range, joined: self.joined.take(keys)?, own: self.own.take(range)? })
    }

    /// All of them were wanted.
    pub(super) fn expect_end(mut self) -> Result<(), SyncError> {
        match self.joined.is_at_end()? {
            true => self.joined.close(),
            false => Err(self.walk.damaged()),
        }
    }
}
