//! [`Joiner`]: processes the jobs of mergesync: the first pass over segments, parts of the join, and connecting
//! segments.

mod connect;
mod join;
mod records;
mod segment;

use super::scratch::ScratchFolder;
use super::{HeldJob, JobRunner, WorkRequest};
use crate::job::JobStep;
use crate::queue::{FirstPassDone, ObjectRef, RecordPiece, Sent, digest};
use apus_chain::{CoinSumKey, Height, Params};
use apus_engine::script::ScriptPool;
use apus_storage::Storage;
use apus_sync::engines::mergesync::{FingerprintKey, FirstPass};
use apus_sync::engines::mergesync::{bare_up_to, fingerprint_key, sum_key};
use apus_sync::engines::pass::{FinishedSegment, PartialResult, Work};
use apus_sync::error::SyncError;
use apus_sync::pass::do_segment;
use apus_sync::request::RunEnv;
use apus_sync::runs::{KeyRange, OutputForm, RunForm, SpendForm, first_record};
use apus_sync::source::ChainSource;
use apus_sync::supply::Walker;
use apus_sync::workdir::index::prefix;
use apus_sync::workdir::plan::Plan;

/// Maximum length of a piece, unless a record is longer. A part that begins between [lines](KeyRange::line_of) reads up
/// to one piece too much of each segment.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Minimum length of a piece: a shorter one is not worth its digest, and extends across a line.
const PIECE_BYTES_MIN: usize = 512;

/// Processes the jobs of a mergesync run.
pub(super) struct Joiner<'a> {
    request: &'a WorkRequest<'a>,
    dir: &'a dyn ChainSource,
    params: &'a Params,
    first_pass: FirstPass,
    key: FingerprintKey,
    /// The last block whose scripts are assumed valid.
    assumed: Height,
    /// The last block whose coins are stripped of their scripts.
    bare: Height,
    /// Whether leaves of the Utreexo forest are requested.
    numbered: bool,
    /// Whether the set's MuHash is requested.
    muhash: bool,
    /// The key of the sums of spent coins, if undo data are requested.
    sum_key: Option<CoinSumKey>,
    scripts: Option<ScriptPool>,
    scratch: ScratchFolder,
}

impl<'a> Joiner<'a> {
    pub(super) fn new(
        request: &'a WorkRequest<'_>,
        plan: &Plan,
        dir: &'a dyn ChainSource,
        scripts: Option<ScriptPool>,
        keeps: bool,
    ) -> Result<Self, SyncError> {
        let identity = &plan.identity;
        let (params, key) = (Params::of(identity.network), fingerprint_key(plan));
        let (assumed, bare, numbered) = (identity.assumed, bare_up_to(plan), identity.numbered);
        let first_pass = FirstPass::new(params, dir.chain(), key)
            .with_numbers(numbered)
            .with_claims(if keeps { 0 } else { assumed })
            .with_bare_coins(bare);
        let scratch = ScratchFolder::make(&request.scratch)?;
        let sum_key = keeps.then(|| sum_key(plan));
        Ok(Self {
            request,
            dir,
            params,
            first_pass,
            key,
            assumed,
            bare,
            numbered,
            muhash: identity.muhash,
            sum_key,
            scripts,
            scratch,
        })
    }

    /// Memory of one thread, in bytes; the rest goes into files.
    fn memory_bytes(&self) -> u64 {
        self.request.memory_bytes / self.request.threads as u64
    }

    /// The environment of a job, with its own folder.
    fn env<'r>(&'r self, workdir: &'r dyn Storage) -> RunEnv<'r> {
        let WorkRequest { now, observer, interrupt, .. } = self.request;
        let env = RunEnv::new(self.params, workdir, *observer, interrupt);
        RunEnv { memory_bytes: self.memory_bytes(), now: *now, ..env }
    }

