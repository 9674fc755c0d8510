//! Which peers are there and may stay: how they come and go, pings, the places of those that
//! connected to us, and what is held against those that go.
//!
//! A line can go without a word, and a peer that owes nothing is not missed. So each is asked now and
//! then, by a ping. A peer that sends anything at all is there; a pong also tells how far away.

use super::by_hash::Fences;
use super::peer::Outgoing;
use super::state::{NetworkPeer, NetworkState, PeerHandle};
use crate::PeerId;
use crate::addresses::NodeAddress;
use crate::download::Blame;
use crate::headers::DisconnectReason;
use crate::message::Message;
use crate::transport::{PeerError, PeerFault};

/// So long one that connected to us keeps its place for sure, from when it came or last asked for
/// blocks; in milliseconds.
const PLACE_MS: u64 = 60_000;

/// Peers that were there, are gone and still remembered.
const LOST_MAX: usize = 64;

/// What the end of a connection says about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerVerdict {
    /// It did what no honest node does.
    Misbehaved,
    /// It was of no use.
    Useless,
    /// Nothing.
    Blameless,
}

impl From<Blame> for PeerVerdict {
    /// Only a damaged block is a lie. A block that came unasked may be one that was given up, and a
    /// peer that has not what it said it has may have lost it.
    fn from(why: Blame) -> Self {
        match why {
            Blame::Damaged(_) => Self::Misbehaved,
            Blame::Stalled { .. } | Blame::Slow { .. } => Self::Useless,
            Blame::Unrequested(_) | Blame::Refuses(_) => Self::Useless,
        }
    }
}

impl From<DisconnectReason> for PeerVerdict {
    fn from(why: DisconnectReason) -> Self {
        match why {
            DisconnectReason::InvalidHeaders => Self::Misbehaved,
            DisconnectReason::Stalled { .. } | DisconnectReason::TooSlow { .. } => Self::Useless,
            DisconnectReason::LowWork => Self::Useless,
        }
    }
}

impl NetworkState {
    /// A place for a peer that we connect to.
    pub(super) fn new_peer(&mut self, address: Option<NodeAddress>, now: u64) -> PeerId {
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        let peer = NetworkPeer {
            address,
            handle: None,
            why: None,
            liveness: Liveness::new(now),
            fences: Fences::default(),
            asked_at: now,
            clock_ahead: 0,
        };
        self.peers.insert(id, peer);
        id
    }

