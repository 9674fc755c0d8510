//! Selects the best chain without given blocks, and deals with peers whose chains have invalid ones.
//!
//! Headers alone say nothing about blocks: a miner can announce headers whose blocks are invalid or withheld.
//! A caller that detects this names the blocks and gets the best chain without them.
//!
//! A header commits to its block. So a peer whose chain has an invalid block considers it valid, or has not
//! checked; either way it is useless. Core disconnects peers that send such a block, or headers that build on
//! one (`net_processing.cpp`, `MaybePunishNodeForBlock`). Core spares peers that relay compact blocks before
//! validating them, which this program never requests, and peers named by the user, which are dialled again
//! here at growing intervals. This program requests nothing from inbound peers, so it never blames them. The
//! headers stay known: the caller decides what to make of the work built on such a block.

use super::peer::PeerVerdict;
use super::state::{NetworkState, RefusedHeaders};
use super::{NetworkShared, PeerNetwork};
use crate::PeerId;
use crate::headers::{HeaderSync, TooNew};
use apus_chain::{BlockHash, ConnectedHeader, HeaderChain, HeaderId, Height};
use std::collections::HashSet;
use std::time::Duration;

/// The tip of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BestHeader {
    /// Its height.
    pub height: Height,
    /// Its hash.
    pub hash: BlockHash,
    /// The work of the chain up to and including it.
    pub chain_work: u128,
}

impl PeerNetwork {
    /// The tip of the most-work chain that has none of the blocks in `without`. If the overall most-work
    /// chain has one, the result is the chain of a connected peer that has sent all its headers, or `None` if
    /// no such chain is free of them.
    pub fn best_without(&self, without: &[BlockHash]) -> Option<BestHeader> {
        let state = self.shared.lock();
        let id = state.best_without(without)?;
        let tree = state.headers.tree();
        let ConnectedHeader { height, chain_work, .. } = tree.connected(id)?;
        Some(BestHeader { height, hash: *tree.hash(id), chain_work })
    }

    /// The chain that ends in a header, or `None` if the header is unknown.
    pub fn chain_to(&self, hash: &BlockHash) -> Option<HeaderChain> {
        let state = self.shared.lock();
        let tree = state.headers.tree();
        HeaderChain::up_to(tree, tree.find(hash)?)
    }

    /// How long a caller has been waiting without anything useful arriving. Meaningless while none waits.
    pub fn quiet_for(&self) -> Duration {
        let shared: &NetworkShared = &self.shared;
        let state = shared.lock();
        Duration::from_millis(shared.now().saturating_sub(state.useful_at))
    }
}

/// The blocks to exclude from a chain.
pub(super) struct ExcludedBlocks<'a> {
    headers: &'a HeaderSync,
    unwanted: HashSet<HeaderId>,
    /// Height of the lowest excluded block.
    lowest: Height,
    /// Height of the lowest excluded block on the most-work chain, if any.
    in_ours: Option<Height>,
}

impl ExcludedBlocks<'_> {
    fn height(&self, id: HeaderId) -> Height {
        self.headers.tree().connected(id).map_or(0, |header| header.height)
    }

    fn is_ours(&self, id: HeaderId) -> bool {
        self.headers.best_chain().get(self.height(id) as usize) == Some(&id)
    }

    /// Returns true if the chain that ends in a header has no excluded block.
    pub(super) fn is_free_of_them(&self, tip: HeaderId) -> bool {
        let lineage = self.headers.tree().lineage_of(tip);
        for id in lineage.take_while(|id| self.height(*id) >= self.lowest) {
            if self.unwanted.contains(&id) {
                return false;
            }
            // From here down, this is the most-work chain, and `in_ours` gives the answer.
            if self.is_ours(id) {
                return self.in_ours.is_none_or(|lowest| lowest > self.height(id));
            }
        }
        true
    }
}

