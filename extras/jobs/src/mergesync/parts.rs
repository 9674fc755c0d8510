//! [`JoinParts`]: the results of the join: coins are fetched here, prevouts stay in the object store.

use super::fetch::ObjectFetcher;
use super::pieces::SegmentPieces;
use super::slices::SliceTable;
use super::{MergeSteps, StepProgress, sent};
use crate::job::{JobKey, JobStep};
use crate::queue::{
    JoinDone, JoinPayload, JoinSource, ObjectRef, RecordPiece, RunId, Sent, Slice, empty_payload,
};
use crate::scheduler::AnswerError;
use crate::scheduler::JobResult;
use crate::scheduler::Scheduler;
use apus_chain::HeightRange;
use apus_sync::engines::mergesync::JoinResult;
use apus_sync::error::SyncError;
use apus_sync::progress::{Event, Phase, Progress};
use apus_sync::request::{OutputKind, Request};
use apus_sync::runs::{KeyRange, divide_sizes};
use apus_sync::workdir::RunInfo;
use apus_sync::workdir::names::SPILL;
use std::collections::BTreeMap;

/// Number of parts of a join, unless the parts would be too short or too long.
const PARTS: u64 = 64;

/// Minimum length of a part's records, in bytes.
const PART_BYTES_MIN: u64 = 8 << 20;

/// Maximum length of a part's records, in bytes: a machine needs about twice as much disk while it joins a part.
const PART_BYTES_MAX: u64 = 1 << 30;

/// The results of the join.
pub(super) struct JoinParts<'p> {
    /// The merged results, without prevouts, which stay in objects.
    pub(super) joined: JoinResult,
    /// The places of each segment's prevouts.
    pub(super) answers: SliceTable<'p>,
    /// The places of each segment's surviving leaves, if requested.
    pub(super) leaves: Option<SliceTable<'p>>,
    /// The keys of each part.
    pub(super) keys: Vec<KeyRange>,
}

impl<'s> MergeSteps<'s> {
    /// Joins the records of all segments.
    pub(super) fn join(&mut self, segments: &[HeightRange]) -> Result<JoinParts<'s>, SyncError> {
        let request = self.work.request;
        request.env.observer.event(Event::Started(Phase::Join));
        let results = &self.results;
        let bytes_total: u64 = segments.iter().map(|range| results.of(range).records.bytes).sum();
        let samples = results.samples(segments)?;
        let count = bytes_total / part_bytes(request, bytes_total);
        let keys = KeyRange::on_lines(divide_sizes(samples.into_iter(), count));
        let total = Progress { bytes_total, ..Progress::default() };
        let mut progress = StepProgress::new(request, Phase::Join, total);
        let run = self.scheduler.run();
        let payload = |key: JobKey| earlier_payload(key, run, results, (segments, &keys));
        let with_leaves = self.plan.identity.numbered;
        let object = |of: &ObjectRef| Scheduler::object(self.queue, request, of);
        let fetcher = ObjectFetcher::new(&request.env, &object);
        let mut read = |answered: JobResult| {
            let done: JoinDone = sent(&answered, run)?;
            let wanted = if with_leaves { segments.len() } else { 0 };
            let found = (done.answers.slices.len(), done.leaves.slices.len());
            if found != (segments.len(), wanted) {
                return Err(AnswerError::Invalid("it is for other segments".to_owned()));
            }
            let part = answered.key.range.start;
            let coins = fetcher.run(&done.coins, format!("{SPILL}set-{part}.run"))?;
            let mut places = None;
            if request.outputs.iter().any(|output| output.kind == OutputKind::Hints) {
                let name = format!("{SPILL}places-{part}.run");
                places = Some(fetcher.run(&done.places, name)?);
            }
            Ok((answered.key, done, coins, places))
        };
        let (mut all, mut left) = (BTreeMap::new(), Vec::new());
        let slices = |name| SliceTable::new(request.env.workdir, name, segments.len());
        let mut answers = slices("answers")?;
        let mut leaves = with_leaves.then(|| slices("leaves")).transpose()?;
        let each = bytes_total / keys.len() as u64;
        let mut take = |done: Option<(JobKey, JoinDone, RunInfo, Option<RunInfo>)>| {
            if let Some((key, mut done, coins, places)) = done {
                let found = [&mut done.answers, &mut done.leaves].map(std::mem::take);
                left.push((key, found.each_ref().map(|found| found.objects.clone())));
                let ([of_answers, of_leaves], part) = (found, key.range.start);
                answers.add(part, of_answers)?;
                if let Some(leaves) = &mut leaves {
                    leaves.add(part, of_leaves)?;
                }
                all.insert(key, (done, coins, places));
                progress.add(0, each);
            }
            progress.tell();
            Ok(())
        };
        let todo = (0..keys.len() as u32).map(JobKey::join);
        let failure = self.scheduler.step(todo, &payload, &mut read, &mut take)?;
        for (key, objects) in left {
            self.scheduler.record_objects(key, objects.iter().flatten());
        }
        request.env.observer.event(Event::Ended { phase: Phase::Join, bytes: bytes_total });
        match failure {
            Some(error) => Err(error),
            None => Ok(JoinParts { joined: merge(all.into_values()), answers, leaves, keys }),
        }
    }
}

