//! Assigns blocks to peers, and drops useless peers: silent ones, ones that leave blocks out, and ones much
//! slower than others.
//!
//! The peer that would run dry soonest is served first, with the lowest block that it has. So fast peers get
//! many blocks and slow ones few, and if memory is short, all stay as busy as it allows. A peer with nothing
//! new to fetch takes over blocks that others are late with.
//!
//! A silent peer loses its blocks to others early, and its connection late. "Early" adapts: if several peers
//! fall silent at once, the network is at fault, and patience doubles, as Core's does for the same reason
//! (`net_processing.cpp`, `BLOCK_STALLING_TIMEOUT_DEFAULT` and `_MAX`). No peer is dropped while everything
//! waits for the consumer.

use super::peers::DownloadPeer;
use super::window::Key;
use super::{Blame, Download, DownloadAction};
use crate::PeerId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Interval between ticks when nothing happens, in milliseconds.
pub(super) const TICK_MS: u64 = 100;
/// A peer gets more requests once this fraction (1/8) of its quota is free, so that one message carries
/// several.
const BATCH_PART: usize = 8;
/// How many of each peer's last blocks to examine at a time.
const LATE_MAX: usize = 32;
/// How much sooner a second copy must arrive to be worth its bytes, in milliseconds, not counting a fraction of
/// its own transfer time.
const GAIN_MS: u64 = 100;

/// Scheduling state kept between ticks.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    hedged_at: u64,
    weighed_at: u64,
}

/// Blocks to request, by peer.
type Requests = BTreeMap<PeerId, Vec<Key>>;

impl Download {
    /// Requests blocks that no peer owes, as far as peers and memory have room.
    pub(super) fn fill(&mut self, now: u64) {
        if !self.window.any_free() {
            return;
        }
        let mut order: BinaryHeap<_> = BinaryHeap::new();
        for (id, peer) in &self.peers {
            let few = peer.may_take_batch(BATCH_PART, self.options.in_flight_max);
            if few && self.takes_batch(peer, now) {
                order.push(Reverse((peer.slack_ms(now), *id)));
            }
        }
        let mut requests = Requests::new();
        while let Some(Reverse((_, id))) = order.pop() {
            let Some(peer) = self.peers.get(&id) else { continue };
            let Some(key) = self.next_for(peer) else { continue };
            let expected = self.sizes.expected(key.0);
            if peer.room(expected, self.options.in_flight_max, now) == 0 {
                continue;
            }
            if !self.window.admits(key, expected) {
                continue;
            }
            self.ask(id, key, now, &mut requests);
            if let Some(peer) = self.peers.get(&id) {
                order.push(Reverse((peer.slack_ms(now), id)));
            }
        }
        self.send(requests);
    }

    /// Updates the expected sizes of owed blocks: a peer that was asked for many small blocks may turn out to
    /// owe more bytes than all others together.
    pub(super) fn reweigh(&mut self, now: u64) {
        if now < self.schedule.weighed_at + TICK_MS {
            return;
        }
        self.schedule.weighed_at = now;
        for peer in self.peers.values_mut() {
            peer.expect(|height| self.sizes.expected(height));
        }
    }

    /// Returns true if there is no memory for the first block to request.
    pub(super) fn memory_is_short(&self) -> bool {
        let first = self.window.all_free().next();
        first.is_some_and(|key| !self.window.admits(key, self.sizes.expected(key.0)))
    }

    /// Returns true if a peer has room for enough blocks to be worth a message.
    fn takes_batch(&self, peer: &DownloadPeer, now: u64) -> bool {
        let Some(key) = self.next_for(peer) else { return false };
        let room = peer.room(self.sizes.expected(key.0), self.options.in_flight_max, now);
        room > 0 && room * BATCH_PART >= peer.owed_count() + room
    }

