//! The coordinator of a mergesync run: hands out the jobs of three steps and merges their results.
//!
//! The steps, in order: the first pass over all segments, the parts of the join, and connecting all segments. Records
//! and prevouts travel between machines through the object store. The coordinator keeps only their digests, in files,
//! and at the end the unspent coins. It saves no progress: after a restart, it finds the answers in the queue. It
//! needs a few hundred bytes of memory for each job.
//!
//! An invalid chain gives the same error as on one machine: if the first step rejects a block, the blocks below it go
//! through all three steps first.

mod datadir;
mod fetch;
mod parts;
mod pieces;
mod slices;

use crate::shared::SharedQueue;
use apus_sync::engines::mergesync::{
    MergeWork, SharedResult, WalkOutcome, fingerprint_key, hash_beside, lowest,
};

use crate::job::{JobKey, JobStep};
use crate::queue::{
    ConnectDone, ConnectPayload, FirstPassDone, ForestPayload, JobQueue, PassKind, RunId, Sent,
    empty_payload,
};
use crate::scheduler::AnswerError;
use crate::scheduler::JobResult;
use crate::scheduler::Scheduler;
use crate::shared::SharedRun;
use crate::shared::open;
use apus_chain::{Height, HeightRange};
use apus_proofs::roots::RootsRunError;
use apus_sync::engines::mergesync::FirstPass;
use apus_sync::engines::pass::{Counts, PartialResult, Pass};
use apus_sync::error::{InvalidBlock, SyncError};
use apus_sync::progress::{Event, Phase, Progress};
use apus_sync::request::{Request, ScriptCounts};
use apus_sync::supply::total;
use apus_sync::workdir::Workdir;
use apus_sync::workdir::plan::Plan;
use apus_utreexo::{Fragment, Roots};
use datadir::{DatadirKeeping, UndoFile};
use parts::{JoinParts, earlier_payload};
use pieces::SegmentPieces;
use std::collections::BTreeMap;

/// Maximum number of segments connected at a time if undo data are kept: it bounds the undo data that wait here to be
/// written in order.
const SEGMENTS_AT_ONCE: usize = 512;

/// Runs all steps up to the last block of the plan.
pub(crate) fn run(
    work: &MergeWork<'_>,
    of: &SharedQueue<'_>,
    workdir: &Workdir<'_>,
    plan: &Plan,
) -> Result<SharedResult, SyncError> {
    // Fetch everything again: nothing records how much an earlier start had fetched.
    Workdir::clear_scratch(workdir.storage())?;
    let pass = match datadir::is_wanted(work.request) {
        true => PassKind::MergeSyncKept,
        false => PassKind::MergeSync,
    };
    let shared = SharedRun { of: *of, pass, plan };
    let scheduler = open(&shared, work.request, work.dir)?;
    let mut shared = MergeSteps {
        work,
        queue: of.queue,
        workdir,
        plan,
        scheduler,
        results: SegmentPieces::new(work.request.env.workdir),
    };
    match shared.whole() {
        Err(error) if InvalidBlock::of(&error).is_none() => {
            Err(shared.scheduler.close_if_spoilt(error))
        }
        Err(error) => {
            shared.scheduler.close();
            Err(error)
        }
        Ok(whole) => {
            shared.scheduler.leave_open();
            Ok(whole)
        }
    }
}

struct MergeSteps<'s> {
    work: &'s MergeWork<'s>,
    queue: &'s dyn JobQueue,
    workdir: &'s Workdir<'s>,
    plan: &'s Plan,
    scheduler: Scheduler<'s>,
    /// The results of the first pass.
    results: SegmentPieces<'s>,
}

