//! SwiftSync as the first [`Pass`].

use super::hints::elias_fano::{BitOrder, encode};
use super::{
    Finished, IndexHints, MergeError, Partial, Segment, SegmentHints, SwiftSync, SwiftSyncError,
    Verdict,
};
use crate::engines::pass::{FinishedSegment, PartialResult, Pass, RunKind, Work};
use apus_chain::{BlockBytes, Height, HeightRange, Reader};

impl Pass for SwiftSync {
    type Input = SegmentHints;
    type Segment = Segment;
    type Partial = Partial;
    type Verdict = Verdict;
    type Error = SwiftSyncError;

    const RUNS: &'static [RunKind] = &[RunKind::Coins, RunKind::Hints, RunKind::Leaves];

    fn begin(&self, hints: SegmentHints) -> Result<Segment, SwiftSyncError> {
        Ok(self.begin(hints))
    }

    fn block(&self, segment: &mut Segment, block: &BlockBytes<'_>) -> Result<(), SwiftSyncError> {
        self.block(segment, block)
    }

    fn finish(&self, segment: Segment) -> Result<FinishedSegment<Partial>, SwiftSyncError> {
        let Finished { partial, run, hints, leaves } = self.finish(segment)?;
        Ok(FinishedSegment { partial, runs: vec![run, encoded(&hints), leaves] })
    }

    fn nothing(&self) -> Partial {
        self.nothing()
    }

    fn conclude(&self, whole: &Partial, stop: Height) -> Result<Verdict, SwiftSyncError> {
        self.conclude(whole, stop)
    }
}

/// The hints of a segment as they stand in a BIP-456 file, one element after the other.
fn encoded(hints: &IndexHints) -> Vec<u8> {
    let mut out = Vec::new();
    for height in hints.range().heights() {
        let indices = hints.block(height).unwrap_or_default();
        encode(indices, BitOrder::MsbFirst, &mut out)
            .expect("a segment keeps ascending indices of outputs that fit in a block");
    }
    out
}

impl PartialResult for Partial {
    type MergeError = MergeError;

    fn ranges(&self) -> &[HeightRange] {
        self.ranges()
    }

    fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        self.merge(other)
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Self::read(reader)
    }

    fn done(&self) -> Work {
        let (counts, coins) = (&self.counts, self.survivors.coins);
        Work { blocks: counts.blocks, bytes: counts.bytes, coins }
    }
}
