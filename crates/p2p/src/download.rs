//! [`Download`]: schedules block downloads. It decides which peer to ask for which block and when, and
//! handles peers that do not deliver.
//!
//! Consumers announce the heights that they want now and take blocks in any order. All peers share one window
//! of wanted blocks. Each peer gets enough requests to stay busy at its measured speed, so fast peers carry
//! most of the load and slow ones delay little. The lowest wanted block is requested first. A peer with
//! nothing new to fetch takes over blocks that others are late with.
//!
//! Invariants: a block goes to the consumer at most once until the consumer accepts or rejects it; blocks
//! handed out take at most [`DownloadOptions::bytes_max`] plus one block; a peer that sent a damaged block
//! gets no further requests; and a wanted block is requested until it arrives, as long as some peer that has
//! it is not silent.
//!
//! This module uses no sockets, clocks or threads. The caller reports events with a time in milliseconds since
//! any fixed moment, and [`Download::tick`] returns what to do. Blocks are opaque: the caller hashes the
//! header, and the consumer checks the rest.

mod peers;
mod schedule;
mod status;
#[cfg(test)]
mod tests;
mod window;

pub use status::{DownloadStatus, Limit, PeerProgress};

use crate::PeerId;
use crate::message::Services;
use apus_chain::{BlockHash, Height, HeightRange};
use peers::{DownloadPeer, SIZE_MAX, Sizes};
use std::collections::BTreeMap;
use window::{Delivery, DownloadWindow, Key};

/// A peer is dropped after more than this many unrequested blocks. A race can explain a few.
const UNREQUESTED_MAX: u32 = 3;
/// A peer is dropped after more than this many blocks that it refused, less those it delivered.
const REFUSALS_MAX: u32 = 16;

/// The block hashes of our chain.
pub trait Chain {
    /// The block at a height, or `None` above the tip.
    fn hash(&self, height: Height) -> Option<BlockHash>;
}

impl<F: Fn(Height) -> Option<BlockHash>> Chain for F {
    fn hash(&self, height: Height) -> Option<BlockHash> {
        self(height)
    }
}

/// Limits on requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadOptions {
    /// Memory for blocks, in bytes. Blocks in flight count once each, with their expected size; blocks handed
    /// out count until the consumer accepts or rejects them. The minimum is 4,000,000, the largest block.
    /// Partially received blocks do not count: the caller holds them, one for each peer.
    pub bytes_max: u64,
    /// Maximum number of blocks that one peer may owe; at least 1. A node sends them one by one anyway.
    pub in_flight_max: usize,
    /// Maximum number of peers assigned to one block; at least 1.
    pub copies_max: usize,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self { bytes_max: 256 << 20, in_flight_max: 128, copies_max: 2 }
    }
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadAction {
    /// Ask a peer for these blocks, in this order, in one `getdata`.
    Request {
        /// The peer to ask.
        peer: PeerId,
        /// At most [`DownloadOptions::in_flight_max`].
        blocks: Vec<(Height, BlockHash)>,
    },
    /// Close the connection. The peer is already removed here; ignore what it still sends.
    Disconnect {
        /// The peer to drop.
        peer: PeerId,
        /// The reason.
        why: Blame,
    },
}

/// Why a peer is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Blame {
    /// It owed blocks and sent nothing.
    #[error("silent for {ms} ms while it owed blocks")]
    Stalled {
        /// How long it was silent, in milliseconds.
        ms: u64,
    },
    /// Other peers are much faster, and the caller has other nodes to try.
    #[error("slow: {rate} bytes per second, while others send {others}")]
    Slow {
        /// Its rate, in bytes per second.
        rate: u64,
        /// The median rate of the others, in bytes per second.
        others: u64,
    },
    /// It sent blocks that it was not asked for.
    #[error("sent {0} unrequested blocks")]
    Unrequested(u32),
    /// It sent a block whose transactions do not match its header.
    #[error("sent a damaged copy of block {0}")]
    Damaged(BlockHash),
    /// It lacks blocks of the chain that it claims to have.
    #[error("lacks {0} blocks of the chain that it claims to have")]
    Refuses(u32),
}