    /// The handshake is done.
    pub(super) fn connected(
        &mut self,
        id: PeerId,
        handle: PeerHandle,
        now: u64,
    ) -> Result<(), PeerError> {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.ended) else {
            handle.closer.close();
            return Err(PeerError::Closed);
        };
        let version = &handle.info.version;
        let services = version.services;
        peer.clock_ahead = version.time.saturating_sub(super::unix_time());
        if let Some(address) = &peer.address {
            self.book.connected(address, services, super::unix_time());
        }
        let outbound = !peer.is_inbound();
        peer.handle = Some(handle);
        self.send(id, Outgoing::Message(Message::SendHeaders));
        self.ping(id, now);
        if outbound {
            self.send(id, Outgoing::Message(Message::GetAddr));
            self.headers.peer_connected(id, now);
            self.download.peer_added(id, services, now);
            self.note_chain_of(id);
            self.ask_for_wishes(id);
        }
        self.act(now);
        Ok(())
    }

    /// A peer's thread has ended.
    pub(super) fn gone(&mut self, id: PeerId, reason: &PeerError, now: u64) {
        let Some(peer) = self.peers.remove(&id) else { return };
        if let Some(handle) = &peer.handle {
            handle.closer.close();
        }
        self.headers.peer_gone(id, now);
        self.download.peer_gone(id);
        self.book.peer_gone(id);
        if let Some(address) = &peer.address {
            let unix = super::unix_time();
            let (why, verdict) = match &peer.why {
                Some((why, verdict)) => (why.clone(), *verdict),
                None if reason.kind() == PeerFault::Misbehaved => {
                    (reason.to_string(), PeerVerdict::Misbehaved)
                }
                None if peer.handle.is_none() => (reason.to_string(), PeerVerdict::Useless),
                None => (reason.to_string(), PeerVerdict::Blameless),
            };
            if let PeerError::Headers { what } = reason {
                self.refused.note(format!("{address}: {what}"));
            }
            self.last_lost = Some(format!("{address}: {why}"));
            match verdict {
                PeerVerdict::Misbehaved => self.book.misbehaved(address, unix),
                PeerVerdict::Useless => self.book.failed(address, unix),
                PeerVerdict::Blameless => self.book.disconnected(address, unix),
            }
            if verdict == PeerVerdict::Misbehaved && self.keeps_named {
                self.misbehaved.insert(id);
            }
            // One that was never reached has sent nothing.
            if peer.handle.is_some() {
                self.lost.push_back((id, address.clone()));
                if self.lost.len() > LOST_MAX {
                    self.lost.pop_front();
                }
            }
        }
        self.act(now);
    }

    /// Ends a connection; the peer's thread will tell that it is gone.
    pub(super) fn hang_up(&mut self, id: PeerId, why: &str, verdict: PeerVerdict) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(handle) = &peer.handle {
            // The first reason is the one.
            peer.why.get_or_insert_with(|| (why.to_owned(), verdict));
            handle.closer.close();
        }
    }

    /// Ends all connections that we made.
    pub(super) fn part_with_all(&mut self, why: &str) {
        let outbound = self.peers.iter().filter(|(_, peer)| !peer.is_inbound());
        let outbound: Vec<PeerId> = outbound.map(|(&id, _)| id).collect();
        outbound.into_iter().for_each(|id| self.hang_up(id, why, PeerVerdict::Blameless));
    }

    /// Pings each peer now and then, and parts with those that are no longer there.
    pub(super) fn look_after_peers(&mut self, now: u64) {
        let (mut due, mut gone) = (Vec::new(), Vec::new());
        for (&id, peer) in &mut self.peers {
            let Some(handle) = &peer.handle else { continue };
            peer.liveness.received(handle.received(), now);
            if handle.is_answering() {
                // Our ping waits behind the blocks that we send it.
                peer.liveness.excuse(now);
            }
            if peer.liveness.is_gone(now) {
                gone.push(id);
            } else if peer.liveness.is_ping_due(now) {
                due.push(id);
            }
        }
        for id in gone {
            self.hang_up(id, "did not answer a ping and sent nothing else", PeerVerdict::Useless);
        }
        due.into_iter().for_each(|id| self.ping(id, now));
    }

    pub(super) fn ping(&mut self, id: PeerId, now: u64) {
        let nonce = self.next_nonce();
        let is_measure = !self.download.is_owing(id);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.liveness.pinged(nonce, is_measure, now);
            self.send(id, Outgoing::Message(Message::Ping(nonce)));
        }
    }

    pub(super) fn pong(&mut self, id: PeerId, nonce: u64, now: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(ms) = peer.liveness.pong(nonce, now) {
            self.download.round_trip(id, ms);
        }
    }

    /// A peer asked for blocks.
    pub(super) fn was_asked(&mut self, id: PeerId, now: u64) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.asked_at = now;
        }
    }

    /// A place for one that connected to us, if there is one or one of `max` can give way: the one
    /// that has asked for nothing for longest (Core `net.cpp`, `AttemptToEvictConnection`, weighs
    /// more things).
    pub(super) fn new_inbound(&mut self, max: usize, now: u64) -> Option<PeerId> {
        if self.ended {
            return None;
        }
        let inbound = self.peers.values().filter(|peer| peer.is_inbound() && !peer.is_leaving());
        if inbound.count() >= max {
            let idle = self.most_idle_inbound(now)?;
            self.hang_up(idle, "makes room for another one", PeerVerdict::Blameless);
        }
        Some(self.new_peer(None, now))
    }

    fn most_idle_inbound(&self, now: u64) -> Option<PeerId> {
        let may_go = self.peers.iter().filter(|(_, peer)| {
            let answering = peer.handle.as_ref().is_none_or(|handle| handle.is_answering());
            peer.is_inbound()
                && !peer.is_leaving()
                && !answering
                && now.saturating_sub(peer.asked_at) >= PLACE_MS
        });
        may_go.min_by_key(|(id, peer)| (peer.asked_at, **id)).map(|(&id, _)| id)
    }
}