    /// The next block to request from a peer. Blocks of a branch come first: they are few, and a better chain
    /// depends on them.
    fn next_for(&self, peer: &DownloadPeer) -> Option<Key> {
        if peer.stalled {
            return None;
        }
        let may = |hash: &_| !peer.refused.contains(hash);
        let extra = self.window.next_extra(|hash| peer.extras.contains(hash) && may(hash));
        extra.or_else(|| {
            let (low, high) = peer.span()?;
            self.window.next_free(low, high, may)
        })
    }

    /// Assigns a block to a peer. If the peer still owes it from an earlier request, it is not asked again,
    /// because it would send it twice.
    fn ask(&mut self, id: PeerId, key: Key, now: u64, requests: &mut Requests) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let expected = self.sizes.expected(key.0);
        self.window.assign(key, id, expected);
        if !peer.set_lost(&key.1, false) {
            peer.ask(key, expected, now);
            requests.entry(id).or_default().push(key);
        }
    }

    fn send(&mut self, requests: Requests) {
        let actions =
            requests.into_iter().map(|(peer, blocks)| DownloadAction::Request { peer, blocks });
        self.actions.extend(actions);
    }

    /// Asks peers that have room, but nothing new to fetch, for blocks that others owe and will deliver
    /// clearly later; the latest first.
    pub(super) fn hedge(&mut self, now: u64) {
        let early = now < self.schedule.hedged_at + TICK_MS;
        let consumers_turn = self.consumer_limits();
        if self.window.in_flight() == 0 || self.peers.len() < 2 || early || consumers_turn {
            return;
        }
        self.schedule.hedged_at = now;
        let mut idle: Vec<_> =
            self.peers.iter().filter(|(_, peer)| self.is_idle(peer, now)).collect();
        idle.sort_by_key(|(_, peer)| peer.arrival_if_asked_ms(0, now));
        let idle: Vec<PeerId> = idle.into_iter().map(|(id, _)| *id).collect();
        if idle.is_empty() {
            return;
        }
        let late = self.late(now);
        let mut requests = Requests::new();
        for id in idle {
            for (arrival, key) in &late {
                if !self.take_over(id, *key, *arrival, now, &mut requests) {
                    break;
                }
            }
        }
        self.send(requests);
    }

    fn is_idle(&self, peer: &DownloadPeer, now: u64) -> bool {
        let size = self.sizes.expected(peer.span().map_or(0, |(_, high)| high));
        let room = peer.room(size, self.options.in_flight_max, now) > 0;
        let nothing_new = self.memory_is_short() || self.next_for(peer).is_none();
        !peer.stalled && room && nothing_new
    }

    /// Blocks in flight with the time until their expected arrival, in milliseconds; the latest first.
    fn late(&self, now: u64) -> Vec<(u64, Key)> {
        let mut soonest = BTreeMap::new();
        // A copy of a block that another peer delivered meanwhile is still owed, but not late.
        let missing = |key| self.window.owners(key).is_some();
        for peer in self.peers.values() {
            for (owed, arrival) in peer.arrivals(LATE_MAX, missing, now) {
                let known = soonest.entry(owed.key).or_insert(arrival);
                *known = arrival.min(*known);
            }
        }
        let mut late: Vec<_> = soonest.into_iter().map(|(key, arrival)| (arrival, key)).collect();
        late.sort_by_key(|(arrival, key)| (Reverse(*arrival), *key));
        late
    }

    /// Asks a peer for a block that others owe, if it is allowed and worthwhile. Returns false if it is not
    /// worthwhile for this peer; then blocks expected sooner are not worthwhile either.
    fn take_over(
        &mut self,
        id: PeerId,
        key: Key,
        arrival: u64,
        now: u64,
        requests: &mut Requests,
    ) -> bool {
        let Some(peer) = self.peers.get(&id) else { return false };
        let expected = self.sizes.expected(key.0);
        let own = peer.arrival_if_asked_ms(expected, now);
        let room = peer.room(expected, self.options.in_flight_max, now) > 0;
        if !room || own + own / 2 + GAIN_MS >= arrival {
            return false;
        }
        let Some(owners) = self.window.owners(key) else { return true };
        if owners.contains(&id) || !peer.has(key, self.window.is_on_chain(key)) {
            return true;
        }
        if owners.len() >= self.options.copies_max {
            // All owners are far behind: release one of them.
            let Some(first) = owners.first().copied() else { return true };
            if arrival < own.saturating_mul(4) + 10 * GAIN_MS {
                return true;
            }
            self.window.release(key, first);
            if let Some(peer) = self.peers.get_mut(&first) {
                peer.set_lost(&key.1, true);
            }
        }
        self.ask(id, key, now, requests);
        true
    }
}

