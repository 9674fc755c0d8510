//! Which peer is asked for what: keeping all busy, and taking over what others are late with.
//!
//! The peer that would run dry soonest is served first, with the lowest block that it has; so a
//! fast peer gets many and a slow one few, and when memory is short all stay as busy as it allows.

use super::peers::Peer;
use super::window::Key;
use super::{Action, Download};
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
    fn takes_batch(&self, peer: &Peer, now: u64) -> bool {
        let Some(key) = self.next_for(peer) else { return false };
        let room = peer.room(self.sizes.expected(key.0), self.options.in_flight_max, now);
        room > 0 && room * BATCH_PART >= peer.owed_count() + room
    }

    /// The block that a peer is to be asked for next. Blocks of a branch come first: they are few,
    /// and a better chain waits for them.
    fn next_for(&self, peer: &Peer) -> Option<Key> {
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
        let actions = requests.into_iter().map(|(peer, blocks)| Action::Request { peer, blocks });
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

    fn is_idle(&self, peer: &Peer, now: u64) -> bool {
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
