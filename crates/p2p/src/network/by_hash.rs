//! [`WantBlock`]: a block asked for by its hash, on the chain or beside it.
//!
//! Which peer has such a block is not known. So peers are asked one after the other until it comes:
//! a peer that says it has it not is passed over for [`AGAIN_MS`], and so is one that says nothing,
//! as nodes do of blocks they never heard of. That it says nothing is seen by a ping sent right
//! behind the request, which nodes answer after it. The wish stands from [`PeerNetwork::want_block`]
//! until its holder drops it, however often it looks.

use super::blocks::{Mail, Mailbox};
use super::peer::Outgoing;
use super::state::NetworkState;
use super::{NetworkShared, NextBlock, PeerNetwork};
use crate::PeerId;
use crate::message::Message;
use apus_chain::{BlockHash, Height, HeightRange};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Peers that had it not are asked again after so long, in milliseconds: it may have reached them.
pub(super) const AGAIN_MS: u64 = 20_000;

/// Pings behind requests that a peer may leave unanswered; of those before them nothing is learned.
const FENCES_MAX: usize = 64;

/// All blocks that are asked for by hash.
#[derive(Debug, Default)]
pub(super) struct Wishes(BTreeMap<BlockHash, Wish>);

#[derive(Debug)]
struct Wish {
    height: Height,
    mailbox: Arc<Mailbox>,
    holders: usize,
    /// Whether the copy that was handed out last went to the caller that wants its height, too.
    with_range: bool,
    /// When those that had it not are asked again.
    again_at: u64,
}

impl Wishes {
    /// Where a block is to go; `with_range` if a caller that wants its height gets one, too.
    pub(super) fn mailbox(&mut self, hash: &BlockHash, with_range: bool) -> Option<&Mailbox> {
        let wish = self.0.get_mut(hash)?;
        wish.with_range = with_range;
        Some(&*wish.mailbox)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn close_all(&self) {
        self.0.values().for_each(|wish| wish.mailbox.close());
    }
}

/// Requests of one peer that a ping was sent behind, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Fences(VecDeque<(u64, Vec<BlockHash>)>);

impl Fences {
    /// An earlier answer says nothing about a later request for the same block.
    fn put(&mut self, nonce: u64, hashes: Vec<BlockHash>) {
        for (_, earlier) in &mut self.0 {
            earlier.retain(|hash| !hashes.contains(hash));
        }
        self.0.push_back((nonce, hashes));
        if self.0.len() > FENCES_MAX {
            self.0.pop_front();
        }
    }

    /// What was asked for before the ping with this nonce.
    fn passed(&mut self, nonce: u64) -> Vec<BlockHash> {
        let place = self.0.iter().position(|(of, _)| *of == nonce);
        let passed = place.map(|at| self.0.drain(..=at).flat_map(|(_, hashes)| hashes));
        passed.into_iter().flatten().collect()
    }
}

impl NetworkState {
    /// Asks for a block whose header is known; none where it is not.
    fn wish(&mut self, hash: BlockHash, now: u64) -> Option<Arc<Mailbox>> {
        let tree = self.headers.tree();
        let header = tree.connected(tree.find(&hash)?)?;
        self.begin_to_wait(now);
        let wish = self.wishes.0.entry(hash).or_insert_with(|| Wish {
            height: header.height,
            mailbox: Arc::default(),
            holders: 0,
            with_range: false,
            again_at: now + AGAIN_MS,
        });
        wish.holders += 1;
        let mailbox = Arc::clone(&wish.mailbox);
        if self.failure.is_some() || self.ended {
            mailbox.close();
        }
        self.download.want_hash(header.height, hash);
        self.ask_all_for(hash);
        self.act(now);
        Some(mailbox)
    }

    /// A holder has gone, perhaps without judging its copy: that says nothing about the copy.
    fn unwish(&mut self, hash: &BlockHash, has_copy: bool, now: u64) {
        let Some(wish) = self.wishes.0.get_mut(hash) else { return };
        wish.holders -= 1;
        let is_last = wish.holders == 0;
        if has_copy || is_last {
            self.let_go(hash);
        }
        if is_last {
            self.wishes.0.remove(hash);
        }
        self.renew_wishes();
        self.act(now);
    }

    /// A holder found its copy good.
    fn wish_fulfilled(&mut self, hash: &BlockHash, now: u64) {
        self.useful_at = now;
        self.let_go(hash);
        self.act(now);
    }

    /// A holder is done with a block. The caller that wants it by its height has a copy of the same
    /// to judge, or is still to get one.
    fn let_go(&mut self, hash: &BlockHash) {
        let Some(wish) = self.wishes.0.get_mut(hash) else { return };
        let (height, with_range) = (wish.height, std::mem::take(&mut wish.with_range));
        let on_chain = self.download.is_on_chain(hash);
        if on_chain && with_range {
            return;
        }
        if !on_chain {
            self.download.unwant_hash(hash);
        }
        if self.download.consumed(hash)
            && on_chain
            && let Some(chain) = &self.chain
        {
            let range = HeightRange::new(height, height + 1);
            self.download.want(range, &|height| chain.hash(height).copied());
        }
    }

