//! mergesync with its jobs done by other machines: this one hands them out, and puts together what they leave.
//!
//! Three steps, one after the other: segments are gathered, parts are joined, segments are judged. Records and answers
//! go from machine to machine through the store of objects; here are their digests alone, in files, and at the end the
//! coins that no spend took. Nothing of it is kept for a later start, which finds in the queue what was answered. In memory
//! are some hundred bytes for each job.
//!
//! What is told of an invalid block is what one machine tells: where the first step refuses one, those below it go
//! through all three before.

mod getting;
mod keeping;
mod parts;
mod pieces;
mod slices;

use crate::shared::SharedQueue;
use apus_sync::engines::mergesync::{
    MergeWork, SharedResult, WalkOutcome, fingerprint_key, hash_beside,
};

use crate::desk::Answered;
use crate::desk::Desk;
use crate::desk::JobFailure;
use crate::desk::Useless;
use crate::job::{JobKey, JobStep};
use crate::queue::{
    ConnectDone, ConnectTold, ForestTold, GatherDone, JobQueue, PassKind, RunId, Sent, nothing_told,
};
use crate::shared::SharedRun;
use crate::shared::open;
use apus_chain::{Height, HeightRange};
use apus_proofs::roots::RootsRunError;
use apus_sync::engines::mergesync::Gather;
use apus_sync::engines::pass::{Counts, PartialResult, Pass};
use apus_sync::error::{InvalidBlock, SyncError};
use apus_sync::progress::{Event, Phase, Progress};
use apus_sync::request::{Request, ScriptCounts};
use apus_sync::supply::total;
use apus_sync::workdir::Workdir;
use apus_sync::workdir::plan::Plan;
use apus_utreexo::{Fragment, Roots};
use keeping::{DatadirKeeping, UndoFile};
use parts::{JoinParts, told_before};
use pieces::Gathered;
use std::collections::BTreeMap;

/// So many segments are judged at a time where undo data are kept, so that no more of them lie here before their turn.
const SEGMENTS_AT_ONCE: usize = 512;

/// Does a run up to the last block of its plan.
pub(crate) fn run(
    work: &MergeWork<'_>,
    of: &SharedQueue<'_>,
    workdir: &Workdir<'_>,
    plan: &Plan,
) -> Result<SharedResult, SyncError> {
    // What an earlier start got is got again: how much of it is there is not known.
    Workdir::clear_scratch(workdir.storage())?;
    let pass = match keeping::is_wanted(work.request) {
        true => PassKind::MergeSyncKept,
        false => PassKind::MergeSync,
    };
    let shared = SharedRun { of: *of, pass, plan };
    let desk = open(&shared, work.request, work.dir)?;
    let mut shared = MergeSteps {
        work,
        queue: of.queue,
        plan,
        desk,
        gathered: Gathered::new(work.request.env.workdir),
    };
    let whole = shared.whole();
    let ends = |error: &SyncError| InvalidBlock::of(error).is_some() || error.spoils_progress();
    if whole.as_ref().err().is_none_or(ends) {
        shared.desk.close();
    }
    whole
}

struct MergeSteps<'s> {
    work: &'s MergeWork<'s>,
    queue: &'s dyn JobQueue,
    plan: &'s Plan,
    desk: Desk<'s>,
    /// What segments left.
    gathered: Gathered<'s>,
}