impl MergeSteps<'_> {
    fn whole(&mut self) -> Result<SharedResult, SyncError> {
        let segments = &self.plan.segments;
        if let Err(error) = self.first_pass(segments) {
            return Err(self.lowest(error));
        }
        let counts = self.counts()?;
        let parts = self.join(segments)?;
        let (request, coins) = (self.work.request, parts.joined.coins.clone());
        let mut keeping = DatadirKeeping::start(self.work, self.queue, self.plan)?;
        let connect = || self.connect(segments, &parts, keeping.as_mut());
        let (fragments, hashed) = hash_beside(request, coins, connect)?;
        let with_blocks = keeping.map(DatadirKeeping::end).transpose()?;
        let commitment = request.commitment.filter(|it| it.is_wanted());
        if let Some(commitment) = commitment.filter(|_| self.plan.identity.numbered) {
            let mut roots = Vec::new();
            roots_of(&fragments)?.write(&mut roots);
            commitment.take_made(&roots)?;
        }
        let (end, assumed) = (self.plan.last(), self.plan.identity.assumed);
        let scripts = ScriptCounts { run: u64::from(end - assumed), assumed: u64::from(assumed) };
        let validated = WalkOutcome { scripts, hashed, with_blocks };
        Ok(SharedResult { joined: parts.joined, counts, validated })
    }

    /// The error of the lowest invalid block, given the error of the first step.
    fn lowest(&mut self, error: SyncError) -> SyncError {
        let plan = self.plan;
        lowest(error, (0, &plan.segments), |below| {
            self.first_pass(below)?;
            let parts = self.join(below);
            Ok(parts.and_then(|parts| self.connect(below, &parts, None)).map(drop))
        })
    }

    /// Runs the first pass over the segments that have no result yet.
    fn first_pass(&mut self, segments: &[HeightRange]) -> Result<(), SyncError> {
        let (request, source) = (self.work.request, self.work.dir);
        let todo: Vec<HeightRange> =
            segments.iter().copied().filter(|it| !self.results.has(it)).collect();
        request.env.observer.event(Event::Started(Phase::Blocks));
        let heights = segments.iter().flat_map(|segment| segment.heights());
        let mut progress = StepProgress::new(request, Phase::Blocks, total(source, heights));
        let run = self.scheduler.run();
        let payload = |key: JobKey| Ok((key.step == JobStep::Blocks).then(empty_payload));
        let mut read = |answered: JobResult| {
            let done: FirstPassDone = sent(&answered, run)?;
            match done.partial.ranges() == [answered.key.range] {
                true => Ok((answered.key, done)),
                false => Err(AnswerError::Invalid("it is for other blocks".to_owned())),
            }
        };
        let (results, mut new) = (&mut self.results, Vec::new());
        let mut take = |done: Option<(JobKey, FirstPassDone)>| {
            if let Some((key, done)) = done {
                let work = done.partial.done();
                progress.add(work.blocks, work.bytes);
                new.push((key, [done.records, done.own]));
                results.add(key.range, done)?;
            }
            progress.tell();
            Ok(())
        };
        let todo = todo.into_iter().map(JobKey::blocks);
        let failure = self.scheduler.step(todo, &payload, &mut read, &mut take);
        for (key, objects) in new {
            self.scheduler.record_objects(key, objects.iter());
        }
        let bytes = progress.end();
        request.env.observer.event(Event::Ended { phase: Phase::Blocks, bytes });
        failure?.map_or(Ok(()), Err)
    }

    /// Totals of the first pass, which must cover all blocks.
    fn counts(&self) -> Result<Counts, SyncError> {
        let pass = FirstPass::new(
            self.work.request.env.params,
            self.work.dir.chain(),
            fingerprint_key(self.plan),
        );
        let mut whole = pass.nothing();
        for done in self.results.all() {
            whole.merge(&done.partial).map_err(|error| {
                crate::error::ClusterError::Message(format!("results overlap: {error}"))
            })?;
        }
        let apus_sync::engines::mergesync::SegmentSummary { counts, .. } =
            pass.conclude(&whole, self.plan.last())?;
        Ok(counts)
    }

    /// Connects the segments with the coins that the join found, and writes their blocks if requested. Returns the
    /// fragment of the Utreexo forest that each segment forms, if requested.
    fn connect(
        &mut self,
        segments: &[HeightRange],
        parts: &JoinParts<'_>,
        mut keeping: Option<&mut DatadirKeeping<'_>>,
    ) -> Result<BTreeMap<HeightRange, Fragment>, SyncError> {
        let (request, source) = (self.work.request, self.work.dir);
        request.env.observer.event(Event::Started(Phase::Connect));
        let heights = segments.iter().flat_map(|segment| segment.heights());
        let mut progress = StepProgress::new(request, Phase::Connect, total(source, heights));
        let (run, results) = (self.scheduler.run(), &self.results);
        // Number of leaves below each segment.
        let below = |sum: &mut u64, range: &HeightRange| {
            let first = *sum;
            *sum += results.of(range).leaves;
            Some(first)
        };
        let firsts: Vec<u64> = segments.iter().scan(0, below).collect();
        let with_leaves = self.plan.identity.numbered;
        let at = |key: JobKey| segments.partition_point(|segment| segment.start < key.range.start);
        let fetching = keeping.as_ref().map(|keeping| keeping.fetching());
        let payload = |key: JobKey| {
            if key.step != JobStep::Connect {
                return earlier_payload(key, run, results, (segments, &parts.keys));
            }
            let at = at(key);
            let existed = parts.joined.existed.range(key.range.start..key.range.end);
            let forest = parts.leaves.as_ref().map(|leaves| -> Result<ForestPayload, SyncError> {
                Ok(ForestPayload { first: firsts[at], leaves: leaves.of(at)? })
            });
            let payload = ConnectPayload {
                own: results.of(&key.range).own,
                answers: parts.answers.of(at)?,
                existed: existed.map(|(height, all)| (*height, all.clone())).collect(),
                forest: forest.transpose()?,
                undo_from: fetching.map_or(Height::MAX, |fetching| fetching.from),
            };
            Ok(Some(payload.to_bytes(run, key)))
        };
        let mut read = |answered: JobResult| {
            let done: ConnectDone = sent(&answered, run)?;
            let key = answered.key;
            let leaves =
                done.fragment.as_ref().map(|fragment| (fragment.first(), fragment.leaves()));
            let wanted = with_leaves.then(|| (firsts[at(key)], results.of(&key.range).leaves));
            if done.blocks != u64::from(key.range.count()) || leaves != wanted {
                return Err(AnswerError::Invalid("it is for other blocks".to_owned()));
            }
            let undo = fetching.map(|fetching| fetching.undo(key.range, &done.undo)).transpose()?;
            Ok((key.range, done, undo))
        };
        let mut fragments = BTreeMap::new();
        let mut take = |done: Option<(HeightRange, ConnectDone, Option<UndoFile>)>| {
            if let Some((range, ConnectDone { blocks, bytes, fragment, .. }, undo)) = done {
                if let (Some(keeping), Some(undo)) = (&mut keeping, undo) {
                    keeping.take(undo)?;
                }
                progress.add(blocks, bytes);
                fragment.into_iter().for_each(|fragment| drop(fragments.insert(range, fragment)));
            }
            progress.tell();
            Ok(())
        };
        let at_once = if fetching.is_some() { SEGMENTS_AT_ONCE } else { segments.len() };
        for some in segments.chunks(at_once.max(1)) {
            let todo = some.iter().copied().map(JobKey::connect);
            if let Some(error) = self.scheduler.step(todo, &payload, &mut read, &mut take)? {
                return self.work.refuse(self.workdir, self.plan, error);
            }
        }
        let bytes = progress.end();
        request.env.observer.event(Event::Ended { phase: Phase::Connect, bytes });
        Ok(fragments)
    }
}

