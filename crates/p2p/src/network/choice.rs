//! Which chain to go for where the one with the most work will not do, and what peers' chains hold.
//!
//! Headers alone say nothing about blocks: a miner can announce some whose blocks are invalid, or
//! are given to no peer. A caller that finds that out names the blocks, and learns the best
//! chain without them.
//!
//! A header commits to its block, so a peer whose chain has an invalid block takes it for valid, or has
//! not looked: nothing that it has is of use. Core parts with peers that send such a block, or
//! headers that build on one (`net_processing.cpp`, `MaybePunishNodeForBlock`). It spares peers
//! that hand on compact blocks before they looked at them, which no peer is asked for here; and
//! those that its user named, which are dialled again here, after ever longer pauses. Peers that
//! connected to us are asked for nothing, so nothing is held against them. Their headers stay known: how
//! much builds on such a block is for the caller to weigh.

use super::peer::PeerVerdict;
use super::state::{NetworkState, RefusedHeaders};
use super::{NetworkShared, PeerNetwork};
use crate::PeerId;
use crate::headers::{HeaderSync, TooNew};
use apus_chain::{BlockHash, ConnectedHeader, HeaderChain, HeaderId, Height};
use std::collections::HashSet;
use std::time::Duration;

/// The last header of a chain.
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
    /// The end of the most-work chain that holds none of the blocks of `without`. Where the one with
    /// the most work of all headers holds one, it is a chain that some connected peer has told to be
    /// its own, up to its end; none where no peer has.
    pub fn best_without(&self, without: &[BlockHash]) -> Option<BestHeader> {
        let state = self.shared.lock();
        let id = state.best_without(without)?;
        let tree = state.headers.tree();
        let ConnectedHeader { height, chain_work, .. } = tree.connected(id)?;
        Some(BestHeader { height, hash: *tree.hash(id), chain_work })
    }

    /// The chain that ends in a header; none where that is not known.
    pub fn chain_to(&self, hash: &BlockHash) -> Option<HeaderChain> {
        let state = self.shared.lock();
        let tree = state.headers.tree();
        HeaderChain::up_to(tree, tree.find(hash)?)
    }

    /// How long a caller has been waiting since anything useful came. Of no meaning while none
    /// waits.
    pub fn quiet_for(&self) -> Duration {
        let shared: &NetworkShared = &self.shared;
        let state = shared.lock();
        Duration::from_millis(shared.now().saturating_sub(state.useful_at))
    }
}

/// Blocks that a chain is not to have.
pub(super) struct Without<'a> {
    headers: &'a HeaderSync,
    unwanted: HashSet<HeaderId>,
    /// The height of the lowest.
    lowest: Height,
    /// The same of those on the most-work chain, if any are.
    in_ours: Option<Height>,
}

impl Without<'_> {
    fn height(&self, id: HeaderId) -> Height {
        self.headers.tree().connected(id).map_or(0, |header| header.height)
    }

    fn is_ours(&self, id: HeaderId) -> bool {
        self.headers.best_chain().get(self.height(id) as usize) == Some(&id)
    }

    /// Whether the chain that ends in a header holds none of them.
    pub(super) fn will_do(&self, tip: HeaderId) -> bool {
        let lineage = self.headers.tree().lineage_of(tip);
        for id in lineage.take_while(|id| self.height(*id) >= self.lowest) {
            if self.unwanted.contains(&id) {
                return false;
            }
            // From here on down it is the most-work chain, of which that is known.
            if self.is_ours(id) {
                return self.in_ours.is_none_or(|lowest| lowest > self.height(id));
            }
        }
        true
    }
}

