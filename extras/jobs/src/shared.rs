//! [`SharedRun`]: a run that machines share, and [`open`], which makes it known to them.

use crate::desk::{Desk, patience};
use crate::error::ClusterError;
use crate::queue::{JobQueue, ObjectRef, PassKind, RunId, RunSpec};
use apus_sync::error::{SourceError, SyncError};
use apus_sync::progress::stop_if_interrupted;
use apus_sync::request::Request;
use apus_sync::source::ChainSource;
use apus_sync::workdir::plan::Plan;
use std::time::Instant;

/// A run that machines share.
#[derive(Clone, Copy)]
pub(crate) struct SharedRun<'a> {
    pub(crate) of: SharedQueue<'a>,
    pub(crate) pass: PassKind,
    pub(crate) plan: &'a Plan,
}

/// Machines that take jobs from a queue.
#[derive(Clone, Copy)]
pub struct SharedQueue<'a> {
    /// Where jobs go and answers come from.
    pub queue: &'a dyn JobQueue,
}

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