/// The roots of the forest that the fragments form, in order.
fn roots_of(fragments: &BTreeMap<HeightRange, Fragment>) -> Result<Roots, SyncError> {
    let whole = Fragment::new(0).and_then(|mut whole| {
        fragments.values().try_for_each(|next| whole.append(next))?;
        Ok(whole)
    });
    let whole = whole.map_err(RootsRunError::Forest)?;
    Ok(whole.roots().unwrap_or_default())
}

/// Decodes the result of a job.
fn sent<S: Sent>(answered: &JobResult, run: RunId) -> Result<S, AnswerError> {
    let read = S::from_bytes(&answered.bytes, run, answered.key);
    read.map_err(|error| AnswerError::Invalid(error.to_string()))
}

/// Reports the progress of a step.
struct StepProgress<'t> {
    request: &'t Request<'t>,
    phase: Phase,
    progress: Progress,
}

impl<'t> StepProgress<'t> {
    fn new(request: &'t Request<'t>, phase: Phase, progress: Progress) -> Self {
        Self { request, phase, progress }
    }

    fn add(&mut self, blocks: u64, bytes: u64) {
        self.progress.blocks += blocks;
        self.progress.bytes += bytes;
    }

    fn tell(&self) {
        self.request.env.observer.event(Event::Progress(self.phase, self.progress));
    }

    fn end(self) -> u64 {
        self.progress.bytes
    }
}
