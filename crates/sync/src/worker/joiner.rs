//! [`Joiner`]: the jobs of mergesync, done here: segments gathered, parts of the join, segments judged.

mod connect;
mod join;

use super::scratch::Scratch;
use super::{Does, Hand, WorkRequest};
use crate::error::SyncError;
use crate::job::JobStep;
use crate::mergesync::{bare_up_to, fingerprint_key, sum_key};
use crate::pass::do_segment;
use crate::queue::{GatherDone, ObjectRef, Piece, Sent};
use crate::request::{HintedValidity, Request, Source, Stop};
use crate::runs::{Form, Made, Spent, cut_into};
use crate::source::ChainSource;
use crate::source::blocksdir::UseIndex;
use crate::supply::Walker;
use crate::workdir::plan::Plan;
use apus_chain::{CoinSumKey, Height, Params};
use apus_engine::mergesync::{FingerprintKey, Gather};
use apus_engine::pass::{FinishedSegment, PartialResult, Work};
use apus_engine::script::ScriptPool;
use apus_engine::swiftsync::aggregate::AggregateKind;
use apus_hash::sha256;
use apus_storage::Storage;
use std::path::PathBuf;
use std::time::Duration;

/// Memory for each thread's buffers, in bytes: what is more goes into files.
const MEMORY_BYTES: u64 = 64 << 20;

/// Records of a segment are cut into so many pieces: a part of the join reads one of each kind or two.
const PIECES: usize = 32;

/// Pieces are no longer, unless a record is: a part reads up to one too much at either end.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// A shorter piece is not worth its digest.
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
    leaves: bool,
    /// Under which the coins are added up that blocks spend, where undo data are wanted.
    sum_key: Option<CoinSumKey>,
    scripts: Option<ScriptPool>,
    scratch: Scratch,
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
        let (assumed, bare, leaves) = (identity.assumed, bare_up_to(plan), identity.leaves);
        let gather = Gather::new(params, dir.chain(), key)
            .with_leaves(leaves)
            .with_claims(if keeps { 0 } else { assumed })
            .with_bare_coins(bare);
        let scratch = Scratch::make(&request.scratch)?;
        let sum_key = keeps.then(|| sum_key(plan));
        Ok(Self {
            request,
            dir,
            params,
            gather,
            key,
            assumed,
            bare,
            leaves,
            sum_key,
            scripts,
            scratch,
        })
    }

    /// What one machine would be asked for that does a job by itself, in a folder of this job's.
    fn asked<'r>(&'r self, workdir: &'r dyn Storage) -> Request<'r> {
        let WorkRequest { now, observer, interrupt, .. } = self.request;
        // Nothing looks for blocks by it: they come from where the machine has them.
        let source = Source::Files { blocksdir: PathBuf::new(), use_index: UseIndex::Never };
        Request {
            params: self.params,
            source,
            hints: None,
            engine: None,
            proofs: None,
            aggregate: AggregateKind::None,
            hinted_validity: HintedValidity::NotAsked,
            connect: None,
            leave_witnesses: None,
            stop: Stop::AtTip,
            follow: false,
            threads: 1,
            memory_bytes: MEMORY_BYTES,
            segment_bytes: None,
            checkpoint_interval: Duration::MAX,
            now: *now,
            verifier: None,
            workdir,
            outputs: &[],
            folders: &[],
            bridge: None,
            queue: None,
            observer: *observer,
            interrupt,
        }
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
        let (made, spent) = (pieces::<Made>(&records), pieces::<Spent>(&spends));
        records.extend_from_slice(&spends);
        let own: Vec<Vec<u8>> = runs.collect();
        let leaves = connect::leaf_count(&own);
        let own = hand.put(connect::write_own(&own))?;
        // They are read in pieces alone.
        let digests = made.iter().chain(&spent).map(|piece| piece.sha256);
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

/// A run in pieces.
fn pieces<F: Form>(run: &[u8]) -> Vec<Piece> {
    let bytes = (run.len() / PIECES).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
    let mut rest = run;
    let piece = |section: crate::workdir::index::Section| {
        let (records, after) = rest.split_at(section.bytes as usize);
        rest = after;
        Piece { prefix: section.prefix, bytes: section.bytes, sha256: sha256(records) }
    };
    cut_into::<F>(run, bytes).sections.into_iter().map(piece).collect()
}
