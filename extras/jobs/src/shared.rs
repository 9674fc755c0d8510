//! [`SharedRun`]: a run shared between machines, and [`open`], which announces it to them.

use crate::error::ClusterError;
use crate::queue::{JobQueue, ObjectRef, PassKind, RunId, RunSpec};
use crate::scheduler::{Scheduler, retry};
use apus_sync::error::{SourceError, SyncError};
use apus_sync::progress::stop_if_interrupted;
use apus_sync::request::Request;
use apus_sync::source::ChainSource;
use apus_sync::workdir::plan::Plan;
use std::time::Instant;

/// A run shared between machines.
#[derive(Clone, Copy)]
pub(crate) struct SharedRun<'a> {
    pub(crate) of: SharedQueue<'a>,
    pub(crate) pass: PassKind,
    pub(crate) plan: &'a Plan,
}

/// The machines that take jobs from a queue.
#[derive(Clone, Copy)]
pub struct SharedQueue<'a> {
    /// Carries jobs to the machines and their answers back.
    pub queue: &'a dyn JobQueue,
}

/// Announces the run, or resumes it if an earlier start announced it.
pub(crate) fn open<'d>(
    shared: &SharedRun<'d>,
    request: &'d Request<'d>,
    source: &'d dyn ChainSource,
) -> Result<Scheduler<'d>, SyncError> {
    let began = Instant::now();
    let headers = headers(request, source, shared.plan.identity.stop)?;
    let (of, retry) = (ObjectRef::of(&headers), retry(request));
    let spec = RunSpec { pass: shared.pass, plan: shared.plan.clone(), headers: of };
    let spec = spec.to_bytes().ok_or_else(|| {
        let segments = shared.plan.segments.len();
        ClusterError::Message(format!(
            "{segments} segments are too many for one message to other machines. Start over with another \
             --workdir, and a larger --segment-bytes or no --segment-bytes"
        ))
    })?;
    let run = RunId::of(&spec);
    // Machines need the headers as soon as they see the run.
    retry.with(|| shared.of.queue.put_object(&run, &headers))?;
    retry.with(|| shared.of.queue.open(&run, &spec))?;
    Ok(Scheduler::new(shared.of.queue, request, (run, spec), source, began.elapsed()))
}

/// The concatenated headers of blocks 1 to `stop`.
fn headers(
    request: &Request<'_>,
    source: &dyn ChainSource,
    stop: u32,
) -> Result<Vec<u8>, SyncError> {
    let heads = source.heads(stop, &mut |_| {
        stop_if_interrupted(request.env.interrupt).map_err(|_| SourceError::Interrupted)
    })?;
    Ok(heads.iter().flat_map(|head| head.header).collect())
}
