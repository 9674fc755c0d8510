//! Ranges that are validated from the roots before them: the proofs are this machine's own, as its blocks are.

use super::WorkRequest;
use crate::error::ClusterError;
use crate::queue::proven;
use apus_chain::{HeaderChain, HeightRange, Network};
use apus_sync::engines::utreexo::{Asking, PeerProofs, ProofFolder, no_roots};
use apus_sync::engines::utreexo::{ProofRange, ProofSource, RootsDiffer};
use apus_sync::error::{IoError, SyncError};
use apus_sync::request::ProofsInput;
use apus_utreexo::Roots;
use std::sync::atomic::Ordering;

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
