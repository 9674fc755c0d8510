//! [`PassSegments`]: the segments of a pass that is told of each by an object, and [`Hand`], by which objects are had.

use crate::error::ClusterError;
use crate::queue::{JobLease, ObjectPart, ObjectRef, SegmentResult, proven};
use crate::worker::in_turn::in_turn;
use crate::worker::{Does, Hand, WorkRequest, patience};
use apus_chain::{HeaderChain, HeightRange, Network};
use apus_sync::engines::pass::{PartialResult, Pass, Work};
use apus_sync::engines::utreexo::{
    Asking, PeerProofs, ProofFolder, ProofRange, ProofSource, RootsDiffer, no_roots,
};
use apus_sync::error::{IoError, SyncError};
use apus_sync::pass::do_segment;
use apus_sync::progress::stop_if_interrupted;
use apus_sync::request::ProofsInput;
use apus_sync::supply::Walker;
use apus_utreexo::Roots;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Objects of a job wait in so much memory until it is done.
const HELD_BYTES_MAX: usize = 32 << 20;

/// See the module.
pub(super) struct PassSegments<'a, P: Pass> {
    pub(super) pass: &'a P,
    /// What a segment goes by, out of what is told of it.
    pub(super) input: &'a ReadInput<'a, P>,
}

/// See [`PassSegments`].
pub(super) type ReadInput<'a, P> =
    dyn Fn(&[u8], HeightRange) -> Result<<P as Pass>::Input, SyncError> + Sync + 'a;

impl<P: Pass> Does for PassSegments<'_, P>
where
    SyncError: From<P::Error>,
{
    fn job(
        &self,
        hand: &Hand<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        let range = hand.job.key.range;
        let told = (self.input)(&hand.object(&hand.job.input)?, range)?;
        let alive = |_, _| hand.lease.alive();
        let done = do_segment(self.pass, told, range, hand.supply, walker, &alive)?;
        Ok(done.map(|finished| {
            let work = finished.partial.done();
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

// Ranges that are validated from the roots before them: the proofs are this machine's own, as its blocks are.

/// Where proofs come from here.
pub(super) fn open<'a>(
    request: &WorkRequest<'a>,
    network: Network,
    chain: &'a HeaderChain,
) -> Result<Box<dyn ProofSource + 'a>, SyncError> {
    match request.proofs {
        Some(ProofsInput::Folder(folder)) => Ok(Box::new(ProofFolder { folder, network, chain })),
        Some(ProofsInput::Peers(peers)) => {
            let asking =
                Asking { network, observer: request.observer, interrupt: request.interrupt };
            Ok(Box::new(PeerProofs::connect(peers, asking, chain)?))
        }
        None => Err(ClusterError::Message(
            "the run goes by proofs of what blocks spend: name the folder with files of them, --proofs DIR, or a \
             bridge node to ask for them, --proofs peer:HOST:PORT"
                .to_owned(),
        )
        .into()),
    }
}

/// What is known of a range here, which must begin and end with the roots that the coordinator tells, if it does.
pub(super) fn read<'p>(
    proofs: &'p dyn ProofSource,
    request: &WorkRequest<'_>,
    told: &[u8],
    range: HeightRange,
) -> Result<ProofRange<'p>, SyncError> {
    let told = proven::read(told, range);
    let told = told.map_err(|error| ClusterError::Message(error.to_string()))?;
    let found =
        proofs.range(range).map_err(|what| match request.interrupt.load(Ordering::Relaxed) {
            true => SyncError::Interrupted,
            false => no_roots(range, &what),
        })?;
    if let Some((before, after)) = told {
        expect_same(&found, "begin", &found.before, &before)?;
        expect_same(&found, "end", &found.after, &after)?;
    }
    Ok(found)
}

fn expect_same(
    range: &ProofRange<'_>,
    what: &str,
    found: &Roots,
    told: &Roots,
) -> Result<(), SyncError> {
    if found == told {
        return Ok(());
    }
    let (heights, origin) = (range.heights, range.reader.origin());
    let differ = RootsDiffer::between(found, told);
    let what = format!(
        "the proofs of blocks {heights}, from {origin}, {what} with other roots than those of the run, which were read \
         where it began: {differ}"
    );
    Err(IoError::Proofs { what }.into())
}
