//! [`AnswersInTurn`]: what is known of blocks before they are judged, for threads that take ranges of them.
//!
//! Coins come out of a merge of what the join found, in the order of the chain, and out of what segments
//! answered themselves. Ranges are claimed in that order too: a thread waits until those below have
//! taken theirs.

use super::join::memory_bytes;
use super::judge::Walk;
use crate::error::SyncError;
use crate::progress::stop_if_interrupted;
use crate::runs::{Answers as AnswersForm, KeyRange, MergeBudget, Merging, Runs};
use crate::workdir::{Done, RunInfo};
use apus_chain::{Height, HeightRange};
use apus_engine::mergesync::{AnswerRecord, Answers, Claims, Fingerprint, Gathered};
use apus_engine::pass::RunKind;
use std::borrow::Cow;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
pub(super) struct AnswersInTurn<'a> {
    state: Mutex<State<'a>>,
    moved: Condvar,
}

struct State<'a> {
    /// The height from which on the next range is taken.
    next: Height,
    /// None once it failed.
    stream: Option<Stream<'a>>,
}

/// What is known of the blocks of a range.
pub(super) struct OfRange {
    range: HeightRange,
    /// Coins that the join found.
    joined: Vec<u8>,
    /// Coins of their own segments.
    own: Vec<u8>,
    fingerprints: Vec<Fingerprint>,
    /// What its blocks claim, one after the other.
    claims: Vec<u8>,
}

impl OfRange {
    /// The coins; none where the records make no sense.
    pub(super) fn answers(&self) -> Option<Answers<'_>> {
        Answers::read(self.range, &[&self.joined, &self.own])
    }

    /// What each of its blocks claims, as far as it was noted.
    pub(super) fn claims(&self) -> impl Iterator<Item = (Height, Option<Claims<'_>>)> {
        let mut rest = &self.claims[..];
        self.range.heights().map(move |height| {
            let (claims, after) = Claims::read(rest).unwrap_or_default();
            rest = after;
            (height, claims)
        })
    }

    pub(super) fn fingerprint(&self, height: Height) -> Option<Fingerprint> {
        self.fingerprints.get(height.checked_sub(self.range.start)? as usize).copied()
    }
}

impl<'a> AnswersInTurn<'a> {
    /// For the blocks from a height on, out of the answers of a join.
    pub(super) fn open(
        walk: &'a Walk<'a>,
        joined: Vec<RunInfo>,
        from: Height,
    ) -> Result<Self, SyncError> {
        let state = State { next: from, stream: Some(Stream::open(walk, joined, from)?) };
        Ok(Self { state: Mutex::new(state), moved: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the blocks of a range, once those below it were taken.
    pub(super) fn take(&self, range: HeightRange) -> Result<OfRange, SyncError> {
        let wait = |state: &mut State<'_>| state.next < range.start;
        let state = self.moved.wait_while(self.lock(), wait);
        let mut state = Turn { state: state.unwrap_or_else(PoisonError::into_inner), of: self };
        // Who failed tells of it.
        let mut stream = state.state.stream.take().ok_or(SyncError::Interrupted)?;
        let taken = stream.of_range(range)?;
        state.state.stream = Some(stream);
        state.state.next = range.end;
        Ok(taken)
    }

    /// All of them were wanted.
    pub(super) fn expect_end(self) -> Result<(), SyncError> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.stream.map_or(Ok(()), Stream::expect_end)
    }
}

/// A thread's turn, which ends whatever happens.
struct Turn<'t, 'a> {
    state: MutexGuard<'t, State<'a>>,
    of: &'t AnswersInTurn<'a>,
}

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        if self.state.stream.is_none() {
            // Nothing more is to be had: all may go on, and see that.
            self.state.next = Height::MAX;
        }
        self.of.moved.notify_all();
    }
}

/// Answers in the order of the chain.
struct Stream<'a> {
    walk: &'a Walk<'a>,
    runs: Runs<'a, AnswersForm>,
    joined: Merging<'a, AnswersForm>,
    /// Segments that were not read yet.
    segments: core::slice::Iter<'a, Done<Gathered>>,
    /// What the segment at hand answers itself, and where in this the next record begins.
    own: Cow<'a, [u8]>,
    at: usize,
    /// The fingerprints of its blocks.
    fingerprints: Cow<'a, [u8]>,
    /// What they claim, and where in this the next block's claims begin; empty where nothing was noted.
    claims: Cow<'a, [u8]>,
    claims_at: usize,
    /// Its heights.
    range: HeightRange,
}

