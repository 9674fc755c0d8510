//! [`WantRange`] and [`WantBlock`]: blocks asked for by height, or by hash, on the chain or beside it.
//!
//! Which peer has a block beside the chain is not known. So peers are asked one after the other until
//! it comes: a peer that says it has it not is passed over for [`AGAIN_MS`], and so is one that says
//! nothing, as nodes do of blocks they never heard of. That it says nothing is seen by a ping sent
//! right behind the request, which nodes answer after it. The wish stands from
//! [`PeerNetwork::want_block`] until its holder drops it, however often it looks.

use super::mailbox::{Mail, Mailbox, Wish};
use super::peer::Outgoing;
use super::state::NetworkState;
use super::{NetworkError, NetworkShared, PeerNetwork};
use crate::PeerId;
use crate::download::Received;
use crate::message::Message;
use crate::transport::BlockBuffer;
use apus_chain::{BlockHash, Height, HeightRange};
use std::sync::Arc;
use std::time::Duration;

/// Blocks of a range, in the order in which they come. What is not taken when this is dropped is
/// not asked for any more.
pub struct WantRange<'a> {
    shared: &'a NetworkShared,
    range: HeightRange,
    mailbox: Arc<Mailbox>,
    /// Blocks that were not accepted yet.
    pub(super) left: u32,
    /// The block that was given last, until it is judged.
    given: Option<BlockHash>,
}

/// What [`WantRange::next`] came to.
#[derive(Debug)]
pub enum NextBlock {
    /// A block: say [`WantRange::accepted`], [`WantRange::damaged`] or [`WantRange::returned`].
    Block(Height, BlockBuffer),
    /// All were accepted.
    Done,
    /// Nothing came in time.
    Nothing,
    /// Nothing will come.
    Failed(NetworkError),
}

impl WantRange<'_> {
    /// The next block, for which it waits so long at most.
    pub fn next(&mut self, patience: Duration) -> NextBlock {
        if self.left == 0 {
            return NextBlock::Done;
        }
        match self.mailbox.take(patience) {
            Mail::Block(height, hash, raw) => {
                self.given = Some(hash);
                NextBlock::Block(height, raw)
            }
            Mail::Nothing => NextBlock::Nothing,
            Mail::Closed => self.shared.why_closed(),
        }
    }

    /// The block that was given last was taken.
    pub fn accepted(&mut self) {
        let Some(hash) = self.given.take() else { return };
        self.left -= 1;
        let now = self.shared.now();
        self.shared.lock().accepted(&hash, now);
    }

    /// The caller did not look at the block given last: that says nothing about it, or its sender.
    pub fn returned(&mut self) {
        let Some(hash) = self.given.take() else { return };
        let now = self.shared.now();
        self.shared.lock().returned(&hash, now);
    }

    /// The copy of the block that was given last is damaged: another one is wanted. The address of
    /// the peer that sent it, if it is still there.
    pub fn damaged(&mut self) -> Option<String> {
        let hash = self.given.take()?;
        let now = self.shared.now();
        self.shared.lock().damaged(&hash, now)
    }
}

impl Drop for WantRange<'_> {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.unwant(self.range, now);
        if let Some(hash) = self.given.take() {
            state.returned(&hash, now);
        }
    }
}

impl NetworkState {
    /// A caller wants the blocks of a range: they come into the mailbox.
    pub(super) fn want(&mut self, range: HeightRange, now: u64) -> Arc<Mailbox> {
        self.begin_to_wait(now);
        let mailbox = self.mailboxes.open(range);
        if self.failure.is_some() || self.ended {
            mailbox.close();
        }
        if let Some(chain) = &self.chain {
            self.download.want(range, &|height| chain.hash(height).copied());
        }
        self.act(now);
        mailbox
    }

    pub(super) fn unwant(&mut self, range: HeightRange, now: u64) {
        self.download.unwant(range);
        for hash in self.mailboxes.remove(range) {
            self.download.consumed(&hash);
        }
        self.renew_wishes();
        self.act(now);
    }

    pub(super) fn block(&mut self, id: PeerId, hash: BlockHash, raw: BlockBuffer, now: u64) {
        match self.download.block(id, &hash, raw.len() as u64, now) {
            // Whether it was useful is known when it is judged.
            Received::Wanted(height) => self.hand_out(height, hash, raw),
            Received::Duplicate(_) | Received::NoRoom(_) | Received::Unrequested => {}
        }
    }

    /// Hands a block to the caller that asked for it by its hash, to the one that asked for its
    /// height, or to both.
    fn hand_out(&mut self, height: Height, hash: BlockHash, raw: BlockBuffer) {
        let of_chain = self.mailboxes.of(height).filter(|_| self.download.is_on_chain(&hash));
        let of_chain = of_chain.map(|mailbox| &**mailbox);
        match (self.wishes.mailbox(&hash, of_chain.is_some()), of_chain) {
            (Some(wish), Some(of_chain)) => {
                wish.put(height, hash, raw.clone());
                of_chain.put(height, hash, raw);
            }
            (Some(mailbox), None) | (None, Some(mailbox)) => mailbox.put(height, hash, raw),
            (None, None) => {
                self.download.consumed(&hash);
            }
        }
    }

    /// A block was good.
    pub(super) fn accepted(&mut self, hash: &BlockHash, now: u64) {
        self.useful_at = now;
        self.download.consumed(hash);
        self.act(now);
    }

    /// A block was given back by a caller that did not look at it.
    pub(super) fn returned(&mut self, hash: &BlockHash, now: u64) {
        self.download.consumed(hash);
        self.act(now);
    }

    /// A copy was damaged. Where it came from; its sender may be gone already.
    pub(super) fn damaged(&mut self, hash: &BlockHash, now: u64) -> Option<String> {
        let sender = self.download.damaged(hash)?;
        let there = self.peers.get(&sender).and_then(|peer| peer.handle.as_ref());
        let address = match there {
            Some(handle) => Some(handle.info.address.to_string()),
            None => {
                let gone = self.lost.iter().find(|(id, _)| *id == sender);
                gone.inspect(|(_, address)| self.book.misbehaved(address, super::unix_time()))
                    .map(|(_, address)| address.to_string())
            }
        };
        self.act(now);
        address
    }
}

/// Peers that had it not are asked again after so long, in milliseconds: it may have reached them.
pub(super) const AGAIN_MS: u64 = 20_000;

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
    /// Asks for all blocks of `range`, which no other caller asks for at this time.
    pub fn want(&self, range: HeightRange) -> WantRange<'_> {
        let mut state = self.shared.lock();
        let mailbox = state.want(range, self.shared.now());
        drop(state);
        self.shared.wake.notify_all();
        WantRange { shared: &self.shared, range, mailbox, left: range.count(), given: None }
    }

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
