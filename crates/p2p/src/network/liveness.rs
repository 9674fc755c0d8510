//! [`Liveness`]: whether a peer is still at the other end.
//!
//! A line can go without a word, and a peer that owes nothing is not missed. So each is asked now and
//! then, by a ping. A peer that sends anything at all is there; a pong also tells how far away.

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