impl<'a> Stream<'a> {
    fn open(walk: &'a Walk<'a>, joined: Vec<RunInfo>, from: Height) -> Result<Self, SyncError> {
        let request = walk.work.request;
        let budget = MergeBudget::new(memory_bytes(request) / 8);
        let go_on = || stop_if_interrupted(request.interrupt);
        let runs = Runs::<AnswersForm>::open(request.workdir, joined, budget, &go_on)?;
        // The key is the height, and behind it the place.
        let mut joined = runs.part(KeyRange { from: u64::from(from) << 32, until: None })?;
        joined.next()?;
        let below = walk.done.partition_point(|done| done.range.end <= from);
        let mut stream = Self {
            walk,
            runs,
            joined,
            segments: walk.done[below..].iter(),
            own: Cow::default(),
            at: 0,
            fingerprints: Cow::default(),
            claims: Cow::default(),
            claims_at: 0,
            range: HeightRange::new(from, from),
        };
        if from <= walk.end {
            stream.go_to(from)?;
            stream.pass(from);
            stream.pass_claims(stream.range.start, from, &mut Vec::new())?;
        }
        Ok(stream)
    }

    /// Passes over what the segment at hand answers below a height. It.
    fn pass(&mut self, height: Height) -> &[u8] {
        let start = self.at;
        while let Some((record, rest)) = AnswerRecord::read(&self.own[self.at..])
            && record.height < height
        {
            self.at = self.own.len() - rest.len();
        }
        &self.own[start..self.at]
    }

    /// Passes over what blocks of the segment at hand claim, which are the next ones, and appends it to `out`.
    fn pass_claims(
        &mut self,
        from: Height,
        end: Height,
        out: &mut Vec<u8>,
    ) -> Result<(), SyncError> {
        if self.claims.is_empty() {
            (from..end).for_each(|_| Claims::write_none(out));
            return Ok(());
        }
        let start = self.claims_at;
        for _ in from..end {
            let (_, rest) =
                Claims::read(&self.claims[self.claims_at..]).ok_or_else(|| self.walk.damaged())?;
            self.claims_at = self.claims.len() - rest.len();
        }
        out.extend_from_slice(&self.claims[start..self.claims_at]);
        Ok(())
    }

    /// Those of the next blocks.
    fn of_range(&mut self, range: HeightRange) -> Result<OfRange, SyncError> {
        let (mut joined, mut own) = (Vec::new(), Vec::new());
        let is_below = |record: &&[u8]| record[..4] < range.end.to_be_bytes()[..];
        while let Some(record) = self.joined.current().filter(is_below) {
            joined.extend_from_slice(record);
            self.joined.next()?;
        }
        let mut fingerprints = Vec::with_capacity(range.count() as usize);
        let (mut height, mut claims) = (range.start, Vec::new());
        while height < range.end {
            self.go_to(height)?;
            let end = range.end.min(self.range.end);
            own.extend_from_slice(self.pass(end));
            self.pass_claims(height, end, &mut claims)?;
            let (prints, _) = self.fingerprints.as_chunks();
            let of = |height: Height| (height - self.range.start) as usize;
            let prints = prints.get(of(height)..of(end)).ok_or_else(|| self.walk.damaged())?;
            fingerprints.extend(prints.iter().map(|print| Fingerprint(*print)));
            height = end;
        }
        Ok(OfRange { range, joined, own, fingerprints, claims })
    }

    /// Reads the segment of a height.
    fn go_to(&mut self, height: Height) -> Result<(), SyncError> {
        while height >= self.range.end {
            if self.at < self.own.len() {
                return Err(self.walk.damaged());
            }
            let done = self.segments.next().ok_or_else(|| self.walk.damaged())?;
            let read = |kind| {
                let run = done.run(kind).ok_or_else(|| self.walk.damaged())?;
                self.walk.workdir.read_run(run)
            };
            (self.own, self.at) = (read(RunKind::Answers)?, 0);
            self.fingerprints = read(RunKind::Fingerprints)?;
            (self.claims, self.claims_at) = (read(RunKind::Claims)?, 0);
            self.range = done.range;
        }
        Ok(())
    }

    /// All of them were wanted.
    fn expect_end(self) -> Result<(), SyncError> {
        match self.joined.current().is_none() && self.at == self.own.len() {
            true => self.runs.close(),
            false => Err(self.walk.damaged()),
        }
    }
}
