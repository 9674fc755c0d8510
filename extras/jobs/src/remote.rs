//! [`Remote`]: the segments of a pass, done by other machines.
//!
//! A job goes into the queue for each segment, and an answer comes back; which machine does which, and how often a
//! job is offered, is the queue's business. An answer counts if it is of this run, these heights and the very input,
//! and each segment counts once, whatever comes twice. All that is needed to go on after a crash is in the work folder
//! and in the queue: what was answered meanwhile is found there. The [desk](Desk) is for any jobs of a run.

use crate::desk::{Answered, Desk, Useless, await_closed, patience};
use crate::error::ClusterError;
use crate::job::JobKey;
use crate::mergesync;
use crate::queue::{JobQueue, ObjectRef, PassKind, RunId, RunSpec, SegmentResult, hints, proven};
use apus_chain::HeightRange;
use apus_sync::engines::pass::PartialResult;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::{self, SegmentHints};
use apus_sync::engines::{mergesync as engine, utreexo};
use apus_sync::error::{SourceError, SyncError};
use apus_sync::pass::TakeDone;
use apus_sync::progress::stop_if_interrupted;
use apus_sync::request::Request;
use apus_sync::source::{ChainSource, GivenBlocks};
use apus_sync::supply::weight_of;
use apus_sync::workdir::plan::Plan;
use apus_sync::workdir::{FinishedRange, Workdir};
use apus_sync::{Machines, RootsAround, Segments};
use std::time::Instant;

/// A run that machines share.
#[derive(Clone, Copy)]
pub(crate) struct SharedRun<'a> {
    pub(crate) of: SharedQueue<'a>,
    pub(crate) pass: PassKind,
    pub(crate) plan: &'a Plan,
}

/// What machines are told of a segment, as bytes.
pub(crate) type TellSegment<'a> = dyn Fn(HeightRange) -> Result<Vec<u8>, SyncError> + 'a;

/// See the module.
#[derive(Clone, Copy)]
pub struct SharedQueue<'a> {
    /// Where jobs go and answers come from.
    pub queue: &'a dyn JobQueue,
}

impl Machines for SharedQueue<'_> {
    fn given(&self) -> Option<&GivenBlocks> {
        self.queue.given()
    }

    fn hinted(
        &self,
        segments: &Segments<'_>,
        input: &dyn Fn(HeightRange) -> Result<SegmentHints, SyncError>,
        take: &mut TakeDone<'_, swiftsync::Partial>,
    ) -> Result<(), SyncError> {
        let pass = match segments.plan.identity.aggregate {
            AggregateKind::Coins => PassKind::Fully,
            _ => PassKind::SwiftSync,
        };
        self.segments(segments, pass, &|range| Ok(hints::write(&input(range)?)), take)
    }

    fn proven(
        &self,
        segments: &Segments<'_>,
        roots: &RootsAround<'_>,
        take: &mut TakeDone<'_, utreexo::Partial>,
    ) -> Result<(), SyncError> {
        let told = |range| Ok(proven::write(range, roots(range)));
        self.segments(segments, PassKind::Utreexo, &told, take)
    }

    fn merge(
        &self,
        work: &engine::MergeWork<'_>,
        workdir: &Workdir<'_>,
        plan: &Plan,
    ) -> Result<engine::SharedResult, SyncError> {
        mergesync::run(work, self, workdir, plan)
    }

    fn closed(&self, request: &Request<'_>) {
        await_closed(request, self.queue);
    }
}

impl SharedQueue<'_> {
    fn segments<R: PartialResult>(
        &self,
        segments: &Segments<'_>,
        pass: PassKind,
        told: &TellSegment<'_>,
        take: &mut TakeDone<'_, R>,
    ) -> Result<(), SyncError> {
        let shared = SharedRun { of: *self, pass, plan: segments.plan };
        // With nothing to do the run is ended all the same: the start before this one may have been killed when all was
        // done, and machines still wait for jobs of it.
        match hand_out(&shared, segments, told, take) {
            // What is under way goes on, and is found by the next start.
            Err(SyncError::Interrupted) => Ok(()),
            other => other,
        }
    }
}

fn hand_out<R: PartialResult>(
    shared: &SharedRun<'_>,
    segments: &Segments<'_>,
    told: &TellSegment<'_>,
    take: &mut TakeDone<'_, R>,
) -> Result<(), SyncError> {
    let Segments { request, source, todo, runs, counters, .. } = *segments;
    let mut desk = open(shared, request, source)?;
    let run = desk.run();
    let told = |key: JobKey| told(key.range).map(Some);
    let mut read = |Answered { key, bytes }: Answered| {
        let range = key.range;
        let finished = SegmentResult::read(bytes, run, range, runs.len());
        let finished = finished.map_err(|error| Useless::Result(error.to_string()))?;
        Ok(FinishedRange::held(range, finished, runs))
    };
    let mut take = |done: Option<FinishedRange<R>>| {
        if let Some(done) = &done {
            counters.add(done.partial.done());
            counters.finished(&done.partial);
            counters.add_weight(weight_of(source, done.range));
        }
        take(done)
    };
    let todo = todo.iter().map(|range| JobKey::blocks(*range));
    match desk.step(todo, &told, &mut read, &mut take) {
        Ok(None) => {
            desk.close();
            Ok(())
        }
        Ok(Some((_, verdict))) => {
            desk.close();
            Err(verdict)
        }
        Err(error) if error.spoils_progress() => {
            desk.close();
            Err(error)
        }
        Err(error) => Err(error),
    }
}

// [`open`]: makes a run known to other machines.

/// Makes the run known, or goes on with it.
pub(crate) fn open<'d>(
    shared: &SharedRun<'d>,
    request: &'d Request<'d>,
    source: &'d dyn ChainSource,
) -> Result<Desk<'d>, SyncError> {
    let began = Instant::now();
    let headers = headers(request, source, shared.plan.identity.stop)?;
    let (of, patience) = (ObjectRef::of(&headers), patience(request));
    let spec = RunSpec { pass: shared.pass, plan: shared.plan.clone(), headers: of };
    let spec = spec.to_bytes().ok_or_else(|| {
        let segments = shared.plan.segments.len();
        ClusterError::Message(format!(
            "{segments} segments are too many to be described to other machines: start anew, with another \
             --workdir and a greater --segment-bytes, or without that"
        ))
    })?;
    let run = RunId::of(&spec);
    // They are there before the run is seen.
    patience.with(|| shared.of.queue.put_object(&run, &headers))?;
    patience.with(|| shared.of.queue.open(&run, &spec))?;
    Ok(Desk::new(shared.of.queue, request, (run, spec), source, began.elapsed()))
}

/// The headers of all blocks up to a height, one after the other.
fn headers(
    request: &Request<'_>,
    source: &dyn ChainSource,
    stop: u32,
) -> Result<Vec<u8>, SyncError> {
    let heads = source.heads(stop, &mut |_| {
        stop_if_interrupted(request.env.interrupt).map_err(|_| SourceError::Interrupted)
    });
    match heads {
        Err(SourceError::Interrupted) => Err(SyncError::Interrupted),
        other => Ok(other?.iter().flat_map(|head| head.header).collect()),
    }
}
