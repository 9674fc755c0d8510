//! [`DownloadStatus`]: the download's progress, for display.

use super::window::Key;
use super::{Download, DownloadTotals};
use crate::PeerId;

/// What limits the download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The peers and the network: the consumer takes blocks as they arrive.
    Line,
    /// The consumer: memory is full of blocks that it could take, or it wants none.
    Consumer,
    /// A lack of peers: none has the wanted blocks.
    Peers,
}

/// Progress of one peer.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerProgress {
    /// The peer.
    pub peer: PeerId,
    /// Block bytes per second, over roughly the last ten seconds.
    pub rate: u64,
    /// Round trip in milliseconds, as estimated from deliveries.
    pub round_trip_ms: u64,
    /// Blocks delivered, duplicates included.
    pub blocks: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
    /// Blocks it owes.
    pub in_flight: usize,
    /// True if it is silent and lost its blocks to others.
    pub stalled: bool,
}

/// Progress of the download.
#[derive(Debug, Clone, PartialEq)]
pub struct DownloadStatus {
    /// All peers, the oldest first.
    pub peers: Vec<PeerProgress>,
    /// Block bytes per second of all peers, over roughly the last ten seconds.
    pub rate: u64,
    /// Totals so far.
    pub totals: DownloadTotals,
    /// Blocks wanted and not received, those in flight included.
    pub awaited: usize,
    /// Blocks that some peer owes.
    pub in_flight: usize,
    /// Blocks handed out that the consumer has neither accepted nor rejected.
    pub unconsumed: usize,
    /// Wanted blocks that no connected peer has.
    pub unavailable: usize,
    /// What limits the download.
    pub limited_by: Limit,
}

impl Download {
    /// Returns the progress. Looks at every wanted block, so call it once a second, not once a block.
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

    /// What limits the download.
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

    /// The unrequested blocks that no connected peer has.
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
