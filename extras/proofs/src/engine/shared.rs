//! [`ProvenSegments`]: ranges that a machine does for a run elsewhere, by proofs of its own.
//!
//! It may be told the roots around a range, where they are known. It holds them against those
//! that its own proofs tell, so that a machine with files of another forest says so before it has gone over the blocks.
//! What they are good for the blocks themselves show.

use super::partial::read_roots;
use super::{
    Asking, ENGINE, PeerProofs, ProofFolder, ProofRange, ProofSource, ProofsInput, RootsDiffer,
    Utreexo, no_roots, was_waiting,
};
use crate::error::ProofsError;
use apus_chain::{Height, HeightRange, Params, Reader, write_compact_size};
use apus_engine::script::ScriptPool;
use apus_sync::SyncError;
use apus_sync::engines::pass::FinishedSegment;
use apus_sync::machines::{PartialBytes, SegmentWork, SegmentWorker, SharedPass};
use apus_sync::pass::do_segment;
use apus_sync::supply::{Supply, Walker};
use apus_utreexo::Roots;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub struct ProvenSegments {
    /// Where proofs come from here.
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
        let SegmentWork { plan, source, observer, interrupt } = *work;
        let (identity, chain) = (&plan.identity, source.chain());
        let network = identity.network;
        let proofs: Box<dyn ProofSource + 'a> = match &self.proofs {
            Some(ProofsInput::Folder(folder)) => Box::new(ProofFolder { folder, network, chain }),
            Some(ProofsInput::Peers(peers)) => {
                let asking = Asking { network, observer, interrupt };
                Box::new(PeerProofs::connect(peers, asking, chain)?)
            }
            None => return Err(ProofsError::NoneHere.into()),
        };
        // Each thread runs the scripts of the block that it takes.
        let scripts = (identity.assumed < plan.last()).then(|| ScriptPool::new(0)).transpose()?;
        let pass = Utreexo::new(Params::of(network), chain, identity.assumed, scripts);
        Ok(Box::new(ProvenWorker { proofs, pass, interrupt }))
    }
}

/// Does ranges.
struct ProvenWorker<'a> {
    proofs: Box<dyn ProofSource + 'a>,
    pass: Utreexo<'a>,
    interrupt: &'a AtomicBool,
}

impl SegmentWorker for ProvenWorker<'_> {
    fn segment(
        &self,
        told: &[u8],
        range: HeightRange,
        (supply, walker): (&Supply<'_>, &mut Walker<'_>),
        each: &dyn Fn(Height, u64),
    ) -> Result<Option<FinishedSegment<PartialBytes>>, SyncError> {
        // The pass of as short a life as what is told of the range.
        let pass: &Utreexo<'_> = &self.pass;
        let input = self.input(told, range)?;
        match do_segment(pass, input, range, supply, walker, each) {
            Ok(done) => Ok(done.map(PartialBytes::of)),
            // A wait for a peer that was interrupted is no failure.
            Err(error) if was_waiting(&error, self.interrupt) => Err(SyncError::Interrupted),
            Err(error) => Err(error),
        }
    }
}

impl ProvenWorker<'_> {
    /// What is known of a range here, which must begin and end with the roots that the coordinator tells, if it does.
    fn input(&self, told: &[u8], range: HeightRange) -> Result<ProofRange<'_>, SyncError> {
        let told = read(told).ok_or(ProofsError::Told)?;
        let found = self.proofs.range(range);
        let found = found.map_err(|what| match self.interrupt.load(Ordering::Relaxed) {
            true => SyncError::Interrupted,
            false => no_roots(range, &what),
        })?;
        if let Some((before, after)) = told {
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
    told: &Roots,
) -> Result<(), ProofsError> {
    if found == told {
        return Ok(());
    }
    let (heights, origin) = (range.heights, range.reader.origin());
    let differ = RootsDiffer::between(found, told);
    let what = format!(
        "the proofs of blocks {heights}, from {origin}, {what} with other roots than those of the run, which were read \
         where it began: {differ}"
    );
    Err(ProofsError::NotThere { what })
}

// What a machine is told of a range: the roots around it, where they are known.

/// The byte form: 1 if roots are known, else 0; if they are, those before the first block and those after the last, of each
/// the length of its bytes (CompactSize), and these, as in a file of roots (`docs/utreexo.md`).
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

/// Reads the byte form; none where the bytes are not that.
fn read(bytes: &[u8]) -> Option<Option<(Roots, Roots)>> {
    let mut reader = Reader::new(bytes);
    let told = match reader.u8().ok()? {
        0 => None,
        1 => Some((read_roots(&mut reader)?, read_roots(&mut reader)?)),
        _ => return None,
    };
    (reader.remaining() == 0).then_some(told)
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
        fn roots_are_read_back(before in 0u8..20, after in 0u8..20, told: bool) {
            let (before, after) = (roots(before), roots(after));
            let bytes = write(told.then_some((&before, &after)));
            prop_assert_eq!(read(&bytes), Some(told.then_some((before, after))));
            for length in 0..bytes.len() {
                prop_assert!(read(&bytes[..length]).is_none(), "{}", length);
            }
            prop_assert!(read(&[&bytes[..], &[0]].concat()).is_none());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Some(told) = read(&bytes) {
                let told = told.as_ref().map(|(before, after)| (before, after));
                prop_assert_eq!(write(told), bytes);
            }
        }
    }
}
