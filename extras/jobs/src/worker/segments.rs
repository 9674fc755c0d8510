//! [`PassSegments`] and [`OutsideSegments`]: jobs that are segments of a pass; and the object access of [`HeldJob`].

use crate::error::ClusterError;
use crate::queue::{JobLease, ObjectPart, ObjectRef, SegmentResult, payload};
use crate::worker::in_turn::in_turn;
use crate::worker::{HeldJob, JobRunner, WorkRequest, retry};
use apus_chain::{Height, HeightRange};
use apus_sync::engines::pass::{FinishedSegment, Pass, Work};
use apus_sync::error::SyncError;
use apus_sync::machines::{PartialBytes, SegmentWorker};
use apus_sync::pass::do_segment;
use apus_sync::progress::stop_if_interrupted;
use apus_sync::supply::{Supply, Walker};
use std::sync::Arc;

/// Memory for objects that wait for the end of their job, in bytes.
const HELD_BYTES_MAX: usize = 32 << 20;

/// The segments of a pass defined in `apus_sync`.
pub(super) struct PassSegments<'a, P: Pass> {
    pub(super) pass: &'a P,
    /// Decodes the payload of a segment.
    pub(super) input: &'a ReadInput<'a, P>,
}

/// Decodes the payload of a segment into the input of its pass.
pub(super) type ReadInput<'a, P> =
    dyn Fn(&[u8], HeightRange) -> Result<<P as Pass>::Input, SyncError> + Sync + 'a;

impl<P: Pass> SegmentWorker for PassSegments<'_, P>
where
    SyncError: From<P::Error>,
{
    fn segment(
        &self,
        payload: &[u8],
        range: HeightRange,
        (supply, walker): (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError> {
        let input = (self.input)(payload, range)?;
        let done = do_segment(self.pass, input, range, supply, walker, each)?;
        Ok(done.map(PartialBytes::of))
    }
}

/// The segments of an outside pass.
pub(super) struct OutsideSegments<'a>(pub(super) Box<dyn SegmentWorker + 'a>);

impl SegmentWorker for OutsideSegments<'_> {
    fn segment(
        &self,
        payload: &[u8],
        range: HeightRange,
        blocks: (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError> {
        let payload = payload::read(payload, range);
        let payload = payload.map_err(|error| ClusterError::Message(error.to_string()))?;
        self.0.segment(payload, range, blocks, each)
    }
}

impl<W: SegmentWorker> JobRunner for W {
    fn job(
        &self,
        task: &HeldJob<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        let range = task.job.key.range;
        let alive = |_, _| task.lease.alive();
        let payload = task.object(&task.job.input)?;
        let done = self.segment(&payload, range, (task.supply, walker), &alive)?;
        Ok(done.map(|finished| {
            let work = finished.partial.done;
            (SegmentResult::write(task.run, range, &finished), work)
        }))
    }
}

/// Adds the digest of the object to an error about a missing or damaged object.
fn lost(object: &ObjectRef, error: SyncError) -> SyncError {
    match ClusterError::lost_object(&error) {
        Some(why) => ClusterError::Lost { object: object.digest, why: why.clone() }.into(),
        None => error,
    }
}

impl HeldJob<'_> {
    /// Sends a heartbeat, and fails on an interrupt.
    pub(super) fn heartbeat(&self) -> Result<(), SyncError> {
        self.lease.alive();
        stop_if_interrupted(self.request.interrupt)
    }

    /// Reads a whole object.
    pub(super) fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, SyncError> {
        retry(self.request).with(|| self.lease.object(of)).map_err(|error| lost(of, error))
    }

    /// Reads parts of objects.
    fn parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, SyncError> {
        let mut at = 0;
        let got = retry(self.request).with(|| {
            self.lease.object_parts(parts).map_err(|(place, error)| {
                at = place;
                error
            })
        });
        got.map_err(|error| match parts.get(at) {
            Some(part) => lost(&part.object, error),
            None => error,
        })
    }

    /// Reads parts of objects in batches of `at_once`, and passes each batch to `each` with the index of its first
    /// part.
    pub(super) fn parts_in_turn(
        &self,
        parts: &[ObjectPart],
        at_once: usize,
        each: &mut dyn FnMut(usize, Vec<Vec<u8>>) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        in_turn(
            parts,
            at_once,
            |some| self.parts(some),
            |first, got| {
                each(first, got)?;
                self.heartbeat()
            },
        )
    }

    /// Stores an object before the job is answered.
    pub(super) fn put(&self, bytes: Vec<u8>) -> Result<ObjectRef, SyncError> {
        let of = ObjectRef::of(&bytes);
        self.put_as(of, bytes).map(|()| of)
    }

    /// Stores an object under a given name before the job is answered.
    pub(super) fn put_as(&self, of: ObjectRef, bytes: Vec<u8>) -> Result<(), SyncError> {
        let mut objects = self.objects.lock();
        let held_bytes: usize = objects.iter().map(|(_, bytes)| bytes.len()).sum();
        let is_much = held_bytes + bytes.len() > HELD_BYTES_MAX;
        let bytes = Arc::new(bytes);
        if is_much {
            drop(objects);
            return put(self.request, self.lease, &of, &bytes);
        }
        objects.push((of, bytes));
        Ok(())
    }
}

/// Stores an object.
pub(super) fn put(
    request: &WorkRequest<'_>,
    lease: &dyn JobLease,
    of: &ObjectRef,
    bytes: &Arc<Vec<u8>>,
) -> Result<(), SyncError> {
    retry(request).with(|| lease.put_object(of, bytes))
}