/// Builds the payload of a job of the first or second step, for a join with these keys. The bytes are always the
/// same.
pub(super) fn earlier_payload(
    key: JobKey,
    run: RunId,
    results: &SegmentPieces<'_>,
    (segments, keys): (&[HeightRange], &[KeyRange]),
) -> Result<Option<Vec<u8>>, SyncError> {
    let keys = match key.step {
        JobStep::Blocks => return Ok(Some(empty_payload())),
        JobStep::Join => keys.get(key.range.start as usize),
        JobStep::Connect => None,
    };
    let Some(keys) = keys.copied() else { return Ok(None) };
    let mut sources = Vec::with_capacity(segments.len());
    results.each(&mut |range, kept, made, spent| {
        if segments.binary_search(&range).is_ok() {
            sources.push(source((range, kept.records), made, spent, keys));
        }
    })?;
    sources.sort_unstable_by_key(|source| source.range);
    let KeyRange { from, until } = keys;
    Ok(Some(JoinPayload { from, until, sources }.to_bytes(run, key)))
}

/// The length of a part's records, in bytes.
fn part_bytes(request: &Request<'_>, bytes_total: u64) -> u64 {
    let even = (bytes_total / PARTS).clamp(PART_BYTES_MIN, PART_BYTES_MAX);
    // Short segments mean that the user wants small jobs.
    request.env.segment_bytes.map_or(even, |bytes| bytes.clamp(1, PART_BYTES_MAX))
}

fn merge(parts: impl Iterator<Item = (JoinDone, RunInfo, Option<RunInfo>)>) -> JoinResult {
    let mut whole = JoinResult::default();
    for (done, coins, places) in parts {
        whole.add(JoinResult {
            places: places.into_iter().collect(),
            coins: vec![coins],
            totals: done.totals,
            muhash: done.muhash,
            existed: done.existed,
            ..JoinResult::default()
        });
    }
    whole
}

/// Returns the records of a segment that a part of the join reads.
fn source(
    (range, records): (HeightRange, ObjectRef),
    made: &[RecordPiece],
    spent: &[RecordPiece],
    keys: KeyRange,
) -> JoinSource {
    let before: u64 = made.iter().map(|piece| u64::from(piece.bytes)).sum();
    let (made, spent) = (slice(made, 0, keys), slice(spent, before, keys));
    JoinSource { range, records, made, spent }
}

/// The pieces that contain some of these keys; `start` is the offset of the first of all pieces.
fn slice(pieces: &[RecordPiece], start: u64, keys: KeyRange) -> Slice {
    let first = pieces.partition_point(|piece| piece.last < keys.from);
    let is_before = |piece: &RecordPiece| keys.until.is_none_or(|until| piece.first < until);
    let end = pieces.partition_point(is_before).max(first);
    let before: u64 = pieces[..first].iter().map(|piece| u64::from(piece.bytes)).sum();
    let pieces = pieces[first..end].iter().map(|piece| (piece.bytes, piece.digest));
    Slice { offset: start + before, pieces: pieces.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::rng::Rng;

    /// Divides keys into pieces of at most `each` keys that do not cross lines.
    fn pieces(keys: &[u64], each: usize) -> Vec<RecordPiece> {
        let of_byte = keys.chunk_by(|a, b| KeyRange::line_of(*a) == KeyRange::line_of(*b));
        let piece = |some: &[u64]| RecordPiece {
            first: some[0],
            last: some[some.len() - 1],
            bytes: some.len() as u32,
            digest: [some[0] as u8; 32],
        };
        of_byte.flat_map(|some| some.chunks(each)).map(piece).collect()
    }

    #[test]
    fn parts_read_all_their_keys_and_few_twice() {
        let mut rng = Rng::new(72);
        let mut spread: Vec<u64> = (0..40_000).map(|_| rng.next_u64()).collect();
        // Simulates an attacker who ground all ids to a common prefix; many of them are equal.
        let mut ground: Vec<u64> =
            (0..40_000).map(|_| 0xabcd_ef00_0000_0000 | rng.next_u64() >> 52).collect();
        for (keys, twice_max) in [(&mut spread, 0), (&mut ground, 15 * 2 * 90)] {
            keys.sort_unstable();
            let all = pieces(keys, 90);
            let samples = all.iter().map(|piece| (piece.first, piece.bytes));
            let parts = KeyRange::on_lines(divide_sizes(samples, 16));
            assert_eq!((parts.len(), parts[0].from, parts[15].until), (16, 0, None));
            assert!(parts.windows(2).all(|pair| pair[0].until == Some(pair[1].from)));
            let mut read = 0;
            for part in parts {
                let Slice { offset, pieces } = slice(&all, 0, part);
                let bytes: u32 = pieces.iter().map(|(bytes, _)| bytes).sum();
                let got = &keys[offset as usize..offset as usize + bytes as usize];
                let is_of =
                    |key: &&u64| **key >= part.from && part.until.is_none_or(|until| **key < until);
                assert_eq!(got.iter().filter(is_of).count(), keys.iter().filter(is_of).count());
                read += got.len();
            }
            assert!(read - keys.len() <= twice_max, "{read}");
        }
    }
}
