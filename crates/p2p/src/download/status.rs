//! [`DownloadStatus`]: how the download goes, for people.

use super::{Download, DownloadTotals};
use crate::PeerId;
use apus_chain::Height;

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
    /// Bytes of blocks per second while it owes some, if it ever sent any.
    pub rate_busy: Option<u64>,
    /// Round trip in milliseconds, as far as deliveries tell.
    pub round_trip_ms: u64,
    /// Blocks that it delivered, copies among them.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its part of the bytes that all peers now connected delivered, 0 to 1.
    pub share: f64,
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
    /// Their expected bytes.
    pub in_flight_bytes: u64,
    /// Blocks that the consumer has not judged.
    pub unconsumed: usize,
    /// Their bytes.
    pub unconsumed_bytes: u64,
    /// Blocks wanted that no connected peer has.
    pub unavailable: usize,
    /// The lowest height of these.
    pub unavailable_first: Option<Height>,
    /// After how much silence a peer loses its blocks, in milliseconds.
    pub stall_ms: u64,
    /// What the download waits for.
    pub limited_by: Limit,
}

impl Download {
    /// How the download goes. Looks at every wanted block: for a line each second, not each block.
    #[must_use]
    pub fn status(&self, now: u64) -> DownloadStatus {
        let now = now.max(self.now);
        let unavailable: Vec<Height> = self.unavailable().collect();
        let all_bytes: u64 = self.peers.values().map(|peer| peer.bytes).sum();
        let rate: f64 = self.peers.values().map(|peer| peer.recent_rate(now)).sum();
        let peers = self.peers.iter().map(|(id, peer)| PeerProgress {
            peer: *id,
            rate: per_second(peer.recent_rate(now)),
            rate_busy: peer.rate(now).map(per_second),
            round_trip_ms: peer.round_trip_ms(),
            blocks: peer.blocks,
            bytes: peer.bytes,
            share: peer.bytes as f64 / all_bytes.max(1) as f64,
            in_flight: peer.owed_count(),
            stalled: peer.stalled,
        });
        DownloadStatus {
            peers: peers.collect(),
            rate: per_second(rate),
            totals: self.totals,
            awaited: self.window.len() - self.window.handed_out(),
            in_flight: self.window.in_flight(),
            in_flight_bytes: self.window.in_flight_bytes(),
            unconsumed: self.window.handed_out(),
            unconsumed_bytes: self.window.handed_out_bytes(),
            unavailable: unavailable.len(),
            unavailable_first: unavailable.iter().min().copied(),
            stall_ms: self.judge.stall_ms(),
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

    /// Heights of the blocks that are to be asked for and that no peer may be asked for.
    fn unavailable(&self) -> impl Iterator<Item = Height> + '_ {
        let has = |key| {
            let on_chain = self.window.is_on_chain(key);
            self.peers.values().any(|peer| !peer.stalled && peer.has(key, on_chain))
        };
        self.window.all_free().filter(move |key| !has(*key)).map(|key| key.0)
    }
}

fn per_second(rate: f64) -> u64 {
    (rate * 1_000.0) as u64
}
