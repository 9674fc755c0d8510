//! [`ProofPeerError`]: why a peer's proofs are not to be had, and what to do about it.

use crate::peer_error::{Fault, PeerError};
use crate::services::Services;
use crate::utreexo::{UTREEXO, UTREEXO_ARCHIVE};
use apus_chain::{BlockHash, KnownBlock};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum ProofPeerError {
    /// The peer has no proofs to give.
    #[error(
        "{peer} is no bridge node of Utreexo that has the proofs of all blocks: of its services ({offered:#x}) it lacks \
         {lacking}. Name another peer, such as a utreexod that runs with --flatutreexoproofindex --prune=0",
        offered = .offered.0, lacking = lacking(*.offered)
    )]
    NoBridge {
        /// The peer.
        peer: String,
        /// What it offers.
        offered: Services,
    },
    /// The connection to a peer did not come about or ended.
    #[error("{peer}: {error}: see that it runs and can be reached, or name another peer")]
    Peer {
        /// The peer.
        peer: String,
        /// Why.
        error: PeerError,
    },
    /// The peer answered what came later, and not this.
    #[error(
        "{peer} gives no {what} of block {} ({}), as utreexod does of blocks that are not on its best chain, of all \
         blocks while its own last one is older than 24 hours or it is behind its peers, and where it prunes: see \
         that it is in sync with this chain and runs with --prune=0, or name another peer", block.height, block.hash
    )]
    Unanswered {
        /// The peer.
        peer: String,
        /// What was asked for.
        what: &'static str,
        /// The block.
        block: KnownBlock,
    },
    /// The peer answered what was not asked.
    #[error(
        "{peer} was asked for the {what} of block {} ({}) and answers with {found}: name another peer",
        block.height, block.hash
    )]
    NotAsked {
        /// The peer.
        peer: String,
        /// What was asked for.
        what: &'static str,
        /// The block.
        block: KnownBlock,
        /// What came instead.
        found: String,
    },
    /// The parts of a proof do not make one.
    #[error(
        "{peer} gives the proof of block {} ({}) in parts that do not fit: {what}: name another peer",
        block.height, block.hash
    )]
    Parts {
        /// The peer.
        peer: String,
        /// The block.
        block: KnownBlock,
        /// In which way.
        what: String,
    },
    /// More than one attempt failed; the last one's reason is told.
    #[error("{error}; so ended the last of {tries} attempts in {seconds} seconds")]
    GaveUp {
        /// The last one's.
        error: Box<Self>,
        /// How many there were.
        tries: u32,
        /// In how much time.
        seconds: u64,
    },
    /// The caller wants no answers any more.
    #[error("interrupted")]
    Interrupted,
    /// The caller took an answer of another kind than it asked for.
    #[error("no {what} was asked for at this place: a mistake in the program")]
    OutOfTurn {
        /// What the caller wants.
        what: &'static str,
    },
}

impl ProofPeerError {
    pub(super) fn of(peer: String, error: PeerError) -> Self {
        match error {
            PeerError::MissingServices { offered, .. } => Self::NoBridge { peer, offered },
            error => Self::Peer { peer, error },
        }
    }

    /// What was asked for came for another block, or in another message.
    pub(super) const fn not_asked(
        peer: String,
        what: &'static str,
        block: KnownBlock,
        found: String,
    ) -> Self {
        Self::NotAsked { peer, what, block, found }
    }

    /// Whether the same peer may answer if it is asked again.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Peer { error: PeerError::ConnectedToSelf, .. } => false,
            Self::Peer { error, .. } => error.kind() != Fault::Misbehaved,
            _ => false,
        }
    }
}

/// Which of the two services are not among these.
fn lacking(offered: Services) -> String {
    let named =
        [(UTREEXO, "bit 12 (NODE_UTREEXO)"), (UTREEXO_ARCHIVE, "bit 13 (NODE_UTREEXO_ARCHIVE)")];
    let lacking = named.into_iter().filter(|(service, _)| !offered.has(*service));
    lacking.map(|(_, name)| name).collect::<Vec<_>>().join(" and ")
}

/// Of which block, where a message names one that is not at hand by height.
pub(super) fn of_block(hash: &BlockHash) -> String {
    format!("what is about block {hash}")
}
