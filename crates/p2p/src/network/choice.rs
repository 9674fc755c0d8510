//! Which chain to go for where the one with the most work will not do.
//!
//! Headers alone say nothing about blocks: a miner can announce some whose blocks are invalid, or
//! are given to no peer. A caller that finds that out names the blocks, and is told of the best
//! chain without them. Nothing is remembered here.

use super::state::State;
use super::{Network, Shared};
use crate::headers::HeaderSync;
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

impl Network {
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
        let shared: &Shared = &self.shared;
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

impl State {
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