/// What to do with a received block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockReceipt {
    /// Hand it to the consumer, then report the result with [`Download::consumed`] or [`Download::damaged`].
    Wanted(Height),
    /// The peer was asked for it, but another one was faster, or the block is no longer wanted. Discard it;
    /// no peer is to blame.
    Duplicate(Height),
    /// Memory is full. Discard it; it will be requested again. This is rare: it takes blocks much larger than
    /// the ones before them.
    NoRoom(Height),
    /// The peer sent it unrequested. Discard it.
    Unrequested,
}

/// Totals of received blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DownloadTotals {
    /// Blocks handed to the consumer.
    pub blocks: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
    /// Bytes of copies that arrived too late or were no longer wanted.
    pub duplicate_bytes: u64,
    /// Bytes of blocks discarded because memory was full.
    pub no_room_bytes: u64,
    /// Blocks received from peers that were not asked for them.
    pub unrequested: u64,
    /// Blocks that the consumer rejected as damaged.
    pub damaged: u64,
    /// Peers dropped.
    pub dropped: u64,
}

/// A download scheduler without I/O; see the [module](self).
#[derive(Debug)]
pub struct Download {
    options: DownloadOptions,
    window: DownloadWindow,
    sizes: Sizes,
    peers: BTreeMap<PeerId, DownloadPeer>,
    actions: Vec<DownloadAction>,
    totals: DownloadTotals,
    /// The latest time reported.
    now: u64,
    schedule: schedule::Schedule,
    monitor: schedule::PeerMonitor,
}

impl Download {
    /// Creates a scheduler without wanted blocks or peers.
    #[must_use]
    pub fn new(options: DownloadOptions) -> Self {
        Self {
            options,
            window: DownloadWindow::new(options.bytes_max.max(SIZE_MAX)),
            sizes: Sizes::default(),
            peers: BTreeMap::new(),
            actions: Vec::new(),
            totals: DownloadTotals::default(),
            now: 0,
            schedule: schedule::Schedule::default(),
            monitor: schedule::PeerMonitor::default(),
        }
    }

    // ---- reports from consumers ----

    /// Adds heights of our chain to the window, and returns how many of them the chain has; it ignores those
    /// above the tip. Costs about 300 bytes of memory per height, so a consumer should announce only what it
    /// is about to take. A consumer that needs blocks in order should announce ascending heights.
    pub fn want(&mut self, range: HeightRange, chain: &impl Chain) -> u32 {
        let mut found = 0;
        for height in range.heights() {
            let Some(hash) = chain.hash(height) else { break };
            self.window.want((height, hash), true);
            found += 1;
        }
        found
    }

    /// Removes heights from the window. Blocks that the consumer holds still await its result.
    pub fn unwant(&mut self, range: HeightRange) {
        for key in self.window.on_chain(range) {
            self.forget(key, DownloadWindow::unwant);
        }
    }

    /// Adds a block off our chain, on a branch that may replace it. Only peers reported by
    /// [`Self::peer_has_hash`] are asked for it, because a node does not answer at all if it does not know
    /// the block (Core `net_processing.cpp`, `ProcessGetBlockData`).
    pub fn want_hash(&mut self, height: Height, hash: BlockHash) {
        self.window.want((height, hash), false);
    }

    /// Removes a block from the window, on our chain or off it.
    pub fn unwant_hash(&mut self, hash: &BlockHash) {
        if let Some(key) = self.window.key(hash) {
            self.forget(key, DownloadWindow::unwant);
        }
    }

    /// Returns true if a block in the window, wanted or handed out, is on our chain.
    #[must_use]
    pub fn is_on_chain(&self, hash: &BlockHash) -> bool {
        self.window.key(hash).is_some_and(|key| self.window.is_on_chain(key))
    }

