//! [`Remote`]: the segments of a pass, done by other machines.
//!
//! A job goes into the queue for each segment, and an answer comes back; which machine does which, and how often a
//! job is offered, is the queue's business. An answer counts if it is of this run, these heights and the very input,
//! and each segment counts once, whatever comes twice. All that is needed to go on after a crash is in the work folder
//! and in the queue: what was answered meanwhile is found there.

mod desk;

use super::{Counters, Dispatch, Job, Take};
use crate::error::SyncError;
use crate::progress::PROGRESS_INTERVAL;
use crate::queue::{JobQueue, PassKind};
use crate::supply::weight_of;
use crate::workdir::plan::Plan;
use apus_chain::HeightRange;
use apus_engine::pass::{PartialResult, Pass};
use apus_engine::swiftsync::SegmentHints;
use desk::Desk;
use std::sync::atomic::Ordering;

/// See the module.
pub(crate) struct Remote<'a> {
    pub(crate) queue: &'a dyn JobQueue,
    pub(crate) pass: PassKind,
    pub(crate) plan: &'a Plan,
}

impl<P: Pass<Input = SegmentHints>> Dispatch<P> for Remote<'_> {
    fn run(
        &self,
        job: &Job<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError> {
        if todo.is_empty() {
            return take(None);
        }
        match self.hand_out(job, todo, counters, take) {
            // What is under way goes on, and is found by the next start.
            Err(SyncError::Interrupted) => Ok(()),
            other => other,
        }
    }
}

impl Remote<'_> {
    fn hand_out<P: Pass<Input = SegmentHints>>(
        &self,
        job: &Job<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError> {
        let mut desk = Desk::open(self, job, todo)?;
        while desk.waits() && !job.request.interrupt.load(Ordering::Relaxed) {
            desk.put_jobs()?;
            match desk.next(PROGRESS_INTERVAL)? {
                Some(done) => {
                    counters.add(done.partial.done());
                    counters.add_weight(weight_of(job.source, done.range));
                    desk.timed(|| take(Some(done)))?;
                }
                None => take(None)?,
            }
            desk.tell(false);
        }
        if desk.waits() {
            return Err(SyncError::Interrupted);
        }
        desk.close()
    }
}
