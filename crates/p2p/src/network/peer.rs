//! [`NetworkPeer`]: the state of one peer, the commands for its writer, and its liveness.

use super::NetworkShared;
use super::mailbox::Fences;
use crate::addresses::NodeAddress;
use crate::download::Blame;
use crate::headers::DisconnectReason;
use crate::message::{Inventory, Message};
use crate::transport::{Closer, PeerError, PeerInfo};
use apus_chain::HEADER_SIZE;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// A connected peer as seen by other threads.
pub(super) struct PeerHandle {
    pub(super) outgoing: SyncSender<WriterCommand>,
    pub(super) closer: Closer,
    pub(super) received: Arc<AtomicU64>,
    /// Bytes received up to the end of the last whole message.
    pub(super) at_message: Arc<AtomicU64>,
    /// Its requests that are being answered.
    pub(super) turns: Arc<Turns>,
    pub(super) info: PeerInfo,
}

/// A peer, from the moment either side dials.
pub(super) struct NetworkPeer {
    /// Its address. `None` if it connected to us.
    pub(super) address: Option<NodeAddress>,
    /// Set once the handshake is done.
    pub(super) handle: Option<PeerHandle>,
    /// Why we disconnected it, and what that says about it.
    pub(super) why: Option<(String, PeerVerdict)>,
    pub(super) liveness: Liveness,
    pub(super) fences: Fences,
    /// When it last asked for blocks; before that, when it connected.
    pub(super) asked_at: u64,
    /// Since when it lacks work that our chain has, and our chain's work at that time.
    pub(super) behind: Option<(u64, u128)>,
    /// How many seconds its clock was ahead of ours when it connected.
    pub(super) clock_ahead: i64,
}

impl NetworkPeer {
    pub(super) fn is_connected(&self) -> bool {
        self.handle.is_some()
    }

    /// Returns true if it connected to us.
    pub(super) fn is_inbound(&self) -> bool {
        self.address.is_none()
    }

    /// Returns true if we are disconnecting it.
    pub(super) fn is_leaving(&self) -> bool {
        self.why.is_some()
    }
}

/// A command for the writing thread.
pub(super) enum WriterCommand {
    Message(Message),
    /// Headers that the peer asked for.
    Headers(Vec<[u8; HEADER_SIZE]>),
    /// Blocks that the peer asked for.
    Blocks(Vec<Inventory>),
}

/// Maximum number of requests of a peer that may wait for answers.
const REQUESTS_MAX: usize = 4;

/// The requests of one peer that are being answered.
#[derive(Debug, Default)]
pub(super) struct Turns {
    pending: AtomicUsize,
    /// True once the answering thread has ended.
    ended: AtomicBool,
}

impl Turns {
    /// Waits until few of the peer's requests are unanswered. Until then nothing more is read from the peer,
    /// which bounds its requests. A request read after the answering thread has ended would wait forever, so
    /// that is an error.
    pub(super) fn take(&self, shared: &NetworkShared) -> Result<(), PeerError> {
        loop {
            if self.ended.load(Ordering::Relaxed) || shared.has_ended() {
                return Err(PeerError::Closed);
            }
            if self.pending.load(Ordering::Relaxed) < REQUESTS_MAX {
                self.pending.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn answered(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn is_answering(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0 && !self.ended.load(Ordering::Relaxed)
    }
}

impl PeerHandle {
    /// All bytes received.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Returns true while one of its requests is being answered.
    pub(super) fn is_answering(&self) -> bool {
        self.turns.is_answering()
    }

    /// Bytes received of the incoming message.
    pub(super) fn partial_bytes(&self) -> u64 {
        let whole = self.at_message.load(Ordering::Relaxed);
        self.received.load(Ordering::Relaxed).saturating_sub(whole)
    }
}

/// What a disconnect says about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerVerdict {
    /// It did what no honest node does.
    Misbehaved,
    /// It was useless.
    Useless,
    /// Nothing.
    Blameless,
}

impl From<Blame> for PeerVerdict {
    /// Only a damaged block is misbehaviour. An unrequested block may be one that we cancelled, and a peer
    /// may have lost blocks that it claimed to have.
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

/// Interval between pings to a peer, in milliseconds (Core `net_processing.cpp`, `PING_INTERVAL`, uses two
/// minutes).
const PING_MS: u64 = 60_000;

/// A peer is gone after this long without a byte or an answer to a ping, in milliseconds. Core waits longer
/// (`net.h`, `TIMEOUT_INTERVAL`: 20 minutes), but it depends less on a single peer.
const SILENCE_MS: u64 = 60_000;

#[derive(Debug, Clone, Copy)]
struct Ping {
    nonce: u64,
    sent_at: u64,
    /// True if nothing was queued between the ping and its answer.
    is_measure: bool,
}

/// Detects whether a peer is still there. All times are in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Liveness {
    /// Bytes received from it.
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

    /// Updates the number of bytes received so far.
    pub(super) fn received(&mut self, bytes: u64, now: u64) {
        if bytes != self.bytes {
            (self.bytes, self.heard_at) = (bytes, now);
        }
    }

    /// Restarts the timeout: the peer is busy with what we send.
    pub(super) fn excuse(&mut self, now: u64) {
        self.heard_at = now;
    }

    /// Returns true if a ping is due.
    pub(super) fn is_ping_due(&self, now: u64) -> bool {
        self.ping.is_none() && now.saturating_sub(self.pinged_at) >= PING_MS
    }

    /// Records a sent ping. `is_measure` is true if the peer can answer at once.
    pub(super) fn pinged(&mut self, nonce: u64, is_measure: bool, now: u64) {
        self.ping = Some(Ping { nonce, sent_at: now, is_measure });
        self.pinged_at = now;
    }

    /// Records an answer. Returns its duration if it is a valid round trip.
    pub(super) fn pong(&mut self, nonce: u64, now: u64) -> Option<u64> {
        let ping = self.ping.take_if(|ping| ping.nonce == nonce)?;
        ping.is_measure.then(|| now.saturating_sub(ping.sent_at))
    }

    #[cfg(test)]
    pub(super) const fn awaits(&self) -> bool {
        self.ping.is_some()
    }

    /// Returns true if it owes an answer and has been silent for too long.
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
    fn silent_peers_are_dropped_and_others_stay() {
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
