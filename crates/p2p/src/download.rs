//! [`Download`]: which peer is asked for which block, when, and what becomes of those that do
//! not deliver.
//!
//! Consumers say which heights they want now and take blocks in whatever order they come. One
//! window of wanted blocks serves all peers: each is kept busy for as long as it has shown to need,
//! so that fast ones carry most and slow ones hold up little. The lowest wanted block is asked for
//! first. A peer with nothing left to ask for takes over what others are late with.
//!
//! Always: a block is handed to the consumer at most once until the consumer has judged it; blocks
//! handed out weigh at most [`DownloadOptions::bytes_max`] and one block; a peer that sent a damaged block
//! is asked for nothing again; and a wanted block is asked for again and again until it comes, as
//! long as some peer has it that is not silent.
//!
//! It has no sockets, clock or threads. It is told what happened, with a time in milliseconds since
//! any fixed moment, and [`Download::tick`] says what to do. It does not look into blocks: the
//! caller hashes the header, and the consumer checks the rest.

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

/// After this many blocks that it was not asked for, a peer is dropped; a race may explain fewer.
const UNREQUESTED_MAX: u32 = 3;
/// After this many blocks that it says it has not, less those that it delivered, a peer is dropped.
const REFUSALS_MAX: u32 = 16;

/// The hashes of our chain.
pub trait Chain {
    /// The block at a height, if the chain reaches it.
    fn hash(&self, height: Height) -> Option<BlockHash>;
}

impl<F: Fn(Height) -> Option<BlockHash>> Chain for F {
    fn hash(&self, height: Height) -> Option<BlockHash> {
        self(height)
    }
}

/// How much may be asked for at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadOptions {
    /// Memory for blocks, in bytes: those in flight by their expected sizes, each once, and those
    /// that the consumer has not judged. Less than 4,000,000, the largest block, counts as that.
    /// Blocks half received are the caller's, one for each peer.
    pub bytes_max: u64,
    /// How many blocks one peer may owe; at least 1. A node answers one by one, however many.
    pub in_flight_max: usize,
    /// How many peers may be counted on for one block; at least 1.
    pub copies_max: usize,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self { bytes_max: 256 << 20, in_flight_max: 128, copies_max: 2 }
    }
}

/// What the caller is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadAction {
    /// Ask a peer for these blocks, in this order, by one `getdata`.
    Request {
        /// The peer to ask.
        peer: PeerId,
        /// At most [`DownloadOptions::in_flight_max`].
        blocks: Vec<(Height, BlockHash)>,
    },
    /// Close the connection; the peer is forgotten already, and nothing it says is of use.
    Disconnect {
        /// Which one.
        peer: PeerId,
        /// What it did.
        why: Blame,
    },
}

/// Why a peer is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Blame {
    /// It owed blocks and sent nothing.
    #[error("silent for {ms} ms while it owed blocks")]
    Stalled {
        /// For how long, in milliseconds.
        ms: u64,
    },
    /// Others are much faster, and there are more to try.
    #[error("slow: {rate} bytes a second, where others send {others}")]
    Slow {
        /// Its rate, in bytes per second.
        rate: u64,
        /// The median rate of the others, in bytes per second.
        others: u64,
    },
    /// It sent blocks that it had not been asked for.
    #[error("sent {0} blocks that it had not been asked for")]
    Unrequested(u32),
    /// It sent a block whose transactions are not those of its header.
    #[error("sent a damaged copy of block {0}")]
    Damaged(BlockHash),
    /// It has not the blocks of the chain that it says it has.
    #[error("has not {0} blocks of a chain that it said it has")]
    Refuses(u32),
}

/// What a block that came is to the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Hand it to the consumer, and report its judgement.
    Wanted(Height),
    /// The peer was asked for it, but it came from another meanwhile or is not wanted any more:
    /// throw it away. No peer is to blame.
    Duplicate(Height),
    /// Memory is full: throw it away, it will be asked for again. Rare: blocks were much larger
    /// than those before them.
    NoRoom(Height),
    /// The peer was not asked for it: throw it away.
    Unrequested,
}

/// What came over the line so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DownloadTotals {
    /// Blocks handed to the consumer.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of copies that another peer was faster with, or that were not wanted any more.
    pub duplicate_bytes: u64,
    /// Bytes of blocks for which there was no memory.
    pub no_room_bytes: u64,
    /// Blocks that no peer had been asked for.
    pub unrequested: u64,
    /// Blocks that the consumer found damaged.
    pub damaged: u64,
    /// Peers dropped.
    pub dropped: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Download {
    options: DownloadOptions,
    window: DownloadWindow,
    sizes: Sizes,
    peers: BTreeMap<PeerId, DownloadPeer>,
    actions: Vec<DownloadAction>,
    totals: DownloadTotals,
    /// The greatest time told.
    now: u64,
    /// Whether something happened since the last tick.
    changed: bool,
    ticked_at: u64,
    schedule: schedule::Schedule,
    judge: schedule::PeerJudge,
}

