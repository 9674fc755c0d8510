//! [`ProofPeers`]: proofs of blocks, and roots, from bridge nodes of Utreexo, asked for ahead of their turn.
//!
//! A caller begins with a list of [`Question`]s and takes the answers in the same order. The [`ProofAnswers`] have a
//! connection of their own meanwhile, on which more than one question is under way, so that a far peer costs no wait
//! for each. A connection that breaks is made anew, with the same peer or another, and what was not answered is asked
//! again. What a peer tells is not checked here: the caller has the roots that it has to fit.
//!
//! What depends on the one program that answers is in `docs/utreexo.md`.

mod answers;
#[cfg(test)]
mod tests;
mod window;

pub use answers::ProofAnswers;

use crate::message::{BRIDGE, UTREEXO, UTREEXO_ARCHIVE};
use apus_chain::{BlockHash, KnownBlock};
use apus_p2p::addresses::NodeAddress;
use apus_p2p::message::{Message, Services};
use apus_p2p::transport::{Connection, Dial, PeerError, PeerFault, connect};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something to ask a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The roots after a block.
    Roots(KnownBlock),
    /// The proof of what a block spends, and the leaves.
    Proof(KnownBlock),
}

impl Question {
    /// The block that it is about.
    #[must_use]
    pub const fn block(&self) -> KnownBlock {
        match self {
            Self::Roots(block) | Self::Proof(block) => *block,
        }
    }
}

/// Bridge nodes, and the connections to them that wait for questions.
#[derive(Debug)]
pub struct ProofPeers<'a> {
    dial: Dial,
    addresses: Vec<NodeAddress>,
    /// How long peers may give nothing that was asked for.
    patience: Duration,
    /// Set from outside to stop waiting.
    interrupt: &'a AtomicBool,
    /// Why some of them could not be reached at first.
    absent: Vec<ProofPeerError>,
    idle: Mutex<Vec<BridgeLink>>,
    /// Which peer the next connection is made to, modulo their number.
    next: Mutex<usize>,
}

impl<'a> ProofPeers<'a> {
    /// Connects to each peer once. `dial` says how; which services a peer must offer is known here.
    ///
    /// # Errors
    /// When a peer is no bridge node of this network, or none can be reached. Of several that can't, the first
    /// one's reason is told.
    pub fn connect(
        addresses: Vec<NodeAddress>,
        dial: Dial,
        patience: Duration,
        interrupt: &'a AtomicBool,
    ) -> Result<Self, ProofPeerError> {
        let dial = Dial { required_services: BRIDGE, ..dial };
        let (absent, idle, next) = (Vec::new(), Mutex::default(), Mutex::default());
        let mut peers = Self { dial, addresses, patience, interrupt, absent, idle, next };
        for peer in 0..peers.addresses.len() {
            match BridgeLink::open(peer, &peers.addresses[peer], &peers.dial) {
                Ok(link) => peers.give_back(link),
                Err(error) if error.may_pass() => peers.absent.push(error),
                Err(error) => return Err(error),
            }
        }
        if peers.lock_idle().is_empty() && !peers.absent.is_empty() {
            return Err(peers.absent.swap_remove(0));
        }
        Ok(peers)
    }

    /// Why some of them could not be reached at first. They are asked again where others fail.
    #[must_use]
    pub fn absent(&self) -> &[ProofPeerError] {
        &self.absent
    }

    /// Begins to ask.
    pub fn ask<'q>(
        &'q self,
        questions: impl Iterator<Item = Question> + Send + 'q,
    ) -> ProofAnswers<'q> {
        ProofAnswers::new(self, Box::new(questions))
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    /// A connection that waits, if there is one to a peer that is not ruled out.
    fn take(&self, ruled_out: &[bool]) -> Option<BridgeLink> {
        let mut idle = self.lock_idle();
        let at = idle.iter().position(|link| !ruled_out[link.peer()])?;
        Some(idle.swap_remove(at))
    }

    fn give_back(&self, link: BridgeLink) {
        self.lock_idle().push(link);
    }

    /// Closes the connections to a peer that wait.
    fn forget(&self, peer: usize) {
        self.lock_idle().retain(|link| link.peer() != peer);
    }

    /// The next peer in turn that is not ruled out.
    fn next(&self, ruled_out: &[bool]) -> Option<usize> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.addresses.len();
        let found = (0..count).map(|step| (*next + step) % count).find(|peer| !ruled_out[*peer])?;
        *next = (found + 1) % count;
        Some(found)
    }

    /// The list is whole at any moment, also where a thread ended over it.
    fn lock_idle(&self) -> MutexGuard<'_, Vec<BridgeLink>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
#[derive(Debug)]
struct BridgeLink {
    peer: usize,
    name: String,
    connection: Connection,
    /// Pings so far. Their numbers are those of this connection, so that a late pong is no other one's.
    pings: u64,
    /// Bytes that had come when the last message was whole.
    at_message: u64,
}

impl BridgeLink {
    /// Connects to a peer, which has a place among the others.
    fn open(peer: usize, address: &NodeAddress, dial: &Dial) -> Result<Self, ProofPeerError> {
        let name = address.to_string();
        let connection = match connect(address, dial) {
            Ok(connection) => connection,
            Err(error) => return Err(ProofPeerError::of(name, error)),
        };
        Ok(Self { peer, name, connection, pings: 0, at_message: 0 })
    }

    /// Its place.
    const fn peer(&self) -> usize {
        self.peer
    }

    /// Its address.
    fn name(&self) -> &str {
        &self.name
    }

    /// All bytes that came, those of an unfinished message among them.
    fn received(&self) -> u64 {
        self.connection.reader.bytes_received()
    }

    fn send(&mut self, message: &Message) -> Result<(), PeerError> {
        self.connection.writer.write(message)
    }

    /// Sends a ping, and tells its number.
    fn ping(&mut self) -> Result<u64, PeerError> {
        self.pings += 1;
        self.send(&Message::Ping(self.pings))?;
        Ok(self.pings)
    }

    /// The next message, and how many bytes came for it; none if it is not all here after a moment.
    fn receive(&mut self) -> Result<Option<(Message, u64)>, PeerError> {
        let Some(message) = self.connection.reader.read()? else { return Ok(None) };
        let bytes = self.received() - self.at_message;
        self.at_message += bytes;
        Ok(Some((message, bytes)))
    }
}

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
    fn of(peer: String, error: PeerError) -> Self {
        match error {
            PeerError::MissingServices { offered, .. } => Self::NoBridge { peer, offered },
            error => Self::Peer { peer, error },
        }
    }

    /// What was asked for came for another block, or in another message.
    const fn not_asked(peer: String, what: &'static str, block: KnownBlock, found: String) -> Self {
        Self::NotAsked { peer, what, block, found }
    }

    /// Whether the same peer may answer if it is asked again.
    fn may_pass(&self) -> bool {
        match self {
            Self::Peer { error: PeerError::ConnectedToSelf, .. } => false,
            Self::Peer { error, .. } => error.kind() != PeerFault::Misbehaved,
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
fn of_block(hash: &BlockHash) -> String {
    format!("what is about block {hash}")
}
