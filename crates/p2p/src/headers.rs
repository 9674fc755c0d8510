//! [`HeaderSync`]: which chain the peers have.
//!
//! Without sockets, clock and threads: it is told what happened and when, and says by
//! [`HeaderAction`]s what to do.
//!
//! Headers go into a [`HeaderTree`], which checks them by all rules. Before that:
//!
//! * A message whose headers do not follow each other, or lack the work that they claim, costs the
//!   peer its connection.
//! * Headers enter the tree only once their chain has [as much work](HeaderSync::work_required) as
//!   the real one is known to have. Until then a long chain is a *candidate*: there is at most one,
//!   of bounded size, and it is dropped when it proves too short. So peers can fill the tree only at
//!   the price of real work.
//!
//! One peer at a time is asked for a long stretch: it has the *run*. It loses the run if it stalls or
//! takes too long, and another one goes on where it stopped. When the run has ended, or if our tip
//! was recent from the start, all others are asked for what they have beyond it, so that of all
//! their chains the one with the most work wins. A peer that has a lot more gets the run.
//!
//! What it does not do: talk to peers, keep headers on a disk ([`store`] has the format for that),
//! or know which blocks are valid.

mod answer;
mod best_chain;
mod candidate;
pub mod store;
#[cfg(test)]
pub(crate) mod tests;

pub use answer::TooNew;

use crate::PeerId;
use answer::EarlyChain;
use apus_chain::{
    BlockHash, Header, HeaderError, HeaderId, HeaderTree, Height, KNOTS_CHAIN, Params, block_work,
};
use best_chain::{BestChain, height_of, work_of};
use candidate::CandidateChain;
use std::collections::BTreeMap;

/// Most headers of a message, and as many as a peer sends while it has more (Core
/// `net_processing.h`, `MAX_HEADERS_RESULTS`).
pub const MAX_HEADERS_RESULTS: usize = 2000;

/// Chains with this many blocks' work less than ours are still taken without trial (Core
/// `net_processing.cpp`, `GetAntiDoSWorkThreshold`).
const BLOCKS_BEHIND_MAX: u128 = 144;

/// Headers outside the best chain that the tree may hold before further ones have to be better than
/// that: 10 MB. They cost real work, but on test networks that is little.
const STALE_HEADERS_MAX: usize = 1 << 17;

/// How far below our tip a first request starts: a peer that has our tip, or lacks a few blocks,
/// answers with what it has, and so tells us where it is. Core starts one below.
const LOCATOR_OVERLAP: Height = 6;

/// Our tip is recent, and peers have little to add, if it is younger (Core `net_processing.cpp`,
/// `SendMessages`).
const RECENT_SECONDS: i64 = 24 * 60 * 60;

/// What the caller, which holds the connections, is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderAction {
    /// Send a `getheaders`.
    GetHeaders {
        /// To this peer.
        peer: PeerId,
        /// Hashes of blocks, the highest first.
        locator: Vec<BlockHash>,
        /// Zero: as many as a message takes.
        stop: BlockHash,
    },
    /// End the connection. The peer is forgotten here already.
    Disconnect {
        /// To this peer.
        peer: PeerId,
        /// Because of this.
        why: DisconnectReason,
    },
}

/// What a message of headers brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Learned {
    /// How many headers are new in the tree.
    pub new_headers: usize,
    /// Whether the most-work chain ends in another header than before.
    pub best_changed: bool,
    /// Whether headers were left out whose time lies too far after this machine's clock. If all
    /// peers send such, the clock is wrong.
    pub too_new: bool,
}

/// What a peer is to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeaderWant {
    /// Nothing.
    Nothing,
    /// What it has beyond our tip.
    News,
    /// A long stretch, as soon as no other peer has the run.
    Run,
}

/// A connected peer: constant memory.
#[derive(Debug)]
struct HeaderPeer {
    /// The header with the most work that its chain is known to have.
    best: HeaderId,
    /// When it was sent a request that it has not answered.
    asked_ms: Option<u64>,
    want: HeaderWant,
    /// It told all that it had, since it connected or was to be asked again.
    caught_up: bool,
    /// It answered at least once.
    has_answered: bool,
    /// Height of the highest block of ours that the last request to it named.
    asked_from: Height,
    /// Messages since the last one whose headers connected.
    unconnecting: u32,
    /// Those of its headers that the clock alone kept out, when it last sent some.
    early: Option<Box<EarlyChain>>,
}

/// The peer that has the run, and by when it has to be done.
#[derive(Debug, Clone, Copy)]
struct HeaderRun {
    peer: PeerId,
    started_ms: u64,
    allowance_ms: u64,
}

/// Finds the most-work chain of all peers. See the [module](self).
///
/// `now_ms` is everywhere in milliseconds of a clock that never goes back.
#[derive(Debug)]
pub struct HeaderSync {
    tree: HeaderTree,
    best: BestChain,
    /// Time in seconds since 1970 when `now_ms` is 0.
    epoch: i64,
    peers: BTreeMap<PeerId, HeaderPeer>,
    run: Option<HeaderRun>,
    candidate: Option<CandidateChain>,
    candidate_max: Option<usize>,
    /// A run has ended with a chain of enough work.
    ran: bool,
    /// How many runs took too long.
    lapses: u32,
    actions: Vec<HeaderAction>,
    new: Vec<[u8; Header::SIZE]>,
}

