//! [`ProofInput`]: the source of a job's proofs, and what it can do about wrong ones.

use super::files::ProofFiles;
use super::{
    ForestStart, Partial, PeerProofs, ProofRange, ProofRequester, ProofSource, ProofsInput,
    ProvenError, ProvenMergeError, Retry,
};
use apus_chain::{Height, HeightRange};
use apus_sync::SyncError;
use apus_sync::pass;
use apus_sync::request::{Request, Stop};
use apus_sync::source::ChainSource;
use apus_sync::workdir::FinishedRange;
use apus_sync::workdir::plan::Plan;
use apus_utreexo::Roots;

/// The source of proofs.
pub(super) struct ProofInput<'a> {
    pub(super) from: RangeSource<'a>,
    pub(super) start: ForestStart,
    /// The last block.
    pub(super) stop: Height,
    /// Bytes of proofs, if known in advance; otherwise 0.
    pub(super) bytes: u64,
}

/// The source of the data of a range.
pub(super) enum RangeSource<'a> {
    Files(ProofFiles),
    Peers(Box<PeerProofs<'a>>),
    /// The peers of other machines: each machine connects to its own.
    Remote,
}

impl RangeSource<'_> {
    pub(super) fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        match self {
            Self::Files(files) => files.range(heights),
            Self::Peers(peers) => peers.range(heights),
            Self::Remote => Err("other machines request them".to_owned()),
        }
    }

    /// Tells of an error whether the job can continue: a bridge failed since this call, and there is another.
    pub(super) fn retry(&self) -> Retry<'_> {
        match self {
            Self::Files(files) => files.retry(),
            Self::Peers(peers) => peers.retry(),
            Self::Remote => Box::new(|_| false),
        }
    }

    /// The finished ranges without the lowest one that begins with wrong roots, if it can be done again. All ranges
    /// below it fit together from the first block on, so they prove with which roots it must begin.
    pub(super) fn without_wrong(
        &self,
        error: &ProvenError,
        mut done: Vec<FinishedRange<Partial>>,
    ) -> Option<Vec<FinishedRange<Partial>>> {
        let (Self::Peers(peers), ProvenError::Merge(ProvenMergeError::Roots { height, .. })) =
            (self, error)
        else {
            return None;
        };
        let below = done.iter().find(|done| done.range.end == *height)?;
        let (_, proven) = below.partial.ends()?;
        if !peers.are_several() {
            return None;
        }
        peers.prove(*height, proven);
        done.retain(|done| done.range.start != *height);
        Some(done)
    }

    /// The roots before and after a range, if known here.
    pub(super) fn roots(&self, heights: HeightRange) -> Option<(&Roots, &Roots)> {
        match self {
            Self::Files(files) => files.roots(heights),
            Self::Peers(_) | Self::Remote => None,
        }
    }
}

impl<'a> ProofInput<'a> {
    /// Opens the files, or connects to the peers, for the blocks from `start` to `end`. A job without a height to
    /// stop at ends where bridges do, if they are a few blocks behind, but not below an earlier plan's end.
    pub(super) fn open(
        request: &Request<'a>,
        proofs: &'a ProofsInput,
        dir: &'a dyn ChainSource,
        start: &ForestStart,
        (end, earlier): (Height, Option<&Plan>),
    ) -> Result<Self, SyncError> {
        let (network, chain) = (request.env.params.network, dir.chain());
        match proofs {
            ProofsInput::Folder(folder) => {
                let files = ProofFiles::open(folder, network, chain, (start, end))?;
                let bytes = files.bytes();
                Ok(Self { from: RangeSource::Files(files), start: start.clone(), stop: end, bytes })
            }
            ProofsInput::Peers(_) if request.env.is_shared => {
                Ok(Self { from: RangeSource::Remote, start: start.clone(), stop: end, bytes: 0 })
            }
            ProofsInput::Peers(peers) => {
                let asking = ProofRequester {
                    network,
                    observer: request.env.observer,
                    interrupt: request.env.interrupt,
                };
                let peers = PeerProofs::connect(peers, asking, dir)?.starting_with(start.clone());
                let least = earlier.map_or(0, |plan| plan.identity.stop).min(end);
                let stop = match request.stop {
                    Stop::At(_) => end,
                    _ => peers.reached(end)?.max(least),
                };
                peers.expect_trusted()?;
                let (from, start) = (RangeSource::Peers(Box::new(peers)), start.clone());
                Ok(Self { from, start, stop, bytes: 0 })
            }
        }
    }

    /// Identifies the ranges up to a height, so that a later start recognizes them.
    pub(super) fn id(&self, last: Height) -> [u8; 32] {
        match &self.from {
            RangeSource::Files(files) => files.id(&self.start.roots, last),
            RangeSource::Peers(_) | RangeSource::Remote => PeerProofs::id(&self.start.roots),
        }
    }

    /// The ranges above a height, ascending.
    pub(super) fn above(
        &self,
        request: &Request<'_>,
        dir: &dyn ChainSource,
        below: Height,
    ) -> Vec<HeightRange> {
        match &self.from {
            RangeSource::Files(files) => files.heights().filter(|it| it.start > below).collect(),
            RangeSource::Peers(_) | RangeSource::Remote => {
                let blocks = HeightRange::new(below + 1, self.stop + 1);
                pass::divided(request, dir, blocks, request.env.threads)
            }
        }
    }
}
