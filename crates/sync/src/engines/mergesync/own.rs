//! [`OwnRuns`]: the records that segments of the first walk left to the second walk for their own blocks only.
//!
//! The first thread that requests one of a segment's blocks reads the segment's runs; they are dropped with its
//! last block. Threads request blocks in any order.

use crate::engines::mergesync::{
    Fingerprint, FirstPass, PrevoutRecord, SegmentSummary, SpendSummary,
};
use crate::error::SyncError;
use crate::workdir::{FinishedRange, Workdir};
use apus_chain::{Height, HeightRange};
use core::ops::Range;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The segments' runs for their own blocks.
pub(super) struct OwnRuns<'a> {
    workdir: &'a Workdir<'a>,
    done: &'a [FinishedRange<SegmentSummary>],
    segments: Vec<Mutex<SegmentRuns<'a>>>,
}

/// A segment with blocks that no thread has requested yet.
struct SegmentRuns<'a> {
    own: Option<Arc<OwnRecords<'a>>>,
    /// Number of its blocks that no thread has requested.
    left: u32,
}

/// A segment's records for its own blocks.
struct OwnRecords<'a> {
    range: HeightRange,
    /// Coins for inputs.
    answers: Cow<'a, [u8]>,
    fingerprints: Cow<'a, [u8]>,
    /// The blocks' spend summaries; empty if none were kept.
    claims: Cow<'a, [u8]>,
    /// Where the answers and the summaries of each block begin, and where the last ones end.
    places: Vec<[usize; 2]>,
    waiting: Cow<'a, [u8]>,
    /// Where the bytes of each waiting block are.
    waiting_at: BTreeMap<Height, Range<usize>>,
}

/// The records of some blocks of a segment.
pub(super) struct BlockRecords<'a> {
    own: Arc<OwnRecords<'a>>,
    range: HeightRange,
}

impl<'a> OwnRuns<'a> {
    /// Creates the value for the blocks from a height on.
    pub(super) fn new(
        workdir: &'a Workdir<'a>,
        done: &'a [FinishedRange<SegmentSummary>],
        from: Height,
    ) -> Self {
        let left = |done: &FinishedRange<SegmentSummary>| {
            done.range.end.saturating_sub(done.range.start.max(from))
        };
        let segment = |done| Mutex::new(SegmentRuns { own: None, left: left(done) });
        Self { workdir, done, segments: done.iter().map(segment).collect() }
    }

    /// Returns the records of a range's blocks, by segment. Each block must be requested once.
    pub(super) fn take(&self, range: HeightRange) -> Result<Vec<BlockRecords<'a>>, SyncError> {
        let (mut taken, mut height) = (Vec::new(), range.start);
        while height < range.end {
            let at = self.done.partition_point(|done| done.range.end <= height);
            let done = self.done.get(at).filter(|done| done.range.contains(height));
            let end = range.end.min(done.ok_or_else(|| self.workdir.damaged())?.range.end);
            taken.push(self.take_of(at, HeightRange::new(height, end))?);
            height = end;
        }
        Ok(taken)
    }

    fn take_of(&self, at: usize, range: HeightRange) -> Result<BlockRecords<'a>, SyncError> {
        let mut segment = self.segments[at].lock();
        let own = match segment.own.take() {
            Some(own) => own,
            None => Arc::new(OwnRecords::read(self.workdir, &self.done[at])?),
        };
        segment.left = segment.left.saturating_sub(range.count());
        if segment.left > 0 {
            segment.own = Some(Arc::clone(&own));
        }
        Ok(BlockRecords { own, range })
    }
}

impl<'a> OwnRecords<'a> {
    fn read(
        workdir: &'a Workdir<'a>,
        done: &'a FinishedRange<SegmentSummary>,
    ) -> Result<Self, SyncError> {
        let read = |kind| {
            let run = done.run(kind).ok_or_else(|| workdir.damaged())?;
            workdir.read_run(run)
        };
        let (answers, claims) = (read(FirstPass::ANSWERS)?, read(FirstPass::CLAIMS)?);
        let (fingerprints, waiting) = (read(FirstPass::FINGERPRINTS)?, read(FirstPass::BLOCKS)?);
        let range = done.range;
        let waiting_at = WaitingBlock::places(range, &waiting).ok_or_else(|| workdir.damaged())?;
        let places = places(range, &answers, &claims).ok_or_else(|| workdir.damaged())?;
        if fingerprints.len() != range.count() as usize * Fingerprint::SIZE {
            return Err(workdir.damaged());
        }
        Ok(Self { range, answers, fingerprints, claims, places, waiting, waiting_at })
    }

    /// Index of a block within the segment.
    fn number(&self, height: Height) -> usize {
        (height - self.range.start) as usize
    }
}

/// Where the answers and the summaries of each block begin, and the end of both; `None` if they do not match
/// the segment's blocks exactly.
fn places(range: HeightRange, answers: &[u8], claims: &[u8]) -> Option<Vec<[usize; 2]>> {
    let mut places = Vec::with_capacity(range.count() as usize + 1);
    let (mut left, mut noted) = (answers, claims);
    for height in range.heights() {
        places.push([answers.len() - left.len(), claims.len() - noted.len()]);
        while let Some((record, rest)) = PrevoutRecord::read(left)
            && record.height == height
        {
            left = rest;
        }
        if !claims.is_empty() {
            (_, noted) = SpendSummary::read(noted)?;
        }
    }
    places.push([answers.len(), claims.len()]);
    (left.is_empty() && noted.is_empty()).then_some(places)
}

