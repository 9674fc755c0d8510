//! [`TooNew`]: a better chain of the peers' that is refused for the times of its headers alone.
//!
//! Either the chain is at fault or this machine's clock is. What there is to tell the two apart by is handed out with it; the
//! verdict is the caller's.

use super::{HeaderSync, work_of};
use apus_chain::{Header, HeaderTree, Height, KnownBlock, is_too_new};

/// Headers of a peer that the clock alone keeps out.
#[derive(Debug, Clone, Copy)]
pub(super) struct EarlyChain {
    first: KnownBlock,
    /// The first one's time.
    time: u32,
    /// Height of the last.
    height: Height,
    chain_work: u128,
}

impl EarlyChain {
    /// Of `headers`, which begin with the one that was refused.
    pub(super) fn of(
        tree: &mut HeaderTree,
        first: &[u8; Header::SIZE],
        headers: impl Iterator<Item = [u8; Header::SIZE]>,
    ) -> Option<Self> {
        let header = Header::parse(first);
        let parent = tree.find(&header.prev).and_then(|parent| tree.connected(parent))?;
        let (_, last) = tree.without_clock(headers)?;
        let first = KnownBlock { height: parent.height + 1, hash: header.hash() };
        let (height, chain_work) = (last.height, last.chain_work);
        Some(Self { first, time: header.time, height, chain_work })
    }
}

/// The best of such chains, and who has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooNew {
    /// The first block of the future.
    pub first: KnownBlock,
    /// Its time.
    pub time: u32,
    /// Height of the last that is known.
    pub height: Height,
    /// How many peers have such a chain.
    pub peers: usize,
    /// How many peers told all that they have, and have none.
    pub others: usize,
}

impl HeaderSync {
    /// The best chain with more work than ours that the clock alone keeps out, if a connected peer has one.
    pub fn too_new(&self, now_ms: u64) -> Option<TooNew> {
        let (now, work) = (self.now(now_ms), work_of(&self.tree, self.tree.tip()));
        let is_better = |early: &EarlyChain| early.chain_work > work && is_too_new(early.time, now);
        let early =
            self.peers.values().filter_map(|peer| peer.early.as_deref().copied().filter(is_better));
        let best = early.clone().max_by_key(|early| early.chain_work)?;
        let peers = early.count();
        let told_all = self.peers.values().filter(|peer| peer.caught_up);
        let others = told_all
            .filter(|peer| peer.early.as_deref().copied().filter(is_better).is_none())
            .count();
        let EarlyChain { first, time, height, .. } = best;
        Some(TooNew { first, time, height, peers, others })
    }
}