impl MergeSteps<'_> {
    fn whole(&mut self) -> Result<SharedResult, SyncError> {
        let segments = &self.plan.segments;
        if let Some((_, error)) = self.gather(segments)? {
            return Err(self.lowest(error));
        }
        let counts = self.counts()?;
        let parts = self.join(segments)?;
        let (request, coins) = (self.work.request, parts.joined.coins.clone());
        let mut keeping = DatadirKeeping::start(self.work, self.queue, self.plan)?;
        let connect = || self.connect(segments, &parts, keeping.as_mut());
        let (connected, hashed) = hash_beside(request, coins, connect)?;
        let fragments = match connected {
            ConnectOutcome::Failed((_, error)) => return Err(error),
            ConnectOutcome::Passed(fragments) => fragments,
        };
        let with_blocks = keeping.map(DatadirKeeping::end).transpose()?;
        let commitment = request.commitment.filter(|it| it.is_wanted());
        if let Some(commitment) = commitment.filter(|_| self.plan.identity.numbered) {
            let mut roots = Vec::new();
            roots_of(&fragments)?.write(&mut roots);
            commitment.take_made(&roots)?;
        }
        let (end, assumed) = (self.plan.last(), self.plan.identity.assumed);
        let scripts = ScriptCounts { run: u64::from(end - assumed), assumed: u64::from(assumed) };
        let judged = WalkOutcome { scripts, hashed, with_blocks };
        Ok(SharedResult { joined: parts.joined, counts, judged })
    }

    /// Of blocks that are refused the lowest is told. `error` is about one that the first step refused.
    fn lowest(&mut self, error: SyncError) -> SyncError {
        let mut error = error;
        loop {
            let refused = InvalidBlock::of(&error).map(|refused| refused.block.height);
            let Some(end) = refused.map(|height| height - 1).filter(|end| *end > 0) else {
                return error;
            };
            let cut = |range: &HeightRange| HeightRange::new(range.start, range.end.min(end + 1));
            let below = self.plan.segments.iter().filter(|range| range.start <= end).map(cut);
            let segments: Vec<HeightRange> = below.collect();
            match self.gather(&segments) {
                Err(other) => return other,
                // A lower one, and perhaps not the lowest.
                Ok(Some((_, lower))) if InvalidBlock::of(&lower).is_some() => error = lower,
                Ok(Some((_, other))) => return other,
                Ok(None) => {
                    let judged = self
                        .join(&segments)
                        .and_then(|parts| self.connect(&segments, &parts, None));
                    return match judged {
                        Ok(ConnectOutcome::Passed(_)) => error,
                        Ok(ConnectOutcome::Failed((_, lower))) => lower,
                        Err(other) => other,
                    };
                }
            }
        }
    }

    /// Has the segments gathered that are not.
    fn gather(&mut self, segments: &[HeightRange]) -> Result<Option<JobFailure>, SyncError> {
        let (request, source) = (self.work.request, self.work.dir);
        let todo: Vec<HeightRange> =
            segments.iter().copied().filter(|it| !self.gathered.has(it)).collect();
        request.env.observer.event(Event::Started(Phase::Blocks));
        let heights = segments.iter().flat_map(|segment| segment.heights());
        let mut progress = Telling::new(request, Phase::Blocks, total(source, heights));
        let run = self.desk.run();
        let told = |key: JobKey| Ok((key.step == JobStep::Blocks).then(nothing_told));
        let mut read = |answered: Answered| {
            let done: GatherDone = sent(&answered, run)?;
            match done.partial.ranges() == [answered.key.range] {
                true => Ok((answered.key, done)),
                false => Err(Useless::Result("it is of other blocks".to_owned())),
            }
        };
        let (gathered, mut new) = (&mut self.gathered, Vec::new());
        let mut take = |done: Option<(JobKey, GatherDone)>| {
            if let Some((key, done)) = done {
                let work = done.partial.done();
                progress.add(work.blocks, work.bytes);
                new.push((key, [done.records, done.own]));
                gathered.add(key.range, done)?;
            }
            progress.tell();
            Ok(())
        };
        let todo = todo.into_iter().map(JobKey::blocks);
        let failure = self.desk.step(todo, &told, &mut read, &mut take);
        for (key, objects) in new {
            self.desk.leaves(key, objects.iter());
        }
        let bytes = progress.end();
        request.env.observer.event(Event::Ended { phase: Phase::Blocks, bytes });
        failure
    }

    /// How much was gathered, which must be all blocks.
    fn counts(&self) -> Result<Counts, SyncError> {
        let gather = Gather::new(
            self.work.request.env.params,
            self.work.dir.chain(),
            fingerprint_key(self.plan),
        );
        let mut whole = gather.nothing();
        for done in self.gathered.all() {
            whole.merge(&done.partial).map_err(|error| {
                crate::error::ClusterError::Message(format!("results do not fit together: {error}"))
            })?;
        }
        let apus_sync::engines::mergesync::Gathered { counts, .. } =
            gather.conclude(&whole, self.plan.last())?;
        Ok(counts)
    }

    /// Has the segments judged, with what the parts of the join left, and their blocks kept where that is wanted.
    fn connect(
        &mut self,
        segments: &[HeightRange],
        parts: &JoinParts<'_>,
        mut keeping: Option<&mut DatadirKeeping<'_>>,
    ) -> Result<ConnectOutcome, SyncError> {
        let (request, source) = (self.work.request, self.work.dir);
        request.env.observer.event(Event::Started(Phase::Connect));
        let heights = segments.iter().flat_map(|segment| segment.heights());
        let mut progress = Telling::new(request, Phase::Connect, total(source, heights));
        let (run, gathered) = (self.desk.run(), &self.gathered);
        // How many leaves lie below each segment.
        let below = |sum: &mut u64, range: &HeightRange| {
            let first = *sum;
            *sum += gathered.of(range).leaves;
            Some(first)
        };
        let firsts: Vec<u64> = segments.iter().scan(0, below).collect();
        let with_leaves = self.plan.identity.numbered;
        let at = |key: JobKey| segments.partition_point(|segment| segment.start < key.range.start);
        let fetching = keeping.as_ref().map(|keeping| keeping.fetching());
        let told = |key: JobKey| {
            if key.step != JobStep::Connect {
                return told_before(key, run, gathered, (segments, &parts.keys));
            }
            let at = at(key);
            let existed = parts.joined.existed.range(key.range.start..key.range.end);
            let forest = parts.leaves.as_ref().map(|leaves| -> Result<ForestTold, SyncError> {
                Ok(ForestTold { first: firsts[at], leaves: leaves.of(at)? })
            });
            let told = ConnectTold {
                own: gathered.of(&key.range).own,
                answers: parts.answers.of(at)?,
                existed: existed.map(|(height, all)| (*height, all.clone())).collect(),
                forest: forest.transpose()?,
                undo_from: fetching.map_or(Height::MAX, |fetching| fetching.from),
            };
            Ok(Some(told.to_bytes(run, key)))
        };
        let mut read = |answered: Answered| {
            let done: ConnectDone = sent(&answered, run)?;
            let key = answered.key;
            let leaves =
                done.fragment.as_ref().map(|fragment| (fragment.first(), fragment.leaves()));
            let wanted = with_leaves.then(|| (firsts[at(key)], gathered.of(&key.range).leaves));
            if done.blocks != u64::from(key.range.count()) || leaves != wanted {
                return Err(Useless::Result("it is of other blocks".to_owned()));
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
        let mut failure = None;
        for some in segments.chunks(at_once.max(1)) {
            let todo = some.iter().copied().map(JobKey::connect);
            failure = self.desk.step(todo, &told, &mut read, &mut take)?;
            if failure.is_some() {
                break;
            }
        }
        let bytes = progress.end();
        request.env.observer.event(Event::Ended { phase: Phase::Connect, bytes });
        Ok(failure.map_or(ConnectOutcome::Passed(fragments), ConnectOutcome::Failed))
    }
}

/// What came of the last step.
enum ConnectOutcome {
    /// All passed. What the leaves of each segment make of the Utreexo forest, where that is wanted.
    Passed(BTreeMap<HeightRange, Fragment>),
    Failed(JobFailure),
}

/// The roots of the forest whose leaves these are, one fragment behind the other.
fn roots_of(fragments: &BTreeMap<HeightRange, Fragment>) -> Result<Roots, SyncError> {
    let whole = Fragment::new(0).and_then(|mut whole| {
        fragments.values().try_for_each(|next| whole.append(next))?;
        Ok(whole)
    });
    let whole = whole.map_err(RootsRunError::Forest)?;
    Ok(whole.roots().unwrap_or_default())
}

/// Reads what a job left.
fn sent<S: Sent>(answered: &Answered, run: RunId) -> Result<S, Useless> {
    let read = S::from_bytes(&answered.bytes, run, answered.key);
    read.map_err(|error| Useless::Result(error.to_string()))
}

/// Tells how far a step is.
struct Telling<'t> {
    request: &'t Request<'t>,
    phase: Phase,
    progress: Progress,
}

impl<'t> Telling<'t> {
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
