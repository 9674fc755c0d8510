//! Which peers stay connected: arrivals and departures, pings, slots for inbound peers, and penalties for
//! departed ones.
//!
//! A connection can die silently, and an idle peer is not missed. So every peer is pinged now and then. A
//! peer that sends anything at all is alive; a pong also gives the round trip.

use super::mailbox::Fences;
use super::peer::{Liveness, NetworkPeer, PeerHandle, PeerVerdict, WriterCommand};
use super::state::NetworkState;
use crate::PeerId;
use crate::addresses::{NodeAddress, Services};
use crate::message::Message;
use crate::transport::{PeerError, PeerFault};

/// How long an inbound peer is sure to keep its slot after it connected or last asked for blocks, in
/// milliseconds.
const PLACE_MS: u64 = 60_000;

/// How long a peer that we found may lack work that our chain has, in milliseconds (Core `net_processing.cpp`,
/// `CHAIN_SYNC_TIMEOUT`).
const BEHIND_MS: u64 = 20 * 60_000;

/// Maximum number of former peers remembered.
const LOST_MAX: usize = 64;

impl NetworkState {
    /// Adds a peer that we dial.
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
            behind: None,
            clock_ahead: 0,
        };
        self.peers.insert(id, peer);
        id
    }

    /// Records a completed handshake.
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
        self.send(id, WriterCommand::Message(Message::SendHeaders));
        self.ping(id, now);
        if outbound {
            self.send(id, WriterCommand::Message(Message::GetAddr));
            self.headers.peer_connected(id, now);
            self.download.peer_added(id, services, now);
            self.note_chain_of(id);
            self.ask_for_hash_requests(id);
        }
        self.act(now);
        Ok(())
    }

    /// Removes a peer whose thread has ended.
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
            // A peer that was never connected sent nothing.
            if peer.handle.is_some() {
                self.lost.push_back((id, address.clone()));
                if self.lost.len() > LOST_MAX {
                    self.lost.pop_front();
                }
            }
        }
        self.act(now);
    }

    /// Closes a connection. The peer's thread will then report its end.
    pub(super) fn hang_up(&mut self, id: PeerId, why: &str, verdict: PeerVerdict) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(handle) = &peer.handle {
            // The first reason counts.
            peer.why.get_or_insert_with(|| (why.to_owned(), verdict));
            handle.closer.close();
        }
    }

    /// Whether no outbound peer has all blocks.
    pub(super) fn are_pruned(&self) -> bool {
        let outbound = self.peers.values().filter(|peer| !peer.is_inbound());
        let mut connected = outbound.filter_map(|peer| peer.handle.as_ref()).peekable();
        connected.peek().is_some()
            && connected.all(|it| !it.info.version.services.has(Services::NETWORK))
    }

    /// Disconnects found peers that still lack work which our chain had long ago: other peers may know more. A peer that
    /// catches up with that work, but not with ours, gets more time (Core `net_processing.cpp`, `ConsiderEviction`).
    pub(super) fn drop_peers_behind(&mut self, now: u64) {
        let Some(served) = self.served.as_ref().filter(|_| !self.keeps_named) else { return };
        let (ours, tree) = (served.chain_work(), self.headers.tree());
        let mut gone = Vec::new();
        for (&id, peer) in self.peers.iter_mut().filter(|(_, peer)| !peer.is_inbound()) {
            let Some(best) = self.headers.peer_best(id) else { continue };
            let theirs = tree.connected(best).map_or(0, |header| header.chain_work);
            match peer.behind {
                _ if theirs >= ours => peer.behind = None,
                Some((since, work)) if theirs < work => {
                    gone.extend((now.saturating_sub(since) >= BEHIND_MS).then_some(id));
                }
                _ => peer.behind = Some((now, ours)),
            }
        }
        for id in gone {
            self.hang_up(id, "has not caught up with our chain", PeerVerdict::Useless);
        }
    }

    /// Closes all outbound connections.
    pub(super) fn disconnect_outbound(&mut self, why: &str) {
        let outbound = self.peers.iter().filter(|(_, peer)| !peer.is_inbound());
        let outbound: Vec<PeerId> = outbound.map(|(&id, _)| id).collect();
        outbound.into_iter().for_each(|id| self.hang_up(id, why, PeerVerdict::Blameless));
    }

    /// Pings each peer now and then, and disconnects dead ones.
    pub(super) fn look_after_peers(&mut self, now: u64) {
        let (mut due, mut gone) = (Vec::new(), Vec::new());
        for (&id, peer) in &mut self.peers {
            let Some(handle) = &peer.handle else { continue };
            peer.liveness.received(handle.received(), now);
            if handle.is_answering() {
                // Our ping waits behind the blocks that we are sending.
                peer.liveness.excuse(now);
            }
            if peer.liveness.is_gone(now) {
                gone.push(id);
            } else if peer.liveness.is_ping_due(now) {
                due.push(id);
            }
        }
        for id in gone {
            self.hang_up(id, "did not answer a ping or send anything else", PeerVerdict::Useless);
        }
        due.into_iter().for_each(|id| self.ping(id, now));
    }

    pub(super) fn ping(&mut self, id: PeerId, now: u64) {
        let nonce = self.next_nonce();
        let is_measure = !self.download.is_owing(id);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.liveness.pinged(nonce, is_measure, now);
            self.send(id, WriterCommand::Message(Message::Ping(nonce)));
        }
    }

    pub(super) fn pong(&mut self, id: PeerId, nonce: u64, now: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(ms) = peer.liveness.pong(nonce, now) {
            self.download.round_trip(id, ms);
        }
    }

    /// Records that a peer asked for blocks.
    pub(super) fn was_asked(&mut self, id: PeerId, now: u64) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.asked_at = now;
        }
    }

    /// Adds an inbound peer if fewer than `max` are connected or one can be evicted: the one that has not
    /// asked for anything for longest (Core `net.cpp`, `AttemptToEvictConnection`, weighs more criteria).
    pub(super) fn new_inbound(&mut self, max: usize, now: u64) -> Option<PeerId> {
        if self.ended {
            return None;
        }
        let inbound = self.peers.values().filter(|peer| peer.is_inbound() && !peer.is_leaving());
        if inbound.count() >= max {
            let idle = self.most_idle_inbound(now)?;
            self.hang_up(idle, "evicted to make room for another peer", PeerVerdict::Blameless);
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
