//! [`PassSegments`] and [`OutsideSegments`]: segments of a pass that is told of each by an object, and [`Hand`], by which objects are had.

use crate::error::ClusterError;
use crate::queue::{JobLease, ObjectPart, ObjectRef, SegmentResult, told};
use crate::worker::in_turn::in_turn;
use crate::worker::{Does, Hand, WorkRequest, patience};
use apus_chain::{Height, HeightRange};
use apus_sync::engines::pass::{FinishedSegment, Pass, Work};
use apus_sync::error::SyncError;
use apus_sync::machines::{PartialBytes, SegmentWorker};
use apus_sync::pass::do_segment;
use apus_sync::progress::stop_if_interrupted;
use apus_sync::supply::{Supply, Walker};
use std::sync::{Arc, PoisonError};

/// Objects of a job wait in so much memory until it is done.
const HELD_BYTES_MAX: usize = 32 << 20;

/// The segments of a pass that is known here.
pub(super) struct PassSegments<'a, P: Pass> {
    pub(super) pass: &'a P,
    /// What a segment goes by, out of what is told of it.
    pub(super) input: &'a ReadInput<'a, P>,
}

/// See [`PassSegments`].
pub(super) type ReadInput<'a, P> =
    dyn Fn(&[u8], HeightRange) -> Result<<P as Pass>::Input, SyncError> + Sync + 'a;

impl<P: Pass> SegmentWorker for PassSegments<'_, P>
where
    SyncError: From<P::Error>,
{
    fn segment(
        &self,
        told: &[u8],
        range: HeightRange,
        (supply, walker): (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError> {
        let input = (self.input)(told, range)?;
        let done = do_segment(self.pass, input, range, supply, walker, each)?;
        Ok(done.map(PartialBytes::of))
    }
}

/// The segments of a pass from outside.
pub(super) struct OutsideSegments<'a>(pub(super) Box<dyn SegmentWorker + 'a>);

impl SegmentWorker for OutsideSegments<'_> {
    fn segment(
        &self,
        told: &[u8],
        range: HeightRange,
        blocks: (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError> {
        let told = told::read(told, range);
        let told = told.map_err(|error| ClusterError::Message(error.to_string()))?;
        self.0.segment(told, range, blocks, each)
    }
}

impl<W: SegmentWorker> Does for W {
    fn job(
        &self,
        hand: &Hand<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        let range = hand.job.key.range;
        let alive = |_, _| hand.lease.alive();
        let told = hand.object(&hand.job.input)?;
        let done = self.segment(&told, range, (hand.supply, walker), &alive)?;
        Ok(done.map(|finished| {
            let work = finished.partial.done;
            (SegmentResult::write(hand.run, range, &finished), work)
        }))
    }
}

/// An object that is not there, or damaged, by its digest.
fn lost(object: &ObjectRef, error: SyncError) -> SyncError {
    match ClusterError::lost_object(&error) {
        Some(why) => ClusterError::Lost { object: object.digest, why: why.clone() }.into(),
        None => error,
    }
}

impl Hand<'_> {
    /// Gives a sign of life, and fails where it is not to go on.
    pub(super) fn go_on(&self) -> Result<(), SyncError> {
        self.lease.alive();
        stop_if_interrupted(self.request.interrupt)
    }

    /// Gets an object whole.
    pub(super) fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, SyncError> {
        patience(self.request).with(|| self.lease.object(of)).map_err(|error| lost(of, error))
    }

    /// Gets parts of objects.
    fn parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, SyncError> {
        let mut at = 0;
        let got = patience(self.request).with(|| {
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

    /// Gets parts of objects, so many at a time, and gives them to `each` with the place of the first one.
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
                self.go_on()
            },
        )
    }

    /// Puts an object before the job is answered.
    pub(super) fn put(&self, bytes: Vec<u8>) -> Result<ObjectRef, SyncError> {
        let of = ObjectRef::of(&bytes);
        self.put_as(of, bytes).map(|()| of)
    }

    /// The same by a name that it has already.
    pub(super) fn put_as(&self, of: ObjectRef, bytes: Vec<u8>) -> Result<(), SyncError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held_bytes: usize = held.iter().map(|(_, bytes)| bytes.len()).sum();
        let is_much = held_bytes + bytes.len() > HELD_BYTES_MAX;
        let bytes = Arc::new(bytes);
        if is_much {
            drop(held);
            return put(self.request, self.lease, &of, &bytes);
        }
        held.push((of, bytes));
        Ok(())
    }
}

/// Puts an object.
pub(super) fn put(
    request: &WorkRequest<'_>,
    lease: &dyn JobLease,
    of: &ObjectRef,
    bytes: &Arc<Vec<u8>>,
) -> Result<(), SyncError> {
    patience(request).with(|| lease.put_object(of, bytes))
}