    /// Records that our chain changed above the height `fork`: other blocks replaced its blocks there, or it
    /// became shorter. Wanted heights above `fork` now mean blocks of the new chain. Peers count as having
    /// blocks only up to `fork` until [`Self::peer_has`] reports them again.
    pub fn chain_changed(&mut self, fork: Height, chain: &impl Chain) {
        for key in self.window.on_chain_from(fork.saturating_add(1)) {
            let hash = chain.hash(key.0);
            if hash != Some(key.1) {
                self.forget(key, DownloadWindow::leave_chain);
                hash.into_iter().for_each(|hash| self.window.want((key.0, hash), true));
            }
        }
        self.peers.values_mut().for_each(|peer| peer.clamp_chain(fork));
    }

    /// Records that the consumer accepted a block, and frees its memory. Returns false if it was not handed out.
    pub fn consumed(&mut self, hash: &BlockHash) -> bool {
        self.window.consumed(hash)
    }

    /// Records that the consumer rejected a block because it does not match its header. Drops the peer that
    /// sent it, if still connected, and requests the block from another. Returns the dropped peer.
    pub fn damaged(&mut self, hash: &BlockHash) -> Option<PeerId> {
        let sender = self.window.damaged(hash)?;
        self.totals.damaged += 1;
        self.drop_peer(sender, Blame::Damaged(*hash));
        Some(sender)
    }

    // ---- reports about peers ----

    /// Adds a peer. It gets no requests before [`Self::peer_has`], and never any if it does not serve
    /// witnesses.
    pub fn peer_added(&mut self, peer: PeerId, services: Services, now: u64) {
        let now = self.at(now);
        self.peers.entry(peer).or_insert_with(|| DownloadPeer::new(services, now));
    }

