//! The segments of a pass, done by other machines.
//!
//! A job goes into the queue for each segment, and an answer comes back; which machine does which, and how often a
//! job is offered, is the queue's business. An answer counts if it is of this run, these heights and the very input,
//! and each segment counts once, whatever comes twice. All that is needed to go on after a crash is in the work folder
//! and in the queue: what was answered meanwhile is found there. The desk is for any jobs of a run.

use crate::desk::{Answered, Useless, await_closed};
use crate::job::JobKey;
use crate::mergesync;
use crate::queue::{PassKind, SegmentResult, hints, proven};
use crate::shared::{SharedQueue, SharedRun, open};
use apus_chain::HeightRange;
use apus_sync::engines::pass::PartialResult;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::{self, SegmentHints};
use apus_sync::engines::{mergesync as engine, utreexo};
use apus_sync::error::SyncError;
use apus_sync::pass::TakeDone;
use apus_sync::request::Request;
use apus_sync::source::GivenBlocks;
use apus_sync::supply::weight_of;
use apus_sync::workdir::plan::Plan;
use apus_sync::workdir::{FinishedRange, Workdir};
use apus_sync::{Machines, RootsAround, Segments};

/// What machines are told of a segment, as bytes.
pub(crate) type TellSegment<'a> = dyn Fn(HeightRange) -> Result<Vec<u8>, SyncError> + 'a;

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