impl Download {
    /// Nothing wanted, no peer to ask.
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
            changed: false,
            ticked_at: 0,
            schedule: schedule::Schedule::default(),
            judge: schedule::PeerJudge::default(),
        }
    }

    // ---- what consumers say ----

    /// These heights of our chain are wanted now. Costs some 300 bytes of memory for each height,
    /// so a consumer announces what it is about to take. One that needs order announces ascending.
    /// How many of the heights the chain has: those above it are not wanted.
    pub fn want(&mut self, range: HeightRange, chain: &impl Chain) -> u32 {
        let mut found = 0;
        for height in range.heights() {
            let Some(hash) = chain.hash(height) else { break };
            self.window.want((height, hash), true);
            found += 1;
        }
        self.changed = true;
        found
    }

    /// These heights are not wanted any more. Blocks that the consumer has still await judgement.
    pub fn unwant(&mut self, range: HeightRange) {
        for key in self.window.on_chain(range) {
            self.forget(key, DownloadWindow::unwant);
        }
    }

    /// A block beside our chain is wanted, of a branch that may become it. It is asked for only
    /// from peers of which [`Self::peer_has_hash`] says that they have it: nodes answer nothing at
    /// all where they know no such block (Core `net_processing.cpp`, `ProcessGetBlockData`).
    pub fn want_hash(&mut self, height: Height, hash: BlockHash) {
        self.window.want((height, hash), false);
        self.changed = true;
    }

    /// A block is not wanted any more, wherever it is.
    pub fn unwant_hash(&mut self, hash: &BlockHash) {
        if let Some(key) = self.window.key(hash) {
            self.forget(key, DownloadWindow::unwant);
        }
    }

    /// Whether a block is wanted, or handed out, as one of our chain: by its height.
    #[must_use]
    pub fn is_on_chain(&self, hash: &BlockHash) -> bool {
        self.window.key(hash).is_some_and(|key| self.window.is_on_chain(key))
    }

    /// Our chain has other blocks above the height `fork`, or none. What is wanted there is wanted
    /// of the new chain; what peers have is known up to `fork` until they are reported again.
    pub fn chain_changed(&mut self, fork: Height, chain: &impl Chain) {
        for key in self.window.on_chain_from(fork.saturating_add(1)) {
            let hash = chain.hash(key.0);
            if hash != Some(key.1) {
                self.forget(key, DownloadWindow::leave_chain);
                hash.into_iter().for_each(|hash| self.window.want((key.0, hash), true));
            }
        }
        self.peers.values_mut().for_each(|peer| peer.clamp_chain(fork));
        self.changed = true;
    }

    /// The consumer took a block in: its memory is free. Whether it had it.
    pub fn consumed(&mut self, hash: &BlockHash) -> bool {
        self.changed = true;
        self.window.consumed(hash)
    }

    /// The consumer found that a block is not what its header says. The peer that sent it is
    /// dropped, if it is still there, and the block asked for elsewhere. Returns that peer.
    pub fn damaged(&mut self, hash: &BlockHash) -> Option<PeerId> {
        let sender = self.window.damaged(hash)?;
        self.totals.damaged += 1;
        self.changed = true;
        self.drop_peer(sender, Blame::Damaged(*hash));
        Some(sender)
    }

    // ---- what happens to peers ----

    /// A peer is there. It is asked for nothing before [`Self::peer_has`], nor ever if it does not
    /// serve witnesses.
    pub fn peer_added(&mut self, peer: PeerId, services: Services, now: u64) {
        let now = self.at(now);
        self.peers.entry(peer).or_insert_with(|| DownloadPeer::new(services, now));
    }

    /// A peer's best block is at `best`, and the last block that its chain shares with ours at
    /// `common`. One that keeps only the last blocks is asked for the last 286 up to `best`.
    pub fn peer_has(&mut self, peer: PeerId, common: Height, best: Height) {
        self.changed = true;
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.set_chain(common, best);
        }
    }

    /// A peer has, or may have, a block off our chain that is wanted by hash, whatever it said before;
    /// without effect if it is not wanted.
    pub fn peer_has_hash(&mut self, peer: PeerId, hash: BlockHash) {
        if self.window.key(&hash).is_none() {
            return;
        }
        self.changed = true;
        let bound = self.marks_max();
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.extras.insert(hash);
            peer.refused.remove(&hash);
            if peer.extras.len() > bound {
                peer.extras.retain(|hash| self.window.key(hash).is_some());
            }
        }
    }

    /// The connection is closed, by either side. Other peers are asked for what it owed.
    pub fn peer_gone(&mut self, peer: PeerId) {
        self.changed = true;
        if let Some(gone) = self.peers.remove(&peer) {
            gone.counted_on().for_each(|owed| self.window.release(owed.key, peer));
        }
    }

    /// Whether a peer was asked for blocks that have not come.
    #[must_use]
    pub fn is_owing(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(DownloadPeer::is_owing)
    }

    /// A ping or the handshake took so many milliseconds. Optional: deliveries tell less exactly.
    pub fn round_trip(&mut self, peer: PeerId, ms: u64) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.round_trip(ms);
        }
    }

    /// So many bytes are there of the block that is coming in from a peer. To be told now and then
    /// while a block takes longer than some hundred milliseconds, or its sender seems silent.
    pub fn progress(&mut self, peer: PeerId, partial_bytes: u64, now: u64) {
        let now = self.at(now);
        let heard = self.peers.get_mut(&peer).is_some_and(|p| p.progress(partial_bytes, now));
        if heard {
            self.heard(peer, now);
        }
    }

    /// A whole block came from a peer: the hash of its header, and its length in bytes.
    pub fn block(&mut self, peer: PeerId, hash: &BlockHash, bytes: u64, now: u64) -> Received {
        let now = self.at(now);
        self.changed = true;
        let Some(sender) = self.peers.get_mut(&peer) else { return Received::Unrequested };
        let Some(owed) = sender.deliver(hash, bytes, now) else {
            sender.unrequested += 1;
            let count = sender.unrequested;
            self.totals.unrequested += 1;
            if count > UNREQUESTED_MAX {
                self.drop_peer(peer, Blame::Unrequested(count));
            }
            return Received::Unrequested;
        };
        self.heard(peer, now);
        let height = owed.key.0;
        match self.window.deliver(owed.key, peer, bytes) {
            Delivery::Taken => {
                self.sizes.add(height, bytes);
                self.judge.delivered();
                self.totals.blocks += 1;
                self.totals.bytes += bytes;
                Received::Wanted(height)
            }
            Delivery::Unneeded => {
                self.totals.duplicate_bytes += bytes;
                Received::Duplicate(height)
            }
            Delivery::NoRoom => {
                self.sizes.add(height, bytes);
                self.totals.no_room_bytes += bytes;
                Received::NoRoom(height)
            }
        }
    }

    /// A peer says that it has not a block that it was asked for. It is not asked again for it.
    pub fn not_found(&mut self, peer: PeerId, hash: &BlockHash, now: u64) {
        let now = self.at(now);
        if self.refuse(peer, hash) {
            self.heard(peer, now);
        }
    }

    /// How many nodes the caller could connect to in the place of peers that are dropped. Slow
    /// peers are dropped only if there are some.
    pub fn replacements(&mut self, count: usize) {
        self.judge.replacements = count;
    }

    // ---- what to do ----

    /// What to do now. To be called at [`Self::next_tick_at`]; sooner or more often does no harm.
    pub fn tick(&mut self, now: u64) -> Vec<DownloadAction> {
        let now = self.at(now);
        self.judge_peers(now);
        self.weigh_anew(now);
        self.fill(now);
        self.hedge(now);
        self.changed = false;
        self.ticked_at = now;
        core::mem::take(&mut self.actions)
    }

    /// When [`Self::tick`] is to be called; at once if this is in the past. None: not before
    /// something happens.
    #[must_use]
    pub fn next_tick_at(&self) -> Option<u64> {
        if self.changed {
            return Some(self.now);
        }
        let owing = self.peers.values().any(DownloadPeer::is_owing);
        owing.then(|| self.ticked_at + schedule::TICK_MS)
    }

    // ---- in between ----

    /// Time does not go back.
    fn at(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }

    /// A peer made progress. If it had stalled it is counted on again for what it still owes.
    fn heard(&mut self, id: PeerId, now: u64) {
        self.judge.heard_at = now;
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.stalled) else { return };
        self.changed = true;
        for key in peer.resume() {
            let copies = self.window.owners(key).map(<[_]>::len);
            if copies.is_some_and(|copies| copies < self.options.copies_max) {
                peer.set_lost(&key.1, false);
                self.window.assign(key, id, self.sizes.expected(key.0));
            }
        }
    }

    /// Takes a block out of the window by `how`. Peers that owe it are not counted on for it.
    fn forget(&mut self, key: Key, how: impl Fn(&mut DownloadWindow, Key)) {
        self.changed = true;
        let owners = self.window.owners(key).map(<[_]>::to_vec);
        for owner in owners.unwrap_or_default() {
            if let Some(peer) = self.peers.get_mut(&owner) {
                peer.set_lost(&key.1, true);
            }
        }
        how(&mut self.window, key);
    }

    /// A peer has not a block that it owes; whether it owed it.
    fn refuse(&mut self, id: PeerId, hash: &BlockHash) -> bool {
        let bound = self.marks_max();
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        let Some(owed) = peer.settle(hash) else { return false };
        self.changed = true;
        self.window.release(owed.key, id);
        peer.refused.insert(*hash);
        if peer.refused.len() > bound {
            peer.refused.retain(|hash| self.window.key(hash).is_some());
        }
        if peer.extras.contains(hash) {
            // It never said that it has this one.
            return true;
        }
        peer.refusals += 1;
        let count = peer.refusals;
        if count > REFUSALS_MAX {
            self.drop_peer(id, Blame::Refuses(count));
        }
        true
    }

    /// How many marks on blocks a peer may have before those outside the window are swept.
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
