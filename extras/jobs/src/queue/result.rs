//! [`SegmentResult`]: the result of a finished segment, encoded as an object.
//!
//! ```text
//! 8     41 50 55 53 44 4f 4e 45   "APUSDONE"
//! 4     version
//! 32    the run
//! 4     first height
//! 4     first height after
//! …     for each of the pass's runs (.run, .hints, .leaves): length (8) and bytes
//! …     the partial result
//! ```

use crate::queue::RunId;
use crate::queue::wire::{WireError, begin, open, read_range, write_range};
use apus_chain::{CoinSum, HeightRange, Reader};
use apus_sync::engines::pass::FinishedSegment;
use apus_sync::machines::{AnyPartial, PartialBytes};
use std::ops::Range;

/// First bytes of a segment's result.
const MAGIC: &[u8; 8] = b"APUSDONE";

const WHAT: &str = "the result";

/// Decodes the partial result of a segment.
pub(crate) type ReadPartial = fn(&mut Reader<'_>) -> Option<AnyPartial>;

/// The encoding of a segment's runs and partial result.
pub(crate) struct SegmentResult;

impl SegmentResult {
    /// Encodes the result of a segment.
    pub(crate) fn write(
        run: RunId,
        range: HeightRange,
        finished: &FinishedSegment<PartialBytes>,
    ) -> Vec<u8> {
        let runs: usize = finished.runs.iter().map(Vec::len).sum();
        let mut out = begin(MAGIC);
        out.reserve(runs + (64 << 10));
        out.extend_from_slice(&run.0);
        write_range(range, &mut out);
        for bytes in &finished.runs {
            out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        out.extend_from_slice(&finished.partial.bytes);
        out
    }

    /// Decodes a result, which must be of this run and these heights, with `runs` runs and a partial result that
    /// `read` decodes. Keeps the longest run in place instead of copying it: it makes up nearly the whole object, and
    /// so determines the memory use.
    pub(crate) fn read(
        mut bytes: Vec<u8>,
        run: RunId,
        range: HeightRange,
        runs: usize,
        read: ReadPartial,
    ) -> Result<FinishedSegment<AnyPartial>, WireError> {
        let damaged = || WireError::Damaged { what: WHAT };
        let mut reader = open(&bytes, MAGIC, WHAT)?;
        let found = RunId(*reader.array().map_err(|_| damaged())?);
        if found != run {
            return Err(WireError::OtherRun { what: WHAT, found, wanted: run });
        }
        if read_range(&mut reader).ok_or_else(damaged)? != range {
            return Err(WireError::OtherJob { what: WHAT });
        }
        let (places, partial) = Self::body(&mut reader, runs, read).ok_or_else(damaged)?;
        if partial.ranges != [range] {
            return Err(WireError::OtherJob { what: WHAT });
        }
        let longest = (0..runs).max_by_key(|run| places[*run].len());
        let copied = |(run, place): (usize, &Range<usize>)| match Some(run) == longest {
            true => Vec::new(),
            false => bytes[place.clone()].to_vec(),
        };
        let mut runs: Vec<Vec<u8>> = places.iter().enumerate().map(copied).collect();
        if let Some(longest) = longest {
            bytes.truncate(places[longest].end);
            bytes.drain(..places[longest].start);
            runs[longest] = bytes;
        }
        Ok(FinishedSegment { partial, runs })
    }

    /// Decodes the places of the runs and the partial result after them.
    fn body(
        reader: &mut Reader<'_>,
        runs: usize,
        read: ReadPartial,
    ) -> Option<(Vec<Range<usize>>, AnyPartial)> {
        let mut places = Vec::with_capacity(runs);
        for _ in 0..runs {
            let length = usize::try_from(reader.u64().ok()?).ok()?;
            let start = reader.position();
            reader.take(length).ok()?;
            places.push(start..reader.position());
        }
        let partial = read(reader)?;
        (reader.remaining() == 0).then_some((places, partial))
    }
}

// Undo data of blocks, as sent by the machines that connected them: records by ascending height, in objects of whole
// records.

const UNDO: &str = "the undo data of the segment";

/// The undo data of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentUndo<'u> {
    /// The undo data in Core's encoding (`undo.h`, `CBlockUndo`).
    pub(crate) undo: &'u [u8],
    /// Sum of all coins that the block spends, under the run's key.
    pub(crate) spent: CoinSum,
}

impl<'u> SentUndo<'u> {
    /// Appends the encoded record.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.undo.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.spent.to_bytes());
        out.extend_from_slice(self.undo);
    }

    /// Decodes all records of an object.
    pub(crate) fn all(bytes: &'u [u8]) -> Result<Vec<Self>, WireError> {
        let (mut reader, mut all) = (Reader::new(bytes), Vec::new());
        while reader.remaining() > 0 {
            all.push(Self::read(&mut reader).ok_or(WireError::Damaged { what: UNDO })?);
        }
        Ok(all)
    }

    fn read(reader: &mut Reader<'u>) -> Option<Self> {
        let length = reader.u32().ok()?;
        let spent = CoinSum::from_bytes(*reader.array().ok()?);
        Some(Self { undo: reader.take(length as usize).ok()?, spent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_sync::engines::pass::{PartialResult, Work};
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A partial result that holds only its heights.
    #[derive(Debug, PartialEq)]
    struct Covers([HeightRange; 1]);

    impl PartialResult for Covers {
        type MergeError = std::convert::Infallible;

        fn ranges(&self) -> &[HeightRange] {
            &self.0
        }

        fn merge(&mut self, _: &Self) -> Result<(), Self::MergeError> {
            unreachable!("nothing is merged here")
        }

        fn write(&self, out: &mut Vec<u8>) {
            write_range(self.0[0], out);
        }

        fn read(reader: &mut Reader<'_>) -> Option<Self> {
            Some(Self([read_range(reader)?]))
        }

        fn done(&self) -> Work {
            Work::default()
        }
    }

    const RUN: RunId = RunId([1; 32]);
    const RANGE: HeightRange = HeightRange { start: 7, end: 9 };

    fn written(covered: HeightRange, runs: &[Vec<u8>]) -> Vec<u8> {
        let finished = FinishedSegment { partial: Covers([covered]), runs: runs.to_vec() };
        SegmentResult::write(RUN, RANGE, &PartialBytes::of(finished))
    }

    fn read(bytes: Vec<u8>, runs: usize) -> Result<FinishedSegment<Covers>, WireError> {
        read_as(bytes, RUN, RANGE, runs)
    }

    fn read_as(
        bytes: Vec<u8>,
        run: RunId,
        range: HeightRange,
        runs: usize,
    ) -> Result<FinishedSegment<Covers>, WireError> {
        let read = SegmentResult::read(bytes, run, range, runs, AnyPartial::read::<Covers>);
        read.map(|FinishedSegment { partial, runs }| FinishedSegment {
            partial: partial.into(),
            runs,
        })
    }

    proptest! {
        #[test]
        fn results_round_trip(
            runs in vec(vec(any::<u8>(), 0..40), 0..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let bytes = written(RANGE, &runs);
            let found = read(bytes.clone(), runs.len()).unwrap();
            prop_assert_eq!(found.partial, Covers([RANGE]));
            prop_assert_eq!(&found.runs, &runs);
            for wrong in [bytes[..cut.index(bytes.len())].to_vec(), [&bytes[..], &[0]].concat()] {
                prop_assert!(read(wrong, runs.len()).is_err());
            }
            prop_assert!(read(bytes.clone(), runs.len() + 1).is_err());
            let other = read_as(bytes, RunId([2; 32]), RANGE, runs.len());
            let is_other = matches!(other, Err(WireError::OtherRun { .. }));
            prop_assert!(is_other);
        }
    }

    #[test]
    fn other_heights_are_refused() {
        let other = HeightRange { start: 7, end: 8 };
        let refused = |result: Result<FinishedSegment<Covers>, WireError>| {
            assert_eq!(result.err(), Some(WireError::OtherJob { what: WHAT }));
        };
        refused(read(written(other, &[vec![1]]), 1));
        refused(read_as(written(RANGE, &[vec![1]]), RUN, other, 1));
    }
}

#[cfg(test)]
mod undo_tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_round_trip(all in vec((vec(any::<u8>(), 0..50), any::<[u8; 8]>()), 0..6)) {
            let record = |(undo, sum): &'_ (Vec<u8>, [u8; 8])| (undo.clone(), CoinSum::from_bytes(*sum));
            let all: Vec<(Vec<u8>, CoinSum)> = all.iter().map(record).collect();
            let records: Vec<_> = all.iter().map(|(undo, spent)| SentUndo { undo, spent: *spent }).collect();
            let mut bytes = Vec::new();
            let mut ends = vec![0];
            for record in &records {
                record.write(&mut bytes);
                ends.push(bytes.len());
            }
            prop_assert_eq!(SentUndo::all(&bytes), Ok(records.clone()));
            for length in 0..bytes.len() {
                prop_assert_eq!(SentUndo::all(&bytes[..length]).is_ok(), ends.contains(&length));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
            let _ = SentUndo::all(&bytes);
        }
    }
}
