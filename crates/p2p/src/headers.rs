//! [`HeaderSync`]: finds the peers' most-work chain of headers.
//!
//! This module uses no sockets, clocks or threads. The caller reports events with their times;
//! [`HeaderAction`]s are the response.
//!
//! Headers go into a [`HeaderTree`], which checks all rules. Before that:
//!
//! * A peer is disconnected if the headers of its message do not follow each other, or lack the work that
//!   they claim.
//! * Headers enter the tree only once their chain has [as much work](HeaderSync::work_required) as the real
//!   one is known to have. Until then a long chain is a *candidate*. There is at most one candidate, of
//!   bounded size, and it is dropped when it proves too short. So peers can fill the tree only at the price
//!   of real work.
//!
//! One peer at a time does the *bulk download*. If it stalls or takes too long, another peer takes over from
//! where it stopped. After the bulk download, or at once if our tip is recent, all other peers are asked what
//! they have beyond our tip, so that the chain with the most work wins. A peer that has a lot more starts
//! another bulk download.
//!
//! This module does not talk to peers, keep headers on disk ([`store`] has the format for that), or know
//! which blocks are valid.

mod answer;
mod best_chain;
mod candidate;
mod list;
pub mod store;
#[cfg(test)]
pub(crate) mod tests;

pub use answer::TooNew;
pub use list::HeaderList;

use crate::PeerId;
use answer::EarlyChain;
use apus_chain::{
    BlockHash, Header, HeaderError, HeaderId, HeaderTree, Height, KNOTS_CHAIN, Params, block_work,
};
use best_chain::{BestChain, height_of, work_of};
use candidate::CandidateChain;
use std::collections::BTreeMap;

/// Maximum number of headers in a message. A peer that has more sends this many (Core `net_processing.h`,
/// `MAX_HEADERS_RESULTS`).
pub const MAX_HEADERS_RESULTS: usize = 2000;

/// A chain that is behind ours by no more than this many blocks' work needs no trial (Core
/// `net_processing.cpp`, `GetAntiDoSWorkThreshold`).
const BLOCKS_BEHIND_MAX: u128 = 144;

/// Maximum number of headers outside the best chain; beyond this, new ones must be on a chain with more work: 10 MB.
/// They cost real work, but on test networks that is little.
const STALE_HEADERS_MAX: usize = 1 << 17;

/// How far below our tip the first request starts. A peer that has our tip, or lacks a few blocks, then
/// answers with the headers it has and so reveals its height. Core starts one below.
const LOCATOR_OVERLAP: Height = 6;

/// Our tip is recent if it is younger than this; then peers have little to add (Core `net_processing.cpp`,
/// `SendMessages`).
const RECENT_SECONDS: i64 = 24 * 60 * 60;

/// An action for the caller, which holds the connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderAction {
    /// Send a `getheaders`.
    GetHeaders {
        /// The recipient.
        peer: PeerId,
        /// Block hashes, the highest first.
        locator: Vec<BlockHash>,
        /// Always zero: send as many as a message holds.
        stop: BlockHash,
    },
    /// End the connection. The peer is already removed here.
    Disconnect {
        /// The peer.
        peer: PeerId,
        /// The reason.
        why: DisconnectReason,
    },
}

/// The effect of a headers message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeaderUpdate {
    /// How many headers are new in the tree.
    pub new_headers: usize,
    /// The most-work chain has a new tip.
    pub best_changed: bool,
    /// Some headers were left out because their times are too far ahead of this machine's clock. If all peers
    /// send such headers, the clock is wrong.
    pub too_new: bool,
}

/// What to ask a peer for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeaderWant {
    /// Nothing.
    Nothing,
    /// Headers beyond our tip.
    News,
    /// The bulk download, as soon as no other peer is doing it.
    Bulk,
}

/// A connected peer. Its memory is constant.
#[derive(Debug)]
struct HeaderPeer {
    /// The header with the most work that its chain is known to have.
    best: HeaderId,
    /// When the unanswered request was sent, if there is one.
    asked_ms: Option<u64>,
    want: HeaderWant,
    /// It sent everything it had, since it connected or since [`HeaderSync::refresh`].
    caught_up: bool,
    /// It answered at least once.
    has_answered: bool,
    /// Height of our highest block named in the last request.
    asked_from: Height,
    /// Messages since the last one whose headers connected.
    unconnecting: u32,
    /// The headers in its last message that only the clock keeps out.
    early: Option<Box<EarlyChain>>,
}