/// Silence after which a peer loses its blocks, in milliseconds; adapts up to [`STALL_MAX_MS`].
const STALL_MS: u64 = 2_000;
const STALL_MAX_MS: u64 = 64_000;
/// Factor by which patience shrinks with each block delivered.
const STALL_DECAY: f64 = 0.85;
/// A stalled peer is disconnected after this many times the current patience.
const HOPELESS: u64 = 4;
/// A peer is disconnected after this many stalls within ten minutes.
const STRIKES_MAX: u32 = 2;
/// How often to look for slow peers, in milliseconds.
const SLOW_EVERY_MS: u64 = 5_000;
/// Minimum age of a peer before it can count as slow, in milliseconds.
const SLOW_AFTER_MS: u64 = 10_000;
/// A peer is slow if others are this many times as fast.
const SLOW_TIMES: f64 = 8.0;

/// Peer supervision state kept between ticks.
#[derive(Debug)]
pub(super) struct PeerMonitor {
    /// Patience with silence, in milliseconds.
    stall_ms: f64,
    /// The last peer that lost its blocks, and when.
    struck: Option<(PeerId, u64)>,
    /// When any peer last made progress.
    pub(super) heard_at: u64,
    /// How many more nodes the caller could connect to.
    pub(super) replacements: usize,
    checked_at: u64,
    slow_at: u64,
}

impl Default for PeerMonitor {
    fn default() -> Self {
        Self {
            stall_ms: STALL_MS as f64,
            struck: None,
            heard_at: 0,
            replacements: 0,
            checked_at: 0,
            slow_at: 0,
        }
    }
}

impl PeerMonitor {
    /// Patience with silence, in milliseconds.
    pub(super) const fn stall_ms(&self) -> u64 {
        self.stall_ms as u64
    }

    fn double(&mut self) {
        self.stall_ms = (self.stall_ms * 2.0).min(STALL_MAX_MS as f64);
    }

    /// Shortens patience after a wanted block arrived.
    pub(super) fn delivered(&mut self) {
        self.stall_ms = (self.stall_ms * STALL_DECAY).max(STALL_MS as f64);
    }
}

impl Download {
    /// Frees the blocks of peers that do not deliver for other peers, and drops useless peers.
    pub(super) fn check_peers(&mut self, now: u64) {
        if now < self.monitor.checked_at + TICK_MS {
            return;
        }
        self.monitor.checked_at = now;
        self.find_left_out(now);
        self.find_silent(now);
        self.drop_hopeless(now);
        if now >= self.monitor.slow_at + SLOW_EVERY_MS {
            self.monitor.slow_at = now;
            self.drop_slow(now);
        }
    }

    /// Returns true if memory is full of blocks that the consumer could take. False while the consumer may be
    /// waiting for the lowest block.
    pub(super) fn consumer_limits(&self) -> bool {
        self.window.lowest_is_handed_out() && self.memory_is_short()
    }

    /// Finds blocks that were left out. A node answers in order, and not at all for a block that it does not
    /// know.
    fn find_left_out(&mut self, now: u64) {
        let patience = self.monitor.stall_ms();
        let mut left_out = Vec::new();
        for (id, peer) in &mut self.peers {
            left_out.extend(peer.left_out(patience, now).into_iter().map(|hash| (*id, hash)));
        }
        for (id, hash) in left_out {
            self.refuse(id, &hash);
        }
    }