/// How often a peer is asked whether it is there, in milliseconds (Core `net_processing.cpp`,
/// `PING_INTERVAL`, has two minutes).
const PING_MS: u64 = 60_000;

/// After so long without a byte, and without the answer to a ping, a peer is gone; in milliseconds.
/// Core waits longer (`net.h`, `TIMEOUT_INTERVAL`: 20 minutes), but it can do without a peer.
const SILENCE_MS: u64 = 60_000;

#[derive(Debug, Clone, Copy)]
struct Ping {
    nonce: u64,
    sent_at: u64,
    /// Nothing stood between the peer and its answer.
    is_measure: bool,
}

/// See the module. All times in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Liveness {
    /// Bytes that came from it.
    bytes: u64,
    /// When that number last changed.
    heard_at: u64,
    ping: Option<Ping>,
    pinged_at: u64,
}

impl Liveness {
    pub(super) const fn new(now: u64) -> Self {
        Self { bytes: 0, heard_at: now, ping: None, pinged_at: now }
    }

    /// So many bytes came from it so far.
    pub(super) fn received(&mut self, bytes: u64, now: u64) {
        if bytes != self.bytes {
            (self.bytes, self.heard_at) = (bytes, now);
        }
    }

    /// It cannot be expected to say something: it is busy with what we send.
    pub(super) fn excuse(&mut self, now: u64) {
        self.heard_at = now;
    }

    /// Whether a ping is to be sent.
    pub(super) fn is_ping_due(&self, now: u64) -> bool {
        self.ping.is_none() && now.saturating_sub(self.pinged_at) >= PING_MS
    }

    /// A ping was sent; `is_measure` if the peer can answer at once.
    pub(super) fn pinged(&mut self, nonce: u64, is_measure: bool, now: u64) {
        self.ping = Some(Ping { nonce, sent_at: now, is_measure });
        self.pinged_at = now;
    }

    /// An answer came: how long it took, where that says how far away the peer is.
    pub(super) fn pong(&mut self, nonce: u64, now: u64) -> Option<u64> {
        let ping = self.ping.take_if(|ping| ping.nonce == nonce)?;
        ping.is_measure.then(|| now.saturating_sub(ping.sent_at))
    }

    #[cfg(test)]
    pub(super) const fn awaits(&self) -> bool {
        self.ping.is_some()
    }

    /// Whether it owes an answer, and sent nothing for so long that there will be none.
    pub(super) fn is_gone(&self, now: u64) -> bool {
        let since = |ping: Ping| now.saturating_sub(ping.sent_at.max(self.heard_at));
        self.ping.is_some_and(|ping| since(ping) >= SILENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_answers_stays_and_is_measured() {
        let mut peer = Liveness::new(5);
        assert!(!peer.is_ping_due(PING_MS + 4) && peer.is_ping_due(PING_MS + 5));
        peer.pinged(7, true, 70_000);
        assert!(!peer.is_ping_due(500_000), "one at a time");
        assert_eq!(peer.pong(8, 70_050), None);
        assert_eq!(peer.pong(7, 70_090), Some(90));
        assert_eq!(peer.pong(7, 70_091), None, "once");
        assert!(!peer.is_gone(u64::MAX));
        assert!(!peer.is_ping_due(129_999) && peer.is_ping_due(130_000));
        peer.pinged(9, false, 130_000);
        assert_eq!(peer.pong(9, 131_000), None, "it had blocks to send first");
        assert!(!peer.is_gone(u64::MAX));
    }

    #[test]
    fn a_silent_peer_goes_and_one_that_sends_anything_stays() {
        let mut peer = Liveness::new(0);
        assert!(!peer.is_gone(u64::MAX), "nothing was asked");
        peer.pinged(1, true, 1_000);
        assert!(!peer.is_gone(60_999) && peer.is_gone(61_000));
        peer.received(10, 30_000);
        peer.received(10, 50_000);
        assert!(!peer.is_gone(89_999) && peer.is_gone(90_000));
        peer.excuse(80_000);
        assert!(!peer.is_gone(139_999) && peer.is_gone(140_000));
        for now in (60_000..6_000_000).step_by(59_999) {
            peer.received(now, now);
            assert!(!peer.is_gone(now + 59_998), "it delivers, slowly");
        }
    }
}