/// The bulk download: the peer that does it, and its time limit.
#[derive(Debug, Clone, Copy)]
struct HeaderDownload {
    peer: PeerId,
    started_ms: u64,
    allowance_ms: u64,
}

/// Finds the most-work chain of all peers. See the [module](self).
///
/// Every `now_ms` is in milliseconds of a clock that never goes back.
#[derive(Debug)]
pub struct HeaderSync {
    tree: HeaderTree,
    best: BestChain,
    /// The time at `now_ms` 0, in seconds since 1970.
    epoch: i64,
    peers: BTreeMap<PeerId, HeaderPeer>,
    bulk: Option<HeaderDownload>,
    candidate: Option<CandidateChain>,
    candidate_max: Option<usize>,
    /// True once a bulk download has ended with a chain of enough work.
    bulk_done: bool,
    /// How many bulk downloads took too long.
    lapses: u32,
    actions: Vec<HeaderAction>,
    new: HeaderList,
}

impl HeaderSync {
    /// Starts with the genesis block and no peers. `epoch` is the time at `now_ms` 0, in seconds since 1970.
    pub fn new(params: &Params, epoch: i64) -> Self {
        let mut tree = HeaderTree::new(params, epoch);
        // The tree only receives headers whose parents it has.
        tree.set_orphans_max(0);
        Self {
            best: BestChain::of(&tree),
            tree,
            epoch,
            peers: BTreeMap::new(),
            bulk: None,
            candidate: None,
            candidate_max: None,
            bulk_done: false,
            lapses: 0,
            actions: Vec::new(),
            new: HeaderList::default(),
        }
    }

    /// Restores headers that an earlier start saved, each after its parent, up to the first invalid one.
    /// Returns how many were taken, and why it stopped. All checks apply, except for the work of their chain.
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

    /// Sets the clock: the time is `now` (seconds since 1970) at `now_ms`. Useful after the machine slept.
    pub fn set_clock(&mut self, now: i64, now_ms: u64) {
        self.epoch = now.saturating_sub(seconds(now_ms));
    }

    /// Adds a peer after its handshake. A `PeerId` is never reused.
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

    /// Removes a peer whose connection ended, for any reason.
    pub fn peer_gone(&mut self, peer: PeerId, now_ms: u64) {
        self.remove(peer);
        self.schedule(now_ms);
    }

    /// Records that a peer announced a block by its hash. Asks the peer for the header if it is unknown.
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

    /// Asks all peers for headers beyond our tip. [`is_synced`](Self::is_synced) is false until they have
    /// answered or failed to.
    pub fn refresh(&mut self, now_ms: u64) {
        for peer in self.peers.values_mut() {
            peer.caught_up = false;
            if peer.want == HeaderWant::Nothing {
                peer.want = HeaderWant::News;
            }
        }
        self.schedule(now_ms);
    }

    /// Takes the pending actions: at most one request for each peer.
    pub fn actions(&mut self) -> Vec<HeaderAction> {
        std::mem::take(&mut self.actions)
    }

    /// Takes the headers that are new in the tree since the last call, each after its parent, for the caller
    /// to save.
    pub fn take_new(&mut self) -> HeaderList {
        std::mem::take(&mut self.new)
    }

    /// The tree of all accepted headers.
    pub const fn tree(&self) -> &HeaderTree {
        &self.tree
    }

    /// The tip of the most-work chain.
    pub const fn best(&self) -> HeaderId {
        self.tree.tip()
    }

    /// The most-work chain by height, the genesis block first.
    pub fn best_chain(&self) -> &[HeaderId] {
        self.best.ids()
    }

    /// The header with the most work that a peer's chain is known to have. `None` if the peer is not
    /// connected.
    pub fn peer_best(&self, peer: PeerId) -> Option<HeaderId> {
        self.peers.get(&peer).map(|peer| peer.best)
    }

