//! Who is there and may stay: pings, the places of those who connected to us, and what is held
//! against those who go.

use super::peer::Outgoing;
use super::state::State;
use crate::PeerId;
use crate::download::Blame;
use crate::headers::DisconnectReason;
use crate::message::Message;

/// So long one that connected to us keeps its place for sure, from when it came or last asked for
/// blocks; in milliseconds.
const PLACE_MS: u64 = 60_000;

/// What the end of a connection says about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It did what no honest node does.
    Misbehaved,
    /// It was of no use.
    Useless,
    /// Nothing.
    Blameless,
}

impl From<Blame> for Verdict {
    /// Only a damaged block is a lie. A block that came unasked may be one that was given up, and who
    /// has not what it said it has may have lost it.
    fn from(why: Blame) -> Self {
        match why {
            Blame::Damaged(_) => Self::Misbehaved,
            Blame::Stalled { .. } | Blame::Slow { .. } => Self::Useless,
            Blame::Unrequested(_) | Blame::Refuses(_) => Self::Useless,
        }
    }
}

impl From<DisconnectReason> for Verdict {
    fn from(why: DisconnectReason) -> Self {
        match why {
            DisconnectReason::InvalidHeaders => Self::Misbehaved,
            DisconnectReason::Stalled { .. } | DisconnectReason::TooSlow { .. } => Self::Useless,
            DisconnectReason::LowWork => Self::Useless,
        }
    }
}

impl State {
    /// Asks those who were silent whether they are there, and parts with those who are not.
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
            self.hang_up(id, "did not answer a ping and sent nothing else", Verdict::Useless);
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

    /// A place for one that connected to us, if there is one or one of `max` can give way: whoever
    /// has asked for nothing for longest (Core `net.cpp`, `AttemptToEvictConnection`, weighs more).
    pub(super) fn new_inbound(&mut self, max: usize, now: u64) -> Option<PeerId> {
        if self.ended {
            return None;
        }
        let inbound = self.peers.values().filter(|peer| peer.is_inbound() && !peer.is_leaving());
        if inbound.count() >= max {
            let idle = self.most_idle_inbound(now)?;
            self.hang_up(idle, "makes room for another one", Verdict::Blameless);
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