impl NetworkState {
    /// To ask of chains whether they hold any of these blocks.
    pub(super) fn without<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a BlockHash>,
    ) -> Without<'_> {
        let headers = &self.headers;
        let tree = headers.tree();
        let unwanted: HashSet<HeaderId> =
            blocks.into_iter().filter_map(|hash| tree.find(hash)).collect();
        let mut without = Without { headers, unwanted, lowest: Height::MAX, in_ours: None };
        let heights = without.unwanted.iter().map(|id| without.height(*id));
        let lowest = heights.min().unwrap_or(Height::MAX);
        let in_ours = without.unwanted.iter().filter(|id| without.is_ours(**id));
        let in_ours = in_ours.map(|id| without.height(*id)).min();
        (without.lowest, without.in_ours) = (lowest, in_ours);
        without
    }

    fn best_without(&self, without: &[BlockHash]) -> Option<HeaderId> {
        let (tree, without) = (self.headers.tree(), self.without(without));
        if without.will_do(self.headers.best()) {
            return Some(self.headers.best());
        }
        let told = self.peers.keys().filter(|id| self.headers.has_told_all(**id));
        // Many peers have the same chain.
        let theirs: HashSet<HeaderId> = told.filter_map(|id| self.headers.peer_best(*id)).collect();
        // Of equal ones the one that came first, as in the tree.
        theirs.into_iter().filter(|id| without.will_do(*id)).max_by_key(|id| {
            let work = tree.connected(*id).map_or(0, |header| header.chain_work);
            (work, std::cmp::Reverse(*id))
        })
    }
}

impl PeerNetwork {
    /// A block breaks a rule, and its header commits to it: peers whose chain has it are parted
    /// with like those that send damaged blocks, and so are peers that announce such a chain later.
    pub fn invalid(&self, hash: &BlockHash) {
        let mut state = self.shared.lock();
        if !state.invalid.put(*hash) {
            return;
        }
        let ids: Vec<PeerId> = state.peers.keys().copied().collect();
        ids.into_iter().for_each(|id| state.part_if_invalid(id));
    }
}

impl NetworkState {
    /// Parts with a peer whose chain has an invalid block.
    pub(super) fn part_if_invalid(&mut self, id: PeerId) {
        if self.invalid.0.is_empty() {
            return;
        }
        let Some(best) = self.headers.peer_best(id) else { return };
        if self.without(&self.invalid.0).will_do(best) {
            return;
        }
        let found = self.invalid.0.iter().find(|hash| !self.without([*hash]).will_do(best));
        let hash = found.copied().unwrap_or_default();
        let why = format!("its chain has block {hash}, which is invalid");
        // Its connection may end after the addresses are written down.
        if let Some(address) = self.peers.get(&id).and_then(|peer| peer.address.clone()) {
            self.book.misbehaved(&address, super::unix_time());
        }
        self.hang_up(id, &why, PeerVerdict::Misbehaved);
    }
}

/// How this machine's clock fits what peers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDoubt {
    /// The clock, in seconds since 1970.
    pub now: i64,
    /// The chain that it keeps out.
    pub chain: TooNew,
    /// Seconds that the clocks of half the peers are ahead of it, at least; fewer than zero where they are behind.
    pub behind: i64,
}

impl PeerNetwork {
    /// A chain of more work than ours that the clock alone keeps out, if a peer has one.
    pub fn clock_doubt(&self) -> Option<ClockDoubt> {
        let now_ms = self.shared.now();
        let state = self.shared.lock();
        let chain = state.headers.too_new(now_ms)?;
        Some(ClockDoubt { now: super::unix_time(), chain, behind: state.clock_behind() })
    }

    /// Headers of peers that were refused so far.
    pub fn refused_headers(&self) -> RefusedHeaders {
        self.shared.lock().refused.clone()
    }

    /// How many peers that are there said to be above this height when they came, and the greatest that one said.
    pub fn claims_above(&self, height: Height) -> Option<(usize, Height)> {
        let state = self.shared.lock();
        let handles = state.peers.values().filter_map(|peer| peer.handle.as_ref());
        let claims = handles.filter_map(|it| Height::try_from(it.info.version.start_height).ok());
        let above: Vec<Height> = claims.filter(|claim| *claim > height).collect();
        Some((above.len(), above.into_iter().max()?))
    }
}

impl NetworkState {
    /// What of the peers that were dialled one half's clocks are ahead at least. With two it is the smaller one: one peer
    /// alone makes no other's clock wrong.
    fn clock_behind(&self) -> i64 {
        let there = self.peers.values().filter(|peer| peer.handle.is_some() && !peer.is_inbound());
        let mut ahead: Vec<i64> = there.map(|peer| peer.clock_ahead).collect();
        ahead.sort_unstable();
        ahead.get(ahead.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    }
}
