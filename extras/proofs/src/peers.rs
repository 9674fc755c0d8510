//! [`ProofPeers`]: requests proofs of blocks, and roots, from Utreexo bridge nodes ahead of time.
//!
//! A caller starts with a list of [`Question`]s to one peer and takes the answers in the same order. Meanwhile the
//! [`ProofAnswers`] keep several questions in flight on their own connection, so that a distant peer does not
//! cost a round trip for each. If the connection breaks, they connect again to the same peer, and repeat the
//! unanswered questions. Answers are not verified here: the caller has the roots to check them against. Since
//! all of them are one peer's, the caller knows whom to leave out if they are wrong.
//!
//! `docs/utreexo.md` describes the behaviour of utreexod, the only server program.

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
use parking_lot::Mutex;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A question to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The roots after a block.
    Roots(KnownBlock),
    /// The proof of the coins that a block spends, and their leaf data.
    Proof(KnownBlock),
    /// Only the leaf data of the first coins that a block spends, at most this many.
    Leaves(KnownBlock, usize),
}

impl Question {
    /// The block that the question concerns.
    #[must_use]
    pub const fn block(&self) -> KnownBlock {
        match self {
            Self::Roots(block) | Self::Proof(block) | Self::Leaves(block, _) => *block,
        }
    }
}

/// Bridge nodes, and the idle connections to them.
#[derive(Debug)]
pub struct ProofPeers<'a> {
    dial: Dial,
    addresses: Vec<NodeAddress>,
    /// How long to wait for a requested answer.
    patience: Duration,
    /// Set by the caller to stop waiting.
    interrupt: &'a AtomicBool,
    /// Why some peers could not be reached at the start.
    absent: Vec<ProofPeerError>,
    idle: Mutex<Vec<BridgeLink>>,
    choice: Mutex<PeerChoice>,
}

/// Which peers are asked.
#[derive(Debug)]
struct PeerChoice {
    /// The first peer of the next choice.
    next: usize,
    /// Whether each peer is not asked: it sent something wrong or nothing, or could not be reached.
    left_out: Vec<bool>,
    /// Peers that could not be reached, or did not answer. They are asked once all others are left out.
    spare: Vec<usize>,
    /// How often each peer was one of these.
    absences: Vec<u32>,
}

/// A peer that failed this often without sending anything wrong is not asked again.
const ABSENCES_MAX: u32 = 4;

impl PeerChoice {
    /// Asks a peer only once all others are left out.
    fn set_aside(&mut self, peer: usize) {
        self.left_out[peer] = true;
        self.absences[peer] += 1;
        if self.absences[peer] < ABSENCES_MAX {
            self.spare.push(peer);
        }
    }

    /// Whether a peer is asked that has another address than this one.
    fn has_others(&self, peer: usize, addresses: &[NodeAddress]) -> bool {
        let mut asked = self.left_out.iter().zip(addresses).filter(|(out, _)| !**out);
        asked.any(|(_, address)| !is_same(address, &addresses[peer]))
    }
}

/// Whether two addresses lead to one peer: the user may have named it twice.
fn is_same(one: &NodeAddress, other: &NodeAddress) -> bool {
    (&one.host, one.port) == (&other.host, other.port)
}

impl<'a> ProofPeers<'a> {
    /// Connects to each peer once, with `dial`, but requires the services of a bridge node.
    ///
    /// # Errors
    /// A peer is not a bridge node of this network, or no peer can be reached. If several cannot be reached,
    /// the first one's error is returned.
    pub fn connect(
        addresses: Vec<NodeAddress>,
        dial: Dial,
        patience: Duration,
        interrupt: &'a AtomicBool,
    ) -> Result<Self, ProofPeerError> {
        let mut peers = Self::new(addresses, dial, patience, interrupt);
        for peer in 0..peers.addresses.len() {
            match BridgeLink::open(peer, &peers.addresses[peer], &peers.dial) {
                Ok(link) => peers.give_back(link),
                Err(error) if error.may_pass() => {
                    peers.absent.push(error);
                    peers.choice.lock().set_aside(peer);
                }
                Err(error) => return Err(error),
            }
        }
        if peers.idle.lock().is_empty() && !peers.absent.is_empty() {
            return Err(peers.absent.swap_remove(0));
        }
        Ok(peers)
    }