impl HeaderSync {
    /// Knows the genesis block and no peers. `epoch` is the time in seconds since 1970 when `now_ms`
    /// is 0.
    pub fn new(params: &Params, epoch: i64) -> Self {
        let mut tree = HeaderTree::new(params, epoch);
        // Only headers whose parents are there are handed to it.
        tree.set_orphans_max(0);
        Self {
            best: BestChain::of(&tree),
            tree,
            epoch,
            peers: BTreeMap::new(),
            run: None,
            candidate: None,
            candidate_max: None,
            ran: false,
            lapses: 0,
            actions: Vec::new(),
            new: Vec::new(),
        }
    }

    /// Takes headers that an earlier run of the program had in its tree, each after its parent, up
    /// to the first that is refused: how many were taken, and why no more. They are checked like
    /// any others, but for the work of their chain.
    pub fn restore(
        &mut self,
        stored: impl IntoIterator<Item = [u8; Header::SIZE]>,
    ) -> (usize, Option<HeaderError>) {
        let mut count = 0;
        let mut stored = stored.into_iter();
        let error = stored.find_map(|raw| match self.tree.accept(&raw) {
            Ok(_) => {
                count += 1;
                None
            }
            Err(error) => Some(error),
        });
        self.best.follow(&self.tree);
        (count, error)
    }

    /// Sets the clock: the time is `now` (seconds since 1970) at `now_ms`. Of use after the machine
    /// slept.
    pub fn set_clock(&mut self, now: i64, now_ms: u64) {
        self.epoch = now.saturating_sub(seconds(now_ms));
    }

    /// A handshake was done. `PeerId`s are never used again.
    pub fn peer_connected(&mut self, peer: PeerId, now_ms: u64) {
        let genesis = self.best.ids()[0];
        let state = HeaderPeer {
            best: genesis,
            asked_ms: None,
            want: HeaderWant::News,
            caught_up: false,
            has_answered: false,
            asked_from: 0,
            unconnecting: 0,
            early: None,
        };
        self.peers.insert(peer, state);
        self.schedule(now_ms);
    }

    /// A connection ended, for whatever reason.
    pub fn peer_gone(&mut self, peer: PeerId, now_ms: u64) {
        self.remove(peer);
        self.schedule(now_ms);
    }

    /// A peer told of a block by its hash. Where the header is unknown the peer is asked for it.
    pub fn announced(&mut self, peer: PeerId, hash: &BlockHash, now_ms: u64) {
        match self.tree.find(hash) {
            Some(id) => self.peer_has(peer, id),
            None => {
                if let Some(state) =
                    self.peers.get_mut(&peer).filter(|p| p.want == HeaderWant::Nothing)
                {
                    state.want = HeaderWant::News;
                }
            }
        }
        self.schedule(now_ms);
    }

    /// Asks all peers for what they have beyond our tip. Until they answered or failed to,
    /// [`is_synced`](Self::is_synced) is false.
    pub fn refresh(&mut self, now_ms: u64) {
        for peer in self.peers.values_mut() {
            peer.caught_up = false;
            if peer.want == HeaderWant::Nothing {
                peer.want = HeaderWant::News;
            }
        }
        self.schedule(now_ms);
    }

    /// What is to be done, since the last call: at most one request for each peer.
    pub fn actions(&mut self) -> Vec<HeaderAction> {
        std::mem::take(&mut self.actions)
    }

    /// The headers that are new in the tree since the last call, each after its parent: for the
    /// caller to keep.
    pub fn take_new(&mut self) -> Vec<[u8; Header::SIZE]> {
        std::mem::take(&mut self.new)
    }

    /// All headers that were taken.
    pub const fn tree(&self) -> &HeaderTree {
        &self.tree
    }

    /// The last header of the most-work chain.
    pub const fn best(&self) -> HeaderId {
        self.tree.tip()
    }

    /// The most-work chain by height, the genesis block first.
    pub fn best_chain(&self) -> &[HeaderId] {
        self.best.ids()
    }

    /// The header with the most work that a peer's chain is known to have; none of peers that are
    /// not connected.
    pub fn peer_best(&self, peer: PeerId) -> Option<HeaderId> {
        self.peers.get(&peer).map(|peer| peer.best)
    }

