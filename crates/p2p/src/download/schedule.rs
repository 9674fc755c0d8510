//! Which peer is asked for what, and which peers are of no use: silent, leaving blocks out, or much slower than
//! others.
//!
//! The peer that would run dry soonest is served first, with the lowest block that it has; so a
//! fast peer gets many and a slow one few, and when memory is short all stay as busy as it allows. A peer with
//! nothing left to ask for takes over what others are late with.
//!
//! A silent peer loses its blocks to others early, and its connection late. How long "early" is
//! adapts: if several fall silent at once it is the line, and patience doubles, as Core's does for
//! the same reason (`net_processing.cpp`, `BLOCK_STALLING_TIMEOUT_DEFAULT` and `_MAX`). No peer
//! is dropped while everything waits for the consumer.

use super::peers::DownloadPeer;
use super::window::Key;
use super::{Blame, Download, DownloadAction};
use crate::PeerId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How long between two looks when nothing happens, in milliseconds.
pub(super) const TICK_MS: u64 = 100;
/// A peer is asked for more when this part of what it may owe is free: several in one message.
const BATCH_PART: usize = 8;
/// How many of the last blocks of each peer are looked at at a time.
const LATE_MAX: usize = 32;
/// How much sooner a second copy has to be there to be worth its bytes, in milliseconds, beside a
/// part of its own time.
const GAIN_MS: u64 = 100;

/// What is remembered from tick to tick.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    hedged_at: u64,
    weighed_at: u64,
}

/// Blocks to be asked for, by peer.
type Requests = BTreeMap<PeerId, Vec<Key>>;

impl Download {
    /// Asks peers for blocks that none owes, as far as peers and memory have room.
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

    /// What peers owe weighs what blocks weigh by now: a peer that was asked for many small ones
    /// may owe more than all others together.
    pub(super) fn weigh_anew(&mut self, now: u64) {
        if now < self.schedule.weighed_at + TICK_MS {
            return;
        }
        self.schedule.weighed_at = now;
        for peer in self.peers.values_mut() {
            peer.expect(|height| self.sizes.expected(height));
        }
    }

    /// Whether there is no memory for the first block that is to be asked for.
    pub(super) fn memory_is_short(&self) -> bool {
        let first = self.window.all_free().next();
        first.is_some_and(|key| !self.window.admits(key, self.sizes.expected(key.0)))
    }

    /// Whether a peer has room for so many blocks that a message is worth it.
    fn takes_batch(&self, peer: &DownloadPeer, now: u64) -> bool {
        let Some(key) = self.next_for(peer) else { return false };
        let room = peer.room(self.sizes.expected(key.0), self.options.in_flight_max, now);
        room > 0 && room * BATCH_PART >= peer.owed_count() + room
    }

    /// The block that a peer is to be asked for next. Blocks of a branch come first: they are few,
    /// and a better chain waits for them.
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

    /// A peer is to deliver a block. One that still owes it from before is not asked again: it
    /// would send it twice.
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

    /// Asks peers that have room, and nothing new to be asked for, for blocks that others owe and
    /// will deliver clearly later, the latest first.
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

