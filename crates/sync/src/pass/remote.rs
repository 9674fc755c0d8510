//! [`Remote`]: the segments of a pass, done by other machines.
//!
//! A job goes into the queue for each segment, and an answer comes back; which machine does which, and how often a
//! job is offered, is the queue's business. An answer counts if it is of this run, these heights and the very input,
//! and each segment counts once, whatever comes twice. All that is needed to go on after a crash is in the work folder
//! and in the queue: what was answered meanwhile is found there. The [desk](Desk) is for any jobs of a run.

mod desk;
mod opened;

pub(crate) use desk::{Answered, Desk, JobFailure, Useless, await_closed};
pub(crate) use opened::open;

use super::{Counters, Dispatch, Job, Take};
use crate::engines::pass::{PartialResult, Pass};
use crate::error::SyncError;
use crate::job::JobKey;
use crate::queue::{JobQueue, PassKind, SegmentResult};
use crate::runs::index_of;
use crate::supply::weight_of;
use crate::workdir::Done;
use crate::workdir::plan::Plan;
use apus_chain::HeightRange;

/// A run that machines share.
#[derive(Clone, Copy)]
pub(crate) struct SharedRun<'a> {
    pub(crate) queue: &'a dyn JobQueue,
    pub(crate) pass: PassKind,
    pub(crate) plan: &'a Plan,
}

/// What machines are told of a segment, as bytes.
pub(crate) type TellSegment<'a> = dyn Fn(HeightRange) -> Result<Vec<u8>, SyncError> + 'a;

/// See the module.
pub(crate) struct Remote<'a> {
    pub(crate) of: SharedRun<'a>,
    pub(crate) told: &'a TellSegment<'a>,
}

impl<P: Pass> Dispatch<P> for Remote<'_> {
    fn run(
        &self,
        job: &Job<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError> {
        // With nothing to do the run is ended all the same: the start before this one may have been killed when all was
        // done, and machines still wait for jobs of it.
        match self.hand_out(job, todo, counters, take) {
            // What is under way goes on, and is found by the next start.
            Err(SyncError::Interrupted) => Ok(()),
            other => other,
        }
    }
}

impl Remote<'_> {
    fn hand_out<P: Pass>(
        &self,
        job: &Job<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError> {
        let mut desk = open(&self.of, job.request, job.source)?;
        let run = desk.run();
        let told = |key: JobKey| (self.told)(key.range).map(Some);
        let mut read = |Answered { key, bytes }: Answered| {
            let range = key.range;
            let finished = SegmentResult::read(bytes, run, range, P::RUNS.len());
            let finished = finished.map_err(|error| Useless::Result(error.to_string()))?;
            Ok(Done::held(range, finished, P::RUNS, index_of))
        };
        let mut take = |done: Option<Done<P::Partial>>| {
            if let Some(done) = &done {
                counters.add(done.partial.done());
                counters.finished(&done.partial);
                counters.add_weight(weight_of(job.source, done.range));
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
}