/// A block that waits for the second walk: height (4), length (4), bytes; numbers in big-endian.
pub(super) struct WaitingBlock<'b> {
    pub(super) height: Height,
    pub(super) raw: &'b [u8],
}

impl WaitingBlock<'_> {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        // A block has at most four million bytes.
        let length = self.raw.len() as u32;
        out.extend([self.height.to_be_bytes(), length.to_be_bytes()].concat());
        out.extend_from_slice(self.raw);
    }

    /// Where the bytes of each block of a run are; `None` if the run is invalid, or has a block twice or of another
    /// segment.
    fn places(range: HeightRange, run: &[u8]) -> Option<BTreeMap<Height, Range<usize>>> {
        let (mut places, mut at) = (BTreeMap::new(), 0);
        while at < run.len() {
            let (height, rest) = run[at..].split_first_chunk()?;
            let (length, rest) = rest.split_first_chunk()?;
            let (height, length) = (Height::from_be_bytes(*height), u32::from_be_bytes(*length));
            rest.get(..length as usize)?;
            let start = at + 8;
            at = start + length as usize;
            let is_other = !range.contains(height);
            if is_other || places.insert(height, start..at).is_some() {
                return None;
            }
        }
        Some(places)
    }
}

impl BlockRecords<'_> {
    /// The bytes of these blocks; `which` selects answers or summaries.
    fn part(&self, which: usize) -> Range<usize> {
        let of = |height| self.own.places[self.own.number(height)][which];
        of(self.range.start)..of(self.range.end)
    }

    /// Coins from the segment for the blocks' inputs.
    pub(super) fn answers(&self) -> &[u8] {
        &self.own.answers[self.part(0)]
    }

    /// The spend summary of each block, if it was kept.
    pub(super) fn claims(&self) -> impl Iterator<Item = (Height, Option<SpendSummary<'_>>)> {
        let mut rest = &self.own.claims[self.part(1)];
        self.range.heights().map(move |height| {
            let (claims, after) = SpendSummary::read(rest).unwrap_or_default();
            rest = after;
            (height, claims)
        })
    }

    /// The bytes of a block, if it waits.
    pub(super) fn waiting(&self, height: Height) -> Option<&[u8]> {
        Some(&self.own.waiting[self.own.waiting_at.get(&height)?.clone()])
    }

    /// The fingerprint of a block; `None` if it has none.
    pub(super) fn fingerprint(&self, height: Height) -> Option<Fingerprint> {
        let (prints, _) = self.own.fingerprints.as_chunks();
        self.range.contains(height).then(|| Fingerprint(prints[self.own.number(height)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks 5 to 7, the second of them without answers.
    #[test]
    fn records_of_other_blocks_are_refused() {
        let range = HeightRange::new(5, 8);
        let answers = |heights: &[Height]| {
            let mut out = Vec::new();
            for (height, place) in heights.iter().zip(0..) {
                PrevoutRecord { height: *height, place, coin: &[7; 3] }.write(&mut out);
            }
            out
        };
        let record = answers(&[5]).len();
        let mut claims = Vec::new();
        (0..3).for_each(|_| SpendSummary::write_none(&mut claims));
        let good = answers(&[5, 5, 7]);
        let expected = [[0, 0], [2 * record, 1], [2 * record, 2], [3 * record, 3]];
        assert_eq!(places(range, &good, &claims), Some(expected.to_vec()));
        let none = expected.map(|[answers, _]| [answers, 0]);
        assert_eq!(places(range, &good, &[]), Some(none.to_vec()));
        for bad in [&[4, 5][..], &[5, 8], &[5, 7, 6], &[9]] {
            assert_eq!(places(range, &answers(bad), &claims), None, "{bad:?}");
        }
        assert_eq!(places(range, &good[..good.len() - 1], &claims), None);
        assert_eq!(places(range, &good, &claims[1..]), None);
        assert_eq!(places(range, &good, &[&claims[..], &[0]].concat()), None);
    }

    #[test]
    fn waiting_blocks_are_found() {
        let range = HeightRange::new(5, 8);
        let run = |heights: &[Height]| {
            let mut out = Vec::new();
            heights.iter().for_each(|&height| {
                WaitingBlock { height, raw: &[7; 3] }.write(&mut out);
            });
            out
        };
        let places = |run: &[u8]| WaitingBlock::places(range, run).map(Vec::from_iter);
        assert_eq!(places(&run(&[7, 5])), Some(vec![(5, 19..22), (7, 8..11)]));
        assert_eq!(places(&[]), Some(vec![]));
        for bad in [&[4][..], &[8], &[6, 6]] {
            assert_eq!(places(&run(bad)), None, "{bad:?}");
        }
        let good = run(&[5]);
        assert!((1..good.len()).all(|length| places(&good[..length]).is_none()));
    }
}