    /// Blocks in flight with the time until they are expected, in milliseconds, the latest first.
    fn late(&self, now: u64) -> Vec<(u64, Key)> {
        let mut soonest = BTreeMap::new();
        // What another one delivered in the meantime is still owed, but not late.
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

    /// Asks a peer for a block that others owe, if it may be and that is worth it. False if it is
    /// not worth it for this peer, nor for blocks that are expected sooner.
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
            // All that owe it are far behind: one of them is not counted on any more.
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

/// After so much silence a peer loses its blocks, in milliseconds; grows up to the other.
const STALL_MS: u64 = 2_000;
const STALL_MAX_MS: u64 = 64_000;
/// By this, patience grows shorter with each block delivered.
const STALL_DECAY: f64 = 0.85;
/// After so many times the patience with a stall the connection is closed.
const HOPELESS: u64 = 4;
/// So many stalls within ten minutes are enough.
const STRIKES_MAX: u32 = 2;
/// How often slow peers are looked for, in milliseconds.
const SLOW_EVERY_MS: u64 = 5_000;
/// How long a peer has to be there before it is called slow, in milliseconds.
const SLOW_AFTER_MS: u64 = 10_000;
/// A peer is slow if others are so many times as fast.
const SLOW_TIMES: f64 = 8.0;

/// What is remembered from tick to tick.
#[derive(Debug)]
pub(super) struct PeerJudge {
    /// Patience with silence, in milliseconds.
    stall_ms: f64,
    /// The peer that lost its blocks last, and when.
    struck: Option<(PeerId, u64)>,
    /// When any peer made progress last.
    pub(super) heard_at: u64,
    /// How many nodes could be connected to.
    pub(super) replacements: usize,
    judged_at: u64,
    slow_at: u64,
}

impl Default for PeerJudge {
    fn default() -> Self {
        Self {
            stall_ms: STALL_MS as f64,
            struck: None,
            heard_at: 0,
            replacements: 0,
            judged_at: 0,
            slow_at: 0,
        }
    }
}

impl PeerJudge {
    /// Patience with silence, in milliseconds.
    pub(super) const fn stall_ms(&self) -> u64 {
        self.stall_ms as u64
    }

    fn double(&mut self) {
        self.stall_ms = (self.stall_ms * 2.0).min(STALL_MAX_MS as f64);
    }

    /// A wanted block came.
    pub(super) fn delivered(&mut self) {
        self.stall_ms = (self.stall_ms * STALL_DECAY).max(STALL_MS as f64);
    }
}

impl Download {
    /// Takes blocks away from peers that do not deliver, and drops those that are of no use.
    pub(super) fn judge_peers(&mut self, now: u64) {
        if now < self.judge.judged_at + TICK_MS {
            return;
        }
        self.judge.judged_at = now;
        self.find_left_out(now);
        self.find_silent(now);
        self.drop_hopeless(now);
        if now >= self.judge.slow_at + SLOW_EVERY_MS {
            self.judge.slow_at = now;
            self.drop_slow(now);
        }
    }

    /// Whether memory is full of blocks that the consumer could take in. While it may wait for the
    /// lowest block it is not what limits.
    pub(super) fn consumer_limits(&self) -> bool {
        self.window.lowest_is_handed_out() && self.memory_is_short()
    }

    /// A node answers in order, and nothing at all for a block that it does not know.
    fn find_left_out(&mut self, now: u64) {
        let patience = self.judge.stall_ms();
        let mut left_out = Vec::new();
        for (id, peer) in &mut self.peers {
            left_out.extend(peer.left_out(patience, now).into_iter().map(|hash| (*id, hash)));
        }
        for (id, hash) in left_out {
            self.refuse(id, &hash);
        }
    }

    fn find_silent(&mut self, now: u64) {
        let stall = self.judge.stall_ms();
        let is_silent = |peer: &DownloadPeer| !peer.stalled && peer.silent_ms(now) >= stall;
        let silent: Vec<PeerId> =
            self.peers.iter().filter(|(_, peer)| is_silent(peer)).map(|(id, _)| *id).collect();
        let all_quiet = now.saturating_sub(self.judge.heard_at) >= stall;
        if silent.len() > 1 && all_quiet && stall < STALL_MAX_MS {
            // All peers are silent: that is no peer's fault.
            self.judge.double();
            return;
        }
        let mut together = false;
        for id in silent {
            let last = self.judge.struck.replace((id, now));
            together |= last.is_some_and(|(other, at)| other != id && now - at <= stall);
            self.strike(id, now);
        }
        if together {
            self.judge.double();
        }
    }

    /// A silent peer loses its blocks, and the second time its connection.
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

    /// Whether there is another peer to ask, or to be found.
    fn is_replaceable(&self, id: PeerId) -> bool {
        let mut others = self.peers.iter().filter(|(other, _)| **other != id);
        self.judge.replacements > 0 || others.any(|(_, peer)| !peer.stalled)
    }

    fn drop_hopeless(&mut self, now: u64) {
        if self.consumer_limits() {
            return;
        }
        let stalled = self.peers.iter().filter(|(_, peer)| peer.stalled);
        let silent: Vec<_> = stalled.map(|(id, peer)| (*id, peer.silent_ms(now))).collect();
        for (id, ms) in silent {
            let replaceable = self.is_replaceable(id);
            let stall = if replaceable { self.judge.stall_ms() } else { STALL_MAX_MS };
            if ms >= HOPELESS * stall {
                self.drop_peer(id, Blame::Stalled { ms });
            }
        }
    }

    /// Drops the slowest peer if the others are much faster, it holds blocks up, and there are
    /// others to be tried; one at a time, as the measure moves with each.
    fn drop_slow(&mut self, now: u64) {
        if self.judge.replacements == 0 || self.peers.len() < 2 || self.consumer_limits() {
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
            self.judge.replacements -= 1;
            self.drop_peer(*id, why);
        }
    }
}
