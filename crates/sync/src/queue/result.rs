//! [`SegmentResult`]: what a finished segment leaves, as an object.

use super::RunId;
use super::wire::{WireError, begin, open, read_range, write_range};
use apus_chain::{HeightRange, Reader};
use apus_engine::pass::{FinishedSegment, PartialResult};

/// First bytes of a segment's result.
const MAGIC: &[u8; 8] = b"APUSDONE";

const WHAT: &str = "the result";

/// What a segment leaves, with whose it is.
pub(crate) struct SegmentResult;

impl SegmentResult {
    /// The byte form.
    pub(crate) fn write<P: PartialResult>(
        run: RunId,
        range: HeightRange,
        finished: &FinishedSegment<P>,
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
        finished.partial.write(&mut out);
        out
    }

    /// Reads the byte form, which must be of this run and these heights and have so many runs.
    pub(crate) fn read<P: PartialResult>(
        bytes: &[u8],
        run: RunId,
        range: HeightRange,
        runs: usize,
    ) -> Result<FinishedSegment<P>, WireError> {
        let damaged = || WireError::Damaged { what: WHAT };
        let mut reader = open(bytes, MAGIC, WHAT)?;
        let found = RunId(*reader.array().map_err(|_| damaged())?);
        if found != run {
            return Err(WireError::OtherRun { what: WHAT, found, wanted: run });
        }
        if read_range(&mut reader).ok_or_else(damaged)? != range {
            return Err(WireError::OtherJob { what: WHAT });
        }
        let finished: FinishedSegment<P> = Self::body(&mut reader, runs).ok_or_else(damaged)?;
        match finished.partial.ranges() == [range] {
            true => Ok(finished),
            false => Err(WireError::OtherJob { what: WHAT }),
        }
    }

    fn body<P: PartialResult>(reader: &mut Reader<'_>, runs: usize) -> Option<FinishedSegment<P>> {
        let mut taken = Vec::with_capacity(runs);
        for _ in 0..runs {
            let length = usize::try_from(reader.u64().ok()?).ok()?;
            taken.push(reader.take(length).ok()?.to_vec());
        }
        let partial = P::read(reader)?;
        (reader.remaining() == 0).then_some(FinishedSegment { partial, runs: taken })
    }
}