    /// Connects to those of these nodes that are bridges and can be reached; `None` if there are none.
    ///
    /// # Errors
    /// Only [`ProofPeerError::Interrupted`].
    pub(crate) fn connect_to_any(
        nodes: Vec<NodeAddress>,
        dial: &Dial,
        patience: Duration,
        interrupt: &'a AtomicBool,
    ) -> Result<Option<Self>, ProofPeerError> {
        let mut peers = Self::new(Vec::new(), dial.clone(), patience, interrupt);
        let (mut addresses, mut links) = (Vec::new(), Vec::new());
        for node in nodes {
            if peers.is_interrupted() {
                return Err(ProofPeerError::Interrupted);
            }
            if let Ok(link) = BridgeLink::open(addresses.len(), &node, &peers.dial) {
                addresses.push(node);
                links.push(link);
            }
        }
        if peers.is_interrupted() {
            return Err(ProofPeerError::Interrupted);
        }
        peers = Self::new(addresses, peers.dial, patience, interrupt);
        links.into_iter().for_each(|link| peers.give_back(link));
        Ok(Some(peers).filter(|peers| peers.count() > 0))
    }

    fn new(
        addresses: Vec<NodeAddress>,
        dial: Dial,
        patience: Duration,
        interrupt: &'a AtomicBool,
    ) -> Self {
        let dial = Dial { required_services: BRIDGE, ..dial };
        let (absent, idle) = (Vec::new(), Mutex::default());
        let (left_out, absences) = (vec![false; addresses.len()], vec![0; addresses.len()]);
        let choice = Mutex::new(PeerChoice { next: 0, left_out, spare: Vec::new(), absences });
        Self { dial, addresses, patience, interrupt, absent, idle, choice }
    }

    /// Why some peers could not be reached at the start. They are tried again once all others are left out.
    #[must_use]
    pub fn absent(&self) -> &[ProofPeerError] {
        &self.absent
    }

    /// The index of the peer with this address.
    pub(crate) fn index_of(&self, name: &str) -> Option<usize> {
        self.addresses.iter().position(|it| it.to_string() == name)
    }

    /// Asks a peer nothing more, if that leaves one to ask; or, if its failure may pass, not before all others are left
    /// out. `None` if no other is left; otherwise whether the peer was asked until now.
    pub(crate) fn leave_out(&self, peer: usize, may_pass: bool) -> Option<bool> {
        let mut choice = self.choice.lock();
        if choice.left_out[peer] {
            return Some(false);
        }
        if !choice.has_others(peer, &self.addresses) {
            for spare in mem::take(&mut choice.spare) {
                choice.left_out[spare] = false;
            }
            if !choice.has_others(peer, &self.addresses) {
                return None;
            }
        }
        for (at, address) in self.addresses.iter().enumerate() {
            choice.left_out[at] |= is_same(address, &self.addresses[peer]);
        }
        if may_pass {
            choice.set_aside(peer);
        }
        drop(choice);
        self.forget(peer);
        Some(true)
    }

    /// Whether another peer could be asked.
    fn has_others(&self, peer: usize) -> bool {
        let choice = self.choice.lock();
        !choice.spare.is_empty() || choice.has_others(peer, &self.addresses)
    }

    /// The number of peers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// Starts a series of questions to a peer, by its index.
    pub fn ask<'q>(
        &'q self,
        peer: usize,
        questions: impl Iterator<Item = Question> + Send + 'q,
    ) -> ProofAnswers<'q> {
        ProofAnswers::new(self, peer, Box::new(questions))
    }

    /// Up to `count` peers that are not left out, by index; over many calls each is chosen as often.
    pub(crate) fn choose(&self, count: usize) -> Vec<usize> {
        let mut choice = self.choice.lock();
        let all = self.addresses.len();
        let in_turn = (0..all).map(|step| (choice.next + step) % all);
        let chosen: Vec<usize> =
            in_turn.filter(|peer| !choice.left_out[*peer]).take(count).collect();
        choice.next = chosen.last().map_or(choice.next, |last| last + 1);
        chosen
    }

    /// The address of a peer.
    pub(crate) fn name_of(&self, peer: usize) -> String {
        self.addresses[peer].to_string()
    }

    /// Whether the caller wants to wait no longer.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    /// Takes an idle connection to a peer.
    fn take(&self, peer: usize) -> Option<BridgeLink> {
        let mut idle = self.idle.lock();
        let at = idle.iter().position(|link| link.peer() == peer)?;
        Some(idle.swap_remove(at))
    }

    fn give_back(&self, link: BridgeLink) {
        self.idle.lock().push(link);
    }

    /// Closes the idle connections to a peer.
    fn forget(&self, peer: usize) {
        self.idle.lock().retain(|link| link.peer() != peer);
    }
}

/// A connection to a bridge node.
#[derive(Debug)]
struct BridgeLink {
    peer: usize,
    connection: Connection,
    /// Pings sent so far. Nonces are numbered per connection, so a late pong cannot match another ping.
    pings: u64,
    /// Bytes received by the end of the last complete message.
    at_message: u64,
}

impl BridgeLink {
    /// Connects to a peer; `peer` is its index.
    fn open(peer: usize, address: &NodeAddress, dial: &Dial) -> Result<Self, ProofPeerError> {
        let connection = connect(address, dial)
            .map_err(|error| ProofPeerError::of(address.to_string(), error))?;
        Ok(Self { peer, connection, pings: 0, at_message: 0 })
    }