    /// Returns true if a peer sent all its headers, since it connected or since [`refresh`](Self::refresh).
    pub fn is_caught_up(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.caught_up)
    }

    /// Height up to which a peer is known to have the blocks of [`best_chain`](Self::best_chain).
    pub fn peer_height(&self, peer: PeerId) -> Option<Height> {
        Some(self.best.fork_height(&self.tree, self.peer_best(peer)?))
    }

    /// Height of the candidate chain, to show progress. `None` without a candidate.
    pub fn candidate_height(&self) -> Option<Height> {
        self.candidate.as_ref().map(CandidateChain::height)
    }

    /// Work that a chain needs before its headers are accepted (Core `net_processing.cpp`,
    /// `GetAntiDoSWorkThreshold`): the work that the network is known to have, or our tip's work less one
    /// day's, whichever is more.
    pub fn work_required(&self) -> u128 {
        let near_tip = self.tree.connected(self.tree.tip()).map_or(0, |tip| {
            tip.chain_work.saturating_sub(BLOCKS_BEHIND_MAX.saturating_mul(block_work(tip.bits)))
        });
        near_tip.max(self.tree.params().minimum_chain_work)
    }

    /// Limits the number of headers in a candidate. By default the age of the network does.
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

    /// Records that a peer's chain has this header.
    fn peer_has(&mut self, peer: PeerId, id: HeaderId) {
        if let Some(peer) = self.peers.get_mut(&peer)
            && work_of(&self.tree, id) > work_of(&self.tree, peer.best)
        {
            peer.best = id;
        }
    }

    fn remove(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.bulk.take_if(|bulk| bulk.peer == peer);
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

/// A violation that no honest peer commits. Disconnect the peer and do not connect to it again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// More headers than a message can hold (Core `net_processing.h`, `MAX_HEADERS_RESULTS`).
    #[error("the peer sent {count} headers in one message, more than the limit of 2000")]
    TooManyHeaders {
        /// The number of headers.
        count: usize,
    },
    /// A header is not the child of the one before it in the message.
    #[error("header {index} of the peer's message, {hash}, does not follow the one before it")]
    NotContinuous {
        /// Its index in the message, from 0.
        index: usize,
        /// The header's hash.
        hash: BlockHash,
    },
    /// A header lacks the work for the target that it claims.
    #[error(
        "header {index} of the peer's message, {hash}, lacks the work for its bits 0x{bits:08x}"
    )]
    HighHash {
        /// Its index in the message, from 0.
        index: usize,
        /// The header's hash.
        hash: BlockHash,
        /// The target that it claims.
        bits: u32,
    },
    /// A header with Bitcoin Knots' own proof of work.
    #[error("header {index} of the peer's message is {KNOTS_CHAIN}")]
    OfKnots {
        /// Its index in the message, from 0.
        index: usize,
    },
    /// The target changes more than any chain allows, with any timestamps (Core `pow.cpp`,
    /// `PermittedDifficultyTransition`).
    #[error(
        "the peer's header {hash} at height {height} changes the bits from 0x{from:08x} to 0x{to:08x}, \
         more than this chain's rules permit"
    )]
    DifficultyTransition {
        /// The header's hash.
        hash: BlockHash,
        /// Its height.
        height: u32,
        /// The target before it.
        from: u32,
        /// The target that it claims.
        to: u32,
    },
    /// A header violates a rule.
    #[error("the peer sent an invalid header: {0}")]
    Invalid(#[from] HeaderError),
    /// More headers than any chain can have by now, with less work than the real one.
    #[error(
        "the peer's chain has more than {limit} headers but too little work, so it is not the real chain"
    )]
    EndlessChain {
        /// The limit on headers without enough work.
        limit: usize,
    },
    /// It keeps sending headers whose parents it does not send when asked.
    #[error("the peer sent {count} messages of headers that do not connect to any known header")]
    Unconnecting {
        /// How many of its messages did not connect.
        count: u32,
    },
}

/// Why to disconnect a peer that is useless but did nothing wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// It was assigned the bulk download and sent nothing.
    #[error("the peer did not answer a request for headers within {seconds} seconds")]
    Stalled {
        /// Its time limit.
        seconds: u64,
    },
    /// It was assigned the bulk download and took too long.
    #[error("the peer had not sent all headers after {seconds} seconds")]
    TooSlow {
        /// Its time limit.
        seconds: u64,
    },
    /// Its chain has less work than the real one (Core `net_processing.cpp`,
    /// `UpdatePeerStateForReceivedHeaders`).
    #[error("the peer's chain has less work than this network's; it may still be syncing")]
    LowWork,
    /// It sent headers that another peer extended and that turned out to be invalid.
    #[error("the peer sent invalid headers")]
    InvalidHeaders,
}
