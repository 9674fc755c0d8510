//! [`ProvenSegments`]: processes ranges for a remote coordinator, with this machine's own proofs.
//!
//! The payload may contain the roots around a range. The machine compares them with its own proofs, so that
//! files of another forest are reported before the blocks are processed. The blocks themselves show whether
//! the roots are right.

use super::partial::read_roots;
use super::{
    ENGINE, PeerProofs, ProofFolder, ProofRange, ProofRequester, ProofSource, ProofsInput,
    RootsDiffer, Utreexo, no_roots, was_waiting,
};
use crate::error::ProofsError;
use apus_chain::{Height, HeightRange, Params, Reader, write_compact_size};
use apus_sync::SyncError;
use apus_sync::engines::pass::FinishedSegment;
use apus_sync::machines::{PartialBytes, SegmentWork, SegmentWorker, SharedPass};
use apus_sync::pass::do_segment;
use apus_sync::supply::{Supply, Walker};
use apus_utreexo::Roots;
use std::sync::atomic::{AtomicBool, Ordering};

/// Processes ranges for a remote coordinator, with this machine's own proofs.
pub struct ProvenSegments {
    /// The source of proofs on this machine.
    pub proofs: Option<ProofsInput>,
}

impl SharedPass for ProvenSegments {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn begin<'a>(
        &'a self,
        work: &SegmentWork<'a>,
    ) -> Result<Box<dyn SegmentWorker + 'a>, SyncError> {
        let SegmentWork { plan, source, signatures, observer, interrupt } = *work;
        let (identity, chain) = (&plan.identity, source.chain());
        let network = identity.network;
        let proofs: Box<dyn ProofSource + 'a> = match &self.proofs {
            Some(ProofsInput::Folder(folder)) => Box::new(ProofFolder { folder, network, chain }),
            Some(ProofsInput::Peers(peers)) => {
                let asking = ProofRequester { network, observer, interrupt };
                Box::new(PeerProofs::connect(peers, asking, source)?)
            }
            None => return Err(ProofsError::NoneHere.into()),
        };
        // Each thread runs the scripts of its own block.
        let scripts = (identity.assumed < plan.last()).then(|| signatures.pool(0)).transpose()?;
        let pass = Utreexo::new(Params::of(network), chain, identity.assumed, scripts);
        Ok(Box::new(ProvenWorker { proofs, pass, interrupt }))
    }
}

/// Processes ranges.
struct ProvenWorker<'a> {
    proofs: Box<dyn ProofSource + 'a>,
    pass: Utreexo<'a>,
    interrupt: &'a AtomicBool,
}

impl SegmentWorker for ProvenWorker<'_> {
    fn segment(
        &self,
        payload: &[u8],
        range: HeightRange,
        (supply, walker): (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError> {
        // Shortens the lifetime of the pass to that of the input.
        let pass: &Utreexo<'_> = &self.pass;
        loop {
            let can_retry = self.proofs.retry();
            let input = self.input(payload, range)?;
            match do_segment(pass, input, range, supply, walker, each) {
                Ok(done) => return Ok(done.map(PartialBytes::of)),
                // An interrupted wait for a peer is not a failure.
                Err(error) if was_waiting(&error, self.interrupt) => {
                    return Err(SyncError::Interrupted);
                }
                Err(error) if can_retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl ProvenWorker<'_> {
    /// Opens a range from this machine's proofs. It must begin and end with the coordinator's roots, if the
    /// payload has them.
    fn input(&self, payload: &[u8], range: HeightRange) -> Result<ProofRange<'_>, SyncError> {
        let expected = read(payload).ok_or(ProofsError::Payload)?;
        let found = self.proofs.range(range);
        let found = found.map_err(|what| match self.interrupt.load(Ordering::Relaxed) {
            true => SyncError::Interrupted,
            false => no_roots(range, &what),
        })?;
        if let Some((before, after)) = expected {
            expect_same(&found, "begin", &found.before, &before)?;
            expect_same(&found, "end", &found.after, &after)?;
        }
        Ok(found)
    }
}

fn expect_same(
    range: &ProofRange<'_>,
    what: &str,
    found: &Roots,
    expected: &Roots,
) -> Result<(), ProofsError> {
    if found == expected {
        return Ok(());
    }
    let (heights, origin) = (range.heights, range.reader.origin());
    let differ = RootsDiffer::between(found, expected);
    let what = format!(
        "the proofs of blocks {heights}, from {origin}, {what} with other roots than the coordinator's: \
         {differ}"
    );
    Err(ProofsError::NotThere { what })
}

// The payload of a range: the roots around it, if known.

/// Encodes the payload: 1 if roots are known, else 0; if known, the roots before the first block and the
/// roots after the last, each as the length of its bytes (CompactSize) and the bytes, as in a roots file
/// (`docs/utreexo.md`).
pub(super) fn write(roots: Option<(&Roots, &Roots)>) -> Vec<u8> {
    let mut out = vec![u8::from(roots.is_some())];
    for roots in roots.into_iter().flat_map(|(before, after)| [before, after]) {
        let mut bytes = Vec::new();
        roots.write(&mut bytes);
        write_compact_size(&mut out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
    out
}

/// Decodes a payload; `None` if the bytes are invalid.
fn read(bytes: &[u8]) -> Option<Option<(Roots, Roots)>> {
    let mut reader = Reader::new(bytes);
    let roots = match reader.u8().ok()? {
        0 => None,
        1 => Some((read_roots(&mut reader)?, read_roots(&mut reader)?)),
        _ => return None,
    };
    (reader.remaining() == 0).then_some(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_utreexo::{Fragment, NodeHash};
    use proptest::prelude::*;

    fn roots(leaves: u8) -> Roots {
        let mut fragment = Fragment::new(0).unwrap();
        (0..leaves).for_each(|leaf| fragment.push(NodeHash([leaf; 32])).unwrap());
        fragment.roots().unwrap()
    }

    proptest! {
        #[test]
        fn roots_round_trip(before in 0u8..20, after in 0u8..20, known: bool) {
            let (before, after) = (roots(before), roots(after));
            let bytes = write(known.then_some((&before, &after)));
            prop_assert_eq!(read(&bytes), Some(known.then_some((before, after))));
            for length in 0..bytes.len() {
                prop_assert!(read(&bytes[..length]).is_none(), "{}", length);
            }
            prop_assert!(read(&[&bytes[..], &[0]].concat()).is_none());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Some(payload) = read(&bytes) {
                let payload = payload.as_ref().map(|(before, after)| (before, after));
                prop_assert_eq!(write(payload), bytes);
            }
        }
    }
}