impl NetworkState {
    /// Prepares to check chains for these blocks.
    pub(super) fn without<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a BlockHash>,
    ) -> ExcludedBlocks<'_> {
        let headers = &self.headers;
        let tree = headers.tree();
        let unwanted: HashSet<HeaderId> =
            blocks.into_iter().filter_map(|hash| tree.find(hash)).collect();
        let mut without = ExcludedBlocks { headers, unwanted, lowest: Height::MAX, in_ours: None };
        let heights = without.unwanted.iter().map(|id| without.height(*id));
        let lowest = heights.min().unwrap_or(Height::MAX);
        let in_ours = without.unwanted.iter().filter(|id| without.is_ours(**id));
        let in_ours = in_ours.map(|id| without.height(*id)).min();
        (without.lowest, without.in_ours) = (lowest, in_ours);
        without
    }

    fn best_without(&self, without: &[BlockHash]) -> Option<HeaderId> {
        let (tree, without) = (self.headers.tree(), self.without(without));
        if without.is_free_of_them(self.headers.best()) {
            return Some(self.headers.best());
        }
        let caught_up = self.peers.keys().filter(|id| self.headers.is_caught_up(**id));
        // Many peers have the same chain.
        let theirs: HashSet<HeaderId> =
            caught_up.filter_map(|id| self.headers.peer_best(*id)).collect();
        // Among equal ones prefer the first to arrive, as the tree does.
        theirs.into_iter().filter(|id| without.is_free_of_them(*id)).max_by_key(|id| {
            let work = tree.connected(*id).map_or(0, |header| header.chain_work);
            (work, std::cmp::Reverse(*id))
        })
    }
}

impl PeerNetwork {
    /// Reports an invalid block to whose contents its header commits. Peers with this block in their chain
    /// are disconnected as for a damaged block, now and whenever they announce such a chain later.
    pub fn invalid(&self, hash: &BlockHash) {
        let mut state = self.shared.lock();
        if !state.invalid.put(*hash) {
            return;
        }
        let ids: Vec<PeerId> = state.peers.keys().copied().collect();
        ids.into_iter().for_each(|id| state.disconnect_if_invalid(id));
    }
}

impl NetworkState {
    /// Disconnects a peer if its chain has an invalid block.
    pub(super) fn disconnect_if_invalid(&mut self, id: PeerId) {
        if self.invalid.0.is_empty() {
            return;
        }
        let Some(best) = self.headers.peer_best(id) else { return };
        if self.without(&self.invalid.0).is_free_of_them(best) {
            return;
        }
        let found = self.invalid.0.iter().find(|hash| !self.without([*hash]).is_free_of_them(best));
        let hash = found.copied().unwrap_or_default();
        let why = format!("its chain contains the invalid block {hash}");
        // Do this now: its connection may end after the addresses are saved.
        if let Some(address) = self.peers.get(&id).and_then(|peer| peer.address.clone()) {
            self.book.misbehaved(&address, super::unix_time());
        }
        self.hang_up(id, &why, PeerVerdict::Misbehaved);
    }
}

/// Evidence that this machine's clock is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDoubt {
    /// This machine's time, in seconds since 1970.
    pub now: i64,
    /// The chain kept out by the clock.
    pub chain: TooNew,
    /// Half the peers' clocks are at least this many seconds ahead of ours; negative if they are behind.
    pub behind: i64,
}

impl PeerNetwork {
    /// A chain with more work than ours that only the clock keeps out, if a peer has one.
    pub fn clock_doubt(&self) -> Option<ClockDoubt> {
        let now_ms = self.shared.now();
        let state = self.shared.lock();
        let chain = state.headers.too_new(now_ms)?;
        Some(ClockDoubt { now: super::unix_time(), chain, behind: state.clock_behind() })
    }

    /// Headers rejected so far.
    pub fn refused_headers(&self) -> RefusedHeaders {
        self.shared.lock().refused.clone()
    }

    /// How many connected peers claimed a greater height when they connected, and the greatest height
    /// claimed.
    pub fn claims_above(&self, height: Height) -> Option<(usize, Height)> {
        let state = self.shared.lock();
        let handles = state.peers.values().filter_map(|peer| peer.handle.as_ref());
        let claims = handles.filter_map(|it| Height::try_from(it.info.version.start_height).ok());
        let above: Vec<Height> = claims.filter(|claim| *claim > height).collect();
        Some((above.len(), above.into_iter().max()?))
    }
}

impl NetworkState {
    /// The lower median of the dialled peers' clocks, in seconds ahead of ours. With two peers it is the
    /// smaller value, because one peer alone does not prove our clock wrong.
    fn clock_behind(&self) -> i64 {
        let there = self.peers.values().filter(|peer| peer.handle.is_some() && !peer.is_inbound());
        let mut ahead: Vec<i64> = there.map(|peer| peer.clock_ahead).collect();
        ahead.sort_unstable();
        ahead.get(ahead.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    }
}
