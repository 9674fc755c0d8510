//! [`Joiner`]: the jobs of mergesync, done here: segments gathered, parts of the join, segments judged.

mod connect;
mod join;
mod records;
mod segment;

use super::scratch::ScratchFolder;
use super::{Does, Hand, WorkRequest};
use crate::job::JobStep;
use crate::queue::{GatherDone, ObjectRef, RecordPiece, Sent, digest};
use apus_chain::{CoinSumKey, Height, Params};
use apus_engine::script::ScriptPool;
use apus_storage::Storage;
use apus_sync::engines::mergesync::{FingerprintKey, Gather};
use apus_sync::engines::mergesync::{bare_up_to, fingerprint_key, sum_key};
use apus_sync::engines::pass::{FinishedSegment, PartialResult, Work};
use apus_sync::error::SyncError;
use apus_sync::pass::do_segment;
use apus_sync::request::RunEnv;
use apus_sync::runs::{KeyRange, MadeForm, RunForm, SpentForm, first_record};
use apus_sync::source::ChainSource;
use apus_sync::supply::Walker;
use apus_sync::workdir::index::prefix;
use apus_sync::workdir::plan::Plan;

/// Pieces are no longer, unless a record is: where a part begins between [lines](KeyRange::line_of), it reads up to one too
/// much of each segment.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// A shorter piece is not worth its digest, and goes on beyond a line.
const PIECE_BYTES_MIN: usize = 512;

/// See the module.
pub(super) struct Joiner<'a> {
    request: &'a WorkRequest<'a>,
    dir: &'a dyn ChainSource,
    params: &'a Params,
    gather: Gather,
    key: FingerprintKey,
    /// The last block whose scripts are taken for valid.
    assumed: Height,
    /// The last block whose coins are bare.
    bare: Height,
    /// Whether leaves of the Utreexo forest are wanted.
    numbered: bool,
    /// Whether the set's MuHash is wanted.
    muhash: bool,
    /// Under which the coins are added up that blocks spend, where undo data are wanted.
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
        let gather = Gather::new(params, dir.chain(), key)
            .with_numbers(numbered)
            .with_claims(if keeps { 0 } else { assumed })
            .with_bare_coins(bare);
        let scratch = ScratchFolder::make(&request.scratch)?;
        let sum_key = keeps.then(|| sum_key(plan));
        Ok(Self {
            request,
            dir,
            params,
            gather,
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

    /// Memory of a thread, in bytes: what is more goes into files.
    fn memory_bytes(&self) -> u64 {
        self.request.memory_bytes / self.request.threads as u64
    }

    /// With what a job is done, in a folder of its own.
    fn env<'r>(&'r self, workdir: &'r dyn Storage) -> RunEnv<'r> {
        let WorkRequest { now, observer, interrupt, .. } = self.request;
        let env = RunEnv::new(self.params, workdir, *observer, interrupt);
        RunEnv { memory_bytes: self.memory_bytes(), now: *now, ..env }
    }

    /// The first walk over a segment.
    fn gather(
        &self,
        hand: &Hand<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        let (key, alive) = (hand.job.key, |_, _| hand.lease.alive());
        let done = do_segment(&self.gather, key.range, key.range, hand.supply, walker, &alive)?;
        let Some(FinishedSegment { partial, runs }) = done else { return Ok(None) };
        let mut runs = runs.into_iter();
        let mut run = || runs.next().unwrap_or_default();
        let (mut records, spends) = (run(), run());
        let (made, spent) = (pieces::<MadeForm>(&records), pieces::<SpentForm>(&spends));
        records.extend_from_slice(&spends);
        drop(spends);
        let own: Vec<Vec<u8>> = runs.collect();
        let leaves = connect::leaf_count(&own);
        let own = hand.put(connect::write_own(&own))?;
        // They are read in pieces alone.
        let digests = made.iter().chain(&spent).map(|piece| piece.digest);
        let of = ObjectRef::of_parts(digests, records.len() as u64);
        hand.put_as(of, records)?;
        let records = of;
        let work = partial.done();
        let done = GatherDone { records, own, made, spent, leaves, partial };
        Ok(Some((done.to_bytes(hand.run, key), work)))
    }
}

impl Does for Joiner<'_> {
    fn job(
        &self,
        hand: &Hand<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        match hand.job.key.step {
            JobStep::Blocks => self.gather(hand, walker),
            JobStep::Join => self.join(hand).map(Some),
            JobStep::Connect => self.connect(hand, walker),
        }
    }
}

/// A run in pieces, which end where a line is unless they are too short.
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
            // What this program wrote are whole records.
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
    use apus_sync::engines::mergesync::SpentRecord;
    use apus_testkit::rng::Rng;

    /// Some spends whose keys begin as `prefix` says.
    fn spends(count: usize, mut prefix: impl FnMut() -> u64) -> Vec<u8> {
        let mut prefixes: Vec<u64> = (0..count).map(|_| prefix()).collect();
        prefixes.sort_unstable();
        let mut run = Vec::new();
        for (place, prefix) in (0..).zip(prefixes) {
            let mut outpoint = [0; 36];
            outpoint[..8].copy_from_slice(&prefix.to_be_bytes());
            let outpoint = OutPoint::from_bytes(&outpoint);
            SpentRecord { outpoint, height: 1, place }.write(&mut run);
        }
        run
    }

    #[test]
    fn pieces_are_all_records_and_end_at_lines() {
        let mut rng = Rng::new(71);
        let run = spends(256 * 400, || rng.next_u64());
        let all = pieces::<SpentForm>(&run);
        assert_eq!(all.len(), 256);
        assert!(all.iter().all(|it| KeyRange::line_of(it.first) == KeyRange::line_of(it.last)));
        let few = spends(256 * 4, || rng.next_u64());
        // As if all ids had been ground for.
        let ground = spends(20_000, || 0xabcd_ef00_0000_0000 | rng.next_u64() >> 40);
        for run in [run, few, ground, Vec::new()] {
            let mut rest = &run[..];
            for RecordPiece { first, last, bytes, digest } in pieces::<SpentForm>(&run) {
                let (records, after) = rest.split_at(bytes as usize);
                assert!(records.len() <= PIECE_BYTES_MAX + SpentRecord::SIZE);
                assert!(records.len() >= PIECE_BYTES_MIN || after.is_empty());
                assert_eq!(digest, *blake3::hash(records).as_bytes());
                assert_eq!(first, prefix(records));
                assert_eq!(last, prefix(&records[records.len() - SpentRecord::SIZE..]));
                rest = after;
            }
            assert!(rest.is_empty());
        }
    }
}
