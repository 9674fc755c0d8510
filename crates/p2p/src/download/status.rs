//! [`DownloadStatus`]: how the download goes, for people.

use super::window::Key;
use super::{Download, DownloadTotals};
use crate::PeerId;

/// What the download waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Peers and the line to them: blocks are taken in as they come.
    Line,
    /// The consumer: memory is full of blocks that it could take in, or it wants none.
    Consumer,
    /// A peer to ask: none has what is wanted.
    Peers,
}

/// One peer.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerProgress {
    /// Which one.
    pub peer: PeerId,
    /// Bytes of blocks per second, of the last ten seconds or so.
    pub rate: u64,
    /// Round trip in milliseconds, as far as deliveries tell.
    pub round_trip_ms: u64,
    /// Blocks that it delivered, copies among them.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that it owes.
    pub in_flight: usize,
    /// Whether it is silent and lost its blocks to others.
    pub stalled: bool,
}

/// How the download goes.
#[derive(Debug, Clone, PartialEq)]
pub struct DownloadStatus {
    /// Every peer, the oldest first.
    pub peers: Vec<PeerProgress>,
    /// Bytes of blocks per second of all peers, of the last ten seconds or so.
    pub rate: u64,
    /// What came so far.
    pub totals: DownloadTotals,
    /// Blocks wanted and not there, those in flight among them.
    pub awaited: usize,
    /// Blocks that some peer owes.
    pub in_flight: usize,
    /// Blocks that the consumer has not judged.
    pub unconsumed: usize,
    /// Blocks wanted that no connected peer has.
    pub unavailable: usize,
    /// What the download waits for.
    pub limited_by: Limit,
}

impl Download {
    /// How the download goes. Looks at every wanted block: for a line each second, not each block.
    #[must_use]
    pub fn status(&self, now: u64) -> DownloadStatus {
        let now = now.max(self.now);
        let rate: f64 = self.peers.values().map(|peer| peer.recent_rate(now)).sum();
        let peers = self.peers.iter().map(|(id, peer)| PeerProgress {
            peer: *id,
            rate: per_second(peer.recent_rate(now)),
            round_trip_ms: peer.round_trip_ms(),
            blocks: peer.blocks,
            bytes: peer.bytes,
            in_flight: peer.owed_count(),
            stalled: peer.stalled,
        });
        DownloadStatus {
            peers: peers.collect(),
            rate: per_second(rate),
            totals: self.totals,
            awaited: self.window.len() - self.window.handed_out(),
            in_flight: self.window.in_flight(),
            unconsumed: self.window.handed_out(),
            unavailable: self.unavailable().count(),
            limited_by: self.limited_by(),
        }
    }

    /// What the download waits for.
    #[must_use]
    pub fn limited_by(&self) -> Limit {
        let free = self.window.all_free().count();
        if self.window.in_flight() > 0 {
            return if self.consumer_limits() { Limit::Consumer } else { Limit::Line };
        }
        match free > 0 && self.unavailable().count() == free {
            true => Limit::Peers,
            false if free == 0 || self.consumer_limits() => Limit::Consumer,
            false => Limit::Line,
        }
    }

    /// The blocks that are to be asked for and that no peer may be asked for.
    fn unavailable(&self) -> impl Iterator<Item = Key> + '_ {
        let has = |key| {
            let on_chain = self.window.is_on_chain(key);
            self.peers.values().any(|peer| !peer.stalled && peer.has(key, on_chain))
        };
        self.window.all_free().filter(move |key| !has(*key))
    }
}

fn per_second(rate: f64) -> u64 {
    (rate * 1_000.0) as u64
}