    fn find_silent(&mut self, now: u64) {
        let stall = self.monitor.stall_ms();
        // Another peer delivered the block for which this one takes so long.
        let was_overtaken = |peer: &DownloadPeer| {
            peer.late_front(now).is_some_and(|key| self.window.owners(key).is_none())
        };
        let is_silent = |peer: &DownloadPeer| {
            !peer.stalled && (peer.silent_ms(now) >= stall || was_overtaken(peer))
        };
        let silent: Vec<PeerId> =
            self.peers.iter().filter(|(_, peer)| is_silent(peer)).map(|(id, _)| *id).collect();
        let all_quiet = now.saturating_sub(self.monitor.heard_at) >= stall;
        if silent.len() > 1 && all_quiet && stall < STALL_MAX_MS {
            // All peers are silent, so it is no single peer's fault.
            self.monitor.double();
            return;
        }
        let mut together = false;
        for id in silent {
            let last = self.monitor.struck.replace((id, now));
            together |= last.is_some_and(|(other, at)| other != id && now - at <= stall);
            self.strike(id, now);
        }
        if together {
            self.monitor.double();
        }
    }

    /// Frees a silent peer's blocks for other peers. The second time, also closes its connection.
    fn strike(&mut self, id: PeerId, now: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let (strikes, ms) = (peer.strike(now), peer.silent_ms(now));
        let keys: Vec<_> = peer.counted_on().map(|owed| owed.key).collect();
        for key in keys {
            peer.set_lost(&key.1, true);
            self.window.release(key, id);
        }
        if strikes >= STRIKES_MAX && self.is_replaceable(id) && !self.consumer_limits() {
            self.drop_peer(id, Blame::Stalled { ms });
        }
    }

    /// Returns true if another peer can take its place: a connected one, or a node to connect to.
    fn is_replaceable(&self, id: PeerId) -> bool {
        let mut others = self.peers.iter().filter(|(other, _)| **other != id);
        self.monitor.replacements > 0 || others.any(|(_, peer)| !peer.stalled)
    }

    fn drop_hopeless(&mut self, now: u64) {
        if self.consumer_limits() {
            return;
        }
        let stalled = self.peers.iter().filter(|(_, peer)| peer.stalled);
        let silent: Vec<_> = stalled.map(|(id, peer)| (*id, peer.silent_ms(now))).collect();
        for (id, ms) in silent {
            let replaceable = self.is_replaceable(id);
            let stall = if replaceable { self.monitor.stall_ms() } else { STALL_MAX_MS };
            if ms >= HOPELESS * stall {
                self.drop_peer(id, Blame::Stalled { ms });
            }
        }
    }

    /// Drops the slowest peer if the others are much faster, it holds blocks up, and there are other nodes to
    /// try. Drops only one at a time, because each drop changes the median.
    fn drop_slow(&mut self, now: u64) {
        if self.monitor.replacements == 0 || self.peers.len() < 2 || self.consumer_limits() {
            return;
        }
        let rates = self.peers.iter().filter_map(|(id, peer)| Some((peer.rate(now)?, *id)));
        let mut rates: Vec<(f64, PeerId)> = rates.collect();
        rates.sort_by(|one, other| one.0.total_cmp(&other.0));
        let Some(((slowest, id), others)) = rates.split_first() else { return };
        let Some((median, _)) = others.get(others.len() / 2) else { return };
        let Some(peer) = self.peers.get(id) else { return };
        let known = now.saturating_sub(peer.added_at) >= SLOW_AFTER_MS;
        let holds_up = peer.counted_on().next().is_some();
        if known && holds_up && slowest * SLOW_TIMES < *median {
            let per_second = |rate: f64| (rate * 1_000.0) as u64;
            let why = Blame::Slow { rate: per_second(*slowest), others: per_second(*median) };
            self.monitor.replacements -= 1;
            self.drop_peer(*id, why);
        }
    }
}