    /// Whether a peer has told all headers that it had, since it connected or was to be asked again.
    pub fn has_told_all(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.caught_up)
    }

    /// Height up to which a peer is known to have the blocks of [`best_chain`](Self::best_chain).
    pub fn peer_height(&self, peer: PeerId) -> Option<Height> {
        Some(self.best.fork_height(&self.tree, self.peer_best(peer)?))
    }

    /// Height of the chain on trial, to show progress; none where there is none.
    pub fn candidate_height(&self) -> Option<Height> {
        self.candidate.as_ref().map(CandidateChain::height)
    }

    /// Work that a chain must have for its headers to be taken (Core `net_processing.cpp`,
    /// `GetAntiDoSWorkThreshold`): what the network is known to have, or a day less than our tip
    /// has if that is more.
    pub fn work_required(&self) -> u128 {
        let near_tip = self.tree.connected(self.tree.tip()).map_or(0, |tip| {
            tip.chain_work.saturating_sub(BLOCKS_BEHIND_MAX.saturating_mul(block_work(tip.bits)))
        });
        near_tip.max(self.tree.params().minimum_chain_work)
    }

    /// Limits how many headers a chain on trial may have; without it the age of the network does.
    pub fn set_candidate_max(&mut self, count: usize) {
        self.candidate_max = Some(count);
    }

    fn now(&self, now_ms: u64) -> i64 {
        self.epoch.saturating_add(seconds(now_ms))
    }

    fn has_minimum_work(&self) -> bool {
        work_of(&self.tree, self.tree.tip()) >= self.tree.params().minimum_chain_work
    }

    fn is_recent(&self, now_ms: u64) -> bool {
        self.tree.connected(self.tree.tip()).is_some_and(|tip| {
            i64::from(tip.time) > self.now(now_ms).saturating_sub(RECENT_SECONDS)
        })
    }

    /// Notes that a peer's chain has this header.
    fn peer_has(&mut self, peer: PeerId, id: HeaderId) {
        if let Some(peer) = self.peers.get_mut(&peer)
            && work_of(&self.tree, id) > work_of(&self.tree, peer.best)
        {
            peer.best = id;
        }
    }

    fn remove(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.run.take_if(|run| run.peer == peer);
        self.actions.retain(
            |action| !matches!(action, HeaderAction::GetHeaders { peer: of, .. } if *of == peer),
        );
    }

    fn disconnect(&mut self, peer: PeerId, why: DisconnectReason) {
        if self.peers.contains_key(&peer) {
            self.remove(peer);
            self.actions.push(HeaderAction::Disconnect { peer, why });
        }
    }
}

fn seconds(ms: u64) -> i64 {
    i64::try_from(ms / 1000).unwrap_or(i64::MAX)
}

/// A peer sent what no honest one sends: it is to be disconnected and not asked again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Longer than a message can be (Core `net_processing.h`, `MAX_HEADERS_RESULTS`).
    #[error("the peer sent {count} headers in a message, which holds at most 2000; use another")]
    TooManyHeaders {
        /// How many there were.
        count: usize,
    },
    /// A header is not the child of the one before it in the message.
    #[error("header {index} of the peer's message, {hash}, does not follow the one before it")]
    NotContinuous {
        /// Its place in the message, from 0.
        index: usize,
        /// The header.
        hash: BlockHash,
    },
    /// A header lacks the work for the target that it claims.
    #[error(
        "header {index} of the peer's message, {hash}, lacks the work for its bits 0x{bits:08x}"
    )]
    HighHash {
        /// Its place in the message, from 0.
        index: usize,
        /// The header.
        hash: BlockHash,
        /// The target that it claims.
        bits: u32,
    },
    /// A header of Bitcoin Knots' own proof of work.
    #[error("header {index} of the peer's message is {KNOTS_CHAIN}")]
    OfKnots {
        /// Its place in the message, from 0.
        index: usize,
    },
    /// The target changes as no chain's may, whatever the times in it (Core `pow.cpp`,
    /// `PermittedDifficultyTransition`).
    #[error(
        "the peer's header {hash} at height {height} goes from bits 0x{from:08x} to 0x{to:08x}, \
         further than the rules of this chain let it"
    )]
    DifficultyTransition {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: u32,
        /// The target before it.
        from: u32,
        /// The target that it claims.
        to: u32,
    },
    /// A header breaks a rule.
    #[error("the peer sent an invalid header: {0}")]
    Invalid(#[from] HeaderError),
    /// More headers than any chain can have by now, with less work than the real one's.
    #[error(
        "the peer's chain has more than {limit} headers and still too little work: it is not the \
         chain that others have"
    )]
    EndlessChain {
        /// How many are taken before the work suffices.
        limit: usize,
    },
    /// It goes on with headers whose parents it does not give when asked.
    #[error("the peer sent {count} messages of headers that follow nothing known")]
    Unconnecting {
        /// How many of its messages connected to nothing.
        count: u32,
    },
}

/// Why a peer that did nothing wrong is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// It was to send the chain and sent nothing.
    #[error("the peer did not answer a request for headers within {seconds} seconds")]
    Stalled {
        /// How long it had.
        seconds: u64,
    },
    /// It was to send the chain and took too long over it.
    #[error("the peer had not sent all headers after {seconds} seconds; another one may be faster")]
    TooSlow {
        /// How long it had.
        seconds: u64,
    },
    /// Its chain ends with less work than the real one has (Core `net_processing.cpp`,
    /// `UpdatePeerStateForReceivedHeaders`).
    #[error("the peer's chain has less work than this network's: it may still be synchronizing")]
    LowWork,
    /// It gave headers that another one went on from and that turned out to be invalid.
    #[error("the peer sent headers that proved to be invalid")]
    InvalidHeaders,
}