    /// Wants again what other callers wanted too, and have given up.
    pub(super) fn renew_wishes(&mut self) {
        for (hash, wish) in &self.wishes.0 {
            self.download.want_hash(wish.height, *hash);
        }
    }

    fn ask_all_for(&mut self, hash: BlockHash) {
        for id in self.peers.keys() {
            self.download.peer_has_hash(*id, hash);
        }
    }

    /// A new peer may have what others have not.
    pub(super) fn ask_for_wishes(&mut self, id: PeerId) {
        for hash in self.wishes.0.keys() {
            self.download.peer_has_hash(id, *hash);
        }
    }

    /// Time went by.
    pub(super) fn wish_again(&mut self, now: u64) {
        let due: Vec<BlockHash> = self
            .wishes
            .0
            .iter_mut()
            .filter(|(_, wish)| now >= wish.again_at)
            .map(|(hash, wish)| {
                wish.again_at = now + AGAIN_MS;
                *hash
            })
            .collect();
        due.into_iter().for_each(|hash| self.ask_all_for(hash));
    }

    /// Sends a ping behind a request for blocks that the peer may never have heard of.
    pub(super) fn fence(&mut self, id: PeerId, blocks: &[(Height, BlockHash)]) {
        let hashes = blocks.iter().map(|(_, hash)| *hash);
        let unsure: Vec<BlockHash> =
            hashes.filter(|hash| self.wishes.0.contains_key(hash)).collect();
        if unsure.is_empty() {
            return;
        }
        let nonce = self.next_nonce();
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.fences.put(nonce, unsure);
            self.send(id, Outgoing::Message(Message::Ping(nonce)));
        }
    }

    /// The peer answered a ping: what it was asked for before that and did not send it has not.
    pub(super) fn fence_passed(&mut self, id: PeerId, nonce: u64, now: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for hash in peer.fences.passed(nonce) {
            self.download.not_found(id, &hash, now);
        }
    }
}

/// A block that is asked for by its hash until this is dropped.
pub struct WantBlock<'a> {
    shared: &'a NetworkShared,
    hash: BlockHash,
    mailbox: Arc<Mailbox>,
    /// Whether a copy was given that is not judged yet.
    given: bool,
    done: bool,
}

impl PeerNetwork {
    /// Asks for a block that need not be on the chain, from any peer that has it. None where its
    /// header is not known.
    pub fn want_block(&self, hash: BlockHash) -> Option<WantBlock<'_>> {
        let now = self.shared.now();
        let mailbox = self.shared.lock().wish(hash, now)?;
        self.shared.wake.notify_all();
        Some(WantBlock { shared: &self.shared, hash, mailbox, given: false, done: false })
    }
}

impl WantBlock<'_> {
    /// The block, for which it waits so long at most.
    pub fn next(&mut self, patience: Duration) -> NextBlock {
        if self.done {
            return NextBlock::Done;
        }
        match self.mailbox.take(patience) {
            Mail::Block(height, _, raw) => {
                self.given = true;
                NextBlock::Block(height, raw)
            }
            Mail::Nothing => NextBlock::Nothing,
            Mail::Closed => self.shared.why_closed(),
        }
    }

    /// The block that was given last was taken.
    pub fn accepted(&mut self) {
        if std::mem::take(&mut self.given) {
            self.done = true;
            let now = self.shared.now();
            self.shared.lock().wish_fulfilled(&self.hash, now);
        }
    }

    /// The copy of the block that was given last is damaged: another one is wanted.
    pub fn damaged(&mut self) {
        if std::mem::take(&mut self.given) {
            let now = self.shared.now();
            self.shared.lock().damaged(&self.hash, now);
        }
    }
}

impl Drop for WantBlock<'_> {
    fn drop(&mut self) {
        let now = self.shared.now();
        self.shared.lock().unwish(&self.hash, self.given, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_closes_the_requests_before_it() {
        let [a, b, c] = [1, 2, 3].map(|byte| BlockHash([byte; 32]));
        let mut fences = Fences::default();
        fences.put(1, vec![a, b]);
        fences.put(2, vec![c]);
        fences.put(5, vec![a]);
        assert_eq!(fences.passed(3), []);
        assert_eq!(fences.passed(2), [b, c], "the other one was asked for again");
        assert_eq!(fences.passed(1), []);
        assert_eq!(fences.passed(5), [a]);
        for nonce in 0..1000 {
            fences.put(nonce, vec![a]);
        }
        assert_eq!(fences.0.len(), FENCES_MAX);
    }
}