    /// Records that a peer's best block is at height `best`, and that its chain and ours share blocks up to
    /// height `common`. A pruned peer is only asked for the last 286 blocks up to `best`.
    pub fn peer_has(&mut self, peer: PeerId, common: Height, best: Height) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.set_chain(common, best);
        }
    }

    /// Records that a peer has, or may have, a block off our chain that is wanted by hash, even if it said
    /// before that it lacks the block. Has no effect if the block is not wanted.
    pub fn peer_has_hash(&mut self, peer: PeerId, hash: BlockHash) {
        if self.window.key(&hash).is_none() {
            return;
        }
        let bound = self.marks_max();
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.extras.insert(hash);
            peer.refused.remove(&hash);
            if peer.extras.len() > bound {
                peer.extras.retain(|hash| self.window.key(hash).is_some());
            }
        }
    }

    /// Removes a peer whose connection either side closed. Other peers will be asked for the blocks it owed.
    pub fn peer_gone(&mut self, peer: PeerId) {
        if let Some(gone) = self.peers.remove(&peer) {
            gone.counted_on().for_each(|owed| self.window.release(owed.key, peer));
        }
    }

    /// Returns true if a peer was asked for blocks that have not arrived.
    #[must_use]
    pub fn is_owing(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(DownloadPeer::is_owing)
    }

    /// Reports the duration of a ping or handshake, in milliseconds. Optional: deliveries give a rougher
    /// estimate.
    pub fn round_trip(&mut self, peer: PeerId, ms: u64) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.round_trip(ms);
        }
    }

    /// Reports how many bytes of an incoming block have arrived. Call it now and then while a block takes
    /// longer than a few hundred milliseconds; otherwise its sender seems silent.
    pub fn progress(&mut self, peer: PeerId, partial_bytes: u64, now: u64) {
        let now = self.at(now);
        let heard = self.peers.get_mut(&peer).is_some_and(|p| p.progress(partial_bytes, now));
        if heard {
            self.heard(peer, now);
        }
    }

    /// Reports a whole block: the hash of its header and its length in bytes.
    pub fn block(&mut self, peer: PeerId, hash: &BlockHash, bytes: u64, now: u64) -> BlockReceipt {
        let now = self.at(now);
        let Some(sender) = self.peers.get_mut(&peer) else { return BlockReceipt::Unrequested };
        let Some(owed) = sender.deliver(hash, bytes, now) else {
            sender.unrequested += 1;
            let count = sender.unrequested;
            self.totals.unrequested += 1;
            if count > UNREQUESTED_MAX {
                self.drop_peer(peer, Blame::Unrequested(count));
            }
            return BlockReceipt::Unrequested;
        };
        self.heard(peer, now);
        let height = owed.key.0;
        match self.window.deliver(owed.key, peer, bytes) {
            Delivery::Taken => {
                self.sizes.add(height, bytes);
                self.monitor.delivered();
                self.totals.blocks += 1;
                self.totals.bytes += bytes;
                BlockReceipt::Wanted(height)
            }
            Delivery::Unneeded => {
                self.totals.duplicate_bytes += bytes;
                BlockReceipt::Duplicate(height)
            }
            Delivery::NoRoom => {
                self.sizes.add(height, bytes);
                self.totals.no_room_bytes += bytes;
                BlockReceipt::NoRoom(height)
            }
        }
    }

    /// Records that a peer lacks a requested block. The peer is never asked for it again.
    pub fn not_found(&mut self, peer: PeerId, hash: &BlockHash, now: u64) {
        let now = self.at(now);
        if self.refuse(peer, hash) {
            self.heard(peer, now);
        }
    }

    /// Sets how many nodes the caller could connect to in place of dropped peers. Slow peers are dropped only
    /// if there are any.
    pub fn replacements(&mut self, count: usize) {
        self.monitor.replacements = count;
    }

    // ---- what to do ----

    /// Returns what to do now. Call it after reports and, while peers owe blocks, every 100 ms; calling it more often does
    /// no harm.
    pub fn tick(&mut self, now: u64) -> Vec<DownloadAction> {
        let now = self.at(now);
        self.check_peers(now);
        self.reweigh(now);
        self.fill(now);
        self.hedge(now);
        core::mem::take(&mut self.actions)
    }

    // ---- internals ----

    /// Advances the clock, which never goes back.
    fn at(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }

    /// Records that a peer made progress. If it had stalled, assigns the blocks that it still owes to it again.
    fn heard(&mut self, id: PeerId, now: u64) {
        self.monitor.heard_at = now;
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.stalled) else { return };
        for key in peer.resume() {
            let copies = self.window.owners(key).map(<[_]>::len);
            if copies.is_some_and(|copies| copies < self.options.copies_max) {
                peer.set_lost(&key.1, false);
                self.window.assign(key, id, self.sizes.expected(key.0));
            }
        }
    }

    /// Takes a block out of the window with `how`, and releases the peers that owe it.
    fn forget(&mut self, key: Key, how: impl Fn(&mut DownloadWindow, Key)) {
        let owners = self.window.owners(key).map(<[_]>::to_vec);
        for owner in owners.unwrap_or_default() {
            if let Some(peer) = self.peers.get_mut(&owner) {
                peer.set_lost(&key.1, true);
            }
        }
        how(&mut self.window, key);
    }

    /// Records that a peer lacks a block. Returns false if it did not owe the block.
    fn refuse(&mut self, id: PeerId, hash: &BlockHash) -> bool {
        let bound = self.marks_max();
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        let Some(owed) = peer.settle(hash) else { return false };
        self.window.release(owed.key, id);
        peer.refused.insert(*hash);
        if peer.refused.len() > bound {
            peer.refused.retain(|hash| self.window.key(hash).is_some());
        }
        if peer.extras.contains(hash) {
            // The peer never claimed to have this block.
            return true;
        }
        peer.refusals += 1;
        let count = peer.refusals;
        if count > REFUSALS_MAX {
            self.drop_peer(id, Blame::Refuses(count));
        }
        true
    }

    /// Maximum number of blocks a peer's sets may hold before those outside the window are purged.
    fn marks_max(&self) -> usize {
        2 * self.window.len() + 64
    }

    fn drop_peer(&mut self, peer: PeerId, why: Blame) {
        if self.peers.contains_key(&peer) {
            self.peer_gone(peer);
            self.totals.dropped += 1;
            self.actions.push(DownloadAction::Disconnect { peer, why });
        }
    }
}
