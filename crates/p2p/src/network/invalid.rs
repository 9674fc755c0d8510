//! Blocks that proved invalid, and peers whose chain has one.
//!
//! A header commits to its block, so a peer whose chain has such a block takes it for valid, or has
//! not looked: nothing that it has is of use. Core parts with peers that send such a block, or
//! headers that build on one (`net_processing.cpp`, `MaybePunishNodeForBlock`). It spares peers
//! that hand on compact blocks before they looked at them, which no peer is asked for here; and
//! those that its user named, which are dialled again here, after ever longer pauses. Peers that
//! connected to us are asked for nothing, so nothing is held against them.
//!
//! Their headers stay known: how much builds on such a block is for the caller to weigh.

use super::Network;
use super::presence::Verdict;
use super::state::State;
use crate::PeerId;
use apus_chain::BlockHash;
use std::collections::VecDeque;

/// So many are remembered, the last ones: each took the work of a block.
const REMEMBERED_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct InvalidBlocks(VecDeque<BlockHash>);

impl InvalidBlocks {
    /// Whether it is new.
    fn put(&mut self, hash: BlockHash) -> bool {
        if self.0.contains(&hash) {
            return false;
        }
        if self.0.len() >= REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(hash);
        true
    }
}

impl Network {
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

impl State {
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
        self.hang_up(id, &why, Verdict::Misbehaved);
    }
}