    /// Runs the first pass over a segment.
    fn first_pass(
        &self,
        task: &HeldJob<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        let (key, alive) = (task.job.key, |_, _| task.lease.alive());
        let done = do_segment(&self.first_pass, key.range, key.range, task.supply, walker, &alive)?;
        let Some(FinishedSegment { partial, runs }) = done else { return Ok(None) };
        let mut runs = runs.into_iter();
        let mut run = || runs.next().unwrap_or_default();
        let (mut records, spends) = (run(), run());
        let (made, spent) = (pieces::<OutputForm>(&records), pieces::<SpendForm>(&spends));
        records.extend_from_slice(&spends);
        drop(spends);
        // No block waits for the second walk: machines read their blocks again.
        let own: Vec<Vec<u8>> = runs.take(connect::OWN_RUNS).collect();
        let leaves = connect::leaf_count(&own);
        let own = task.put(connect::write_own(&own))?;
        // The records are only read in pieces, so the digests of the pieces name the object.
        let digests = made.iter().chain(&spent).map(|piece| piece.digest);
        let of = ObjectRef::of_parts(digests, records.len() as u64);
        task.put_as(of, records)?;
        let records = of;
        let work = partial.done();
        let done = FirstPassDone { records, own, made, spent, leaves, partial };
        Ok(Some((done.to_bytes(task.run, key), work)))
    }
}

impl JobRunner for Joiner<'_> {
    fn job(
        &self,
        task: &HeldJob<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        match task.job.key.step {
            JobStep::Blocks => self.first_pass(task, walker),
            JobStep::Join => self.join(task).map(Some),
            JobStep::Connect => self.connect(task, walker),
        }
    }
}

/// Divides a run into pieces, which end at lines unless they would be too short.
fn pieces<F: RunForm>(run: &[u8]) -> Vec<RecordPiece> {
    let (mut all, mut rest) = (Vec::with_capacity(run.len() / PIECE_BYTES_MAX + 1), run);
    while !rest.is_empty() {
        let first = prefix(rest);
        let (mut last, mut end) = (first, 0);
        while end < rest.len() && end < PIECE_BYTES_MAX {
            let next = prefix(&rest[end..]);
            if end >= PIECE_BYTES_MIN && KeyRange::line_of(next) != KeyRange::line_of(last) {
                break;
            }
            last = next;
            // The run was written by this program, so it consists of whole records.
            end += first_record::<F>(&rest[end..]).unwrap_or(rest.len()).min(rest.len() - end);
        }
        let (records, after) = rest.split_at(end);
        all.push(RecordPiece { first, last, bytes: end as u32, digest: digest(records) });
        rest = after;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::OutPoint;
    use apus_sync::engines::mergesync::SpendRecord;
    use apus_testkit::rng::Rng;

    /// Spends whose keys begin with values of `prefix`.
    fn spends(count: usize, mut prefix: impl FnMut() -> u64) -> Vec<u8> {
        let mut prefixes: Vec<u64> = (0..count).map(|_| prefix()).collect();
        prefixes.sort_unstable();
        let mut run = Vec::new();
        for (place, prefix) in (0..).zip(prefixes) {
            let mut outpoint = [0; 36];
            outpoint[..8].copy_from_slice(&prefix.to_be_bytes());
            let outpoint = OutPoint::from_bytes(&outpoint);
            SpendRecord { outpoint, height: 1, place }.write(&mut run);
        }
        run
    }

    #[test]
    fn pieces_cover_all_records_and_end_at_lines() {
        let mut rng = Rng::new(71);
        let run = spends(256 * 400, || rng.next_u64());
        let all = pieces::<SpendForm>(&run);
        assert_eq!(all.len(), 256);
        assert!(all.iter().all(|it| KeyRange::line_of(it.first) == KeyRange::line_of(it.last)));
        let few = spends(256 * 4, || rng.next_u64());
        // Simulates an attacker who ground all ids to a common prefix.
        let ground = spends(20_000, || 0xabcd_ef00_0000_0000 | rng.next_u64() >> 40);
        for run in [run, few, ground, Vec::new()] {
            let mut rest = &run[..];
            for RecordPiece { first, last, bytes, digest } in pieces::<SpendForm>(&run) {
                let (records, after) = rest.split_at(bytes as usize);
                assert!(records.len() <= PIECE_BYTES_MAX + SpendRecord::SIZE);
                assert!(records.len() >= PIECE_BYTES_MIN || after.is_empty());
                assert_eq!(digest, *blake3::hash(records).as_bytes());
                assert_eq!(first, prefix(records));
                assert_eq!(last, prefix(&records[records.len() - SpendRecord::SIZE..]));
                rest = after;
            }
            assert!(rest.is_empty());
        }
    }
}
