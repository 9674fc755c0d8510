//! [`open`]: makes a run known to other machines.

use crate::desk::{Desk, patience};
use crate::error::ClusterError;
use crate::queue::{ObjectRef, RunId, RunSpec};
use crate::remote::SharedRun;
use apus_sync::error::{SourceError, SyncError};
use apus_sync::progress::stop_if_interrupted;
use apus_sync::request::Request;
use apus_sync::source::ChainSource;
use std::time::Instant;

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