    /// The peer's index.
    const fn peer(&self) -> usize {
        self.peer
    }

    /// All bytes received, including those of an incomplete message.
    fn received(&self) -> u64 {
        self.connection.reader.bytes_received()
    }

    fn send(&mut self, message: &Message) -> Result<(), PeerError> {
        self.connection.writer.write(message)
    }

    /// Sends a ping and returns its nonce.
    fn ping(&mut self) -> Result<u64, PeerError> {
        self.pings += 1;
        self.send(&Message::Ping(self.pings))?;
        Ok(self.pings)
    }

    /// Receives the next message and its size in bytes; `None` if it is not complete yet.
    fn receive(&mut self) -> Result<Option<(Message, u64)>, PeerError> {
        let Some(message) = self.connection.reader.read()? else { return Ok(None) };
        let bytes = self.received() - self.at_message;
        self.at_message += bytes;
        Ok(Some((message, bytes)))
    }
}

/// Why a peer gives no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ProofPeerError {
    /// The peer does not serve proofs.
    #[error(
        "{peer} is not a Utreexo bridge node with the proofs of all blocks: its services ({offered:#x}) lack \
         {lacking}. Use another peer, such as a utreexod started with --flatutreexoproofindex --prune=0",
        offered = .offered.0, lacking = lacking(*.offered)
    )]
    NoBridge {
        /// The peer.
        peer: String,
        /// The services that it offers.
        offered: Services,
    },
    /// The connection to a peer failed.
    #[error("{peer}: {error}. Check that this peer runs and is reachable, or use another peer")]
    Peer {
        /// The peer.
        peer: String,
        /// The cause.
        error: PeerError,
    },
    /// The peer skipped this request and answered a later one.
    #[error(
        "{peer} sends no {what} of block {} ({}). utreexod does so for blocks that are not on its best chain, for \
         all blocks while its own tip is older than 24 hours or it is behind its peers, and if it prunes. Check \
         that the peer is in sync with this chain and runs with --prune=0, or use another peer", block.height, block.hash
    )]
    Unanswered {
        /// The peer.
        peer: String,
        /// The requested data.
        what: &'static str,
        /// The block.
        block: KnownBlock,
    },
    /// The peer sent something that was not requested.
    #[error(
        "{peer} was asked for the {what} of block {} ({}) but sent {found}. Use another peer",
        block.height, block.hash
    )]
    NotAsked {
        /// The peer.
        peer: String,
        /// The requested data.
        what: &'static str,
        /// The block.
        block: KnownBlock,
        /// The data received instead.
        found: String,
    },
    /// The parts of a proof do not fit together.
    #[error(
        "{peer} sent parts of the proof of block {} ({}) that do not fit together: {what}. Use another peer",
        block.height, block.hash
    )]
    Parts {
        /// The peer.
        peer: String,
        /// The block.
        block: KnownBlock,
        /// The mismatch.
        what: String,
    },
    /// Several attempts failed; this has the last error.
    #[error("{error} (last of {tries} attempts in {seconds} seconds)")]
    GaveUp {
        /// The last error.
        error: Box<Self>,
        /// The number of attempts.
        tries: u32,
        /// Total time in seconds.
        seconds: u64,
    },
    /// The caller interrupted the wait.
    #[error("interrupted")]
    Interrupted,
    /// The caller took an answer of another kind than it asked for: a bug.
    #[error("a bug in Apus: no {what} was requested at this point. Please report it")]
    OutOfTurn {
        /// The kind that the caller wants.
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

    /// The error for an answer about another block, or in another message.
    const fn not_asked(peer: String, what: &'static str, block: KnownBlock, found: String) -> Self {
        Self::NotAsked { peer, what, block, found }
    }

    /// Whether the same peer may answer if asked again.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::GaveUp { error, .. } => error.may_pass(),
            Self::Unanswered { .. } => true,
            Self::Peer { error: PeerError::ConnectedToSelf, .. } => false,
            Self::Peer { error, .. } => error.kind() != PeerFault::Misbehaved,
            _ => false,
        }
    }
}

/// Names the bridge services that are missing.
fn lacking(offered: Services) -> String {
    let named =
        [(UTREEXO, "bit 12 (NODE_UTREEXO)"), (UTREEXO_ARCHIVE, "bit 13 (NODE_UTREEXO_ARCHIVE)")];
    let lacking = named.into_iter().filter(|(service, _)| !offered.has(*service));
    lacking.map(|(_, name)| name).collect::<Vec<_>>().join(" and ")
}

/// Describes data about a block that is known only by its hash.
fn of_block(hash: &BlockHash) -> String {
    format!("data of block {hash}")
}
