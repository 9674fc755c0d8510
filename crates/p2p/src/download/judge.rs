//! Which peers are of no use: silent, leaving blocks out, or much slower than others.
//!
//! A silent peer loses its blocks to others early, and its connection late. How long "early" is
//! adapts: if several fall silent at once it is the line, and patience doubles, as Core's does for
//! the same reason (`net_processing.cpp`, `BLOCK_STALLING_TIMEOUT_DEFAULT` and `_MAX`). No peer
//! is dropped while everything waits for the consumer.

use super::peers::Peer;
use super::schedule::TICK_MS;
use super::{Blame, Download};
use crate::PeerId;

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
pub(super) struct Judge {
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

impl Default for Judge {
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

impl Judge {
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
        let is_silent = |peer: &Peer| !peer.stalled && peer.silent_ms(now) >= stall;
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
