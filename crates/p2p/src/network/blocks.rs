//! [`WantRange`] and [`WantBlock`]: requests for blocks by height, or by hash, on the chain or off it.
//!
//! It is unknown which peer has a block off the chain, so every peer is asked until one delivers it. A peer
//! that lacks the block is skipped for [`AGAIN_MS`]. A peer that does not answer is skipped too, because
//! nodes do not answer for unknown blocks; a ping right behind the request detects this, because nodes answer
//! it after the request. The request stays open from [`PeerNetwork::want_block`] until the caller drops it,
//! however often it polls.

use super::mailbox::{HashRequest, Mail, Mailbox};
use super::peer::WriterCommand;
use super::state::NetworkState;
use super::{NetworkError, NetworkShared, PeerNetwork};
use crate::PeerId;
use crate::download::BlockReceipt;
use crate::message::Message;
use crate::transport::BlockBuffer;
use apus_chain::{BlockHash, Height, HeightRange};
use std::sync::Arc;
use std::time::Duration;

/// The blocks of a range, in order of arrival. Dropping this cancels the blocks not yet taken.
pub struct WantRange<'a> {
    shared: &'a NetworkShared,
    range: HeightRange,
    mailbox: Arc<Mailbox>,
    /// How many blocks the caller has not accepted yet.
    pub(super) left: u32,
    /// The last block returned, until the caller reports its result.
    given: Option<BlockHash>,
}

/// The result of [`WantRange::next`].
#[derive(Debug)]
pub enum NextBlock {
    /// A block. Call [`WantRange::accepted`], [`WantRange::damaged`] or [`WantRange::returned`] next.
    Block(Height, BlockBuffer),
    /// All blocks were accepted.
    Done,
    /// Nothing arrived in time.
    Nothing,
    /// Nothing will arrive any more.
    Failed(NetworkError),
}

impl WantRange<'_> {
    /// Returns the next block; waits for at most `patience`.
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

    /// Reports the last block as valid and taken.
    pub fn accepted(&mut self) {
        let Some(hash) = self.given.take() else { return };
        self.left -= 1;
        let now = self.shared.now();
        self.shared.lock().accepted(&hash, now);
    }

    /// Gives back the last block unchecked. This says nothing about the block or its sender.
    pub fn returned(&mut self) {
        let Some(hash) = self.given.take() else { return };
        let now = self.shared.now();
        self.shared.lock().returned(&hash, now);
    }

    /// Reports the last block as a damaged copy, and requests another. Returns the address of the peer that
    /// sent it, if still known.
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
    /// Requests the blocks of a range; they arrive in the mailbox.
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
        self.renew_hash_requests();
        self.act(now);
    }

    pub(super) fn block(&mut self, id: PeerId, hash: BlockHash, raw: BlockBuffer, now: u64) {
        match self.download.block(id, &hash, raw.len() as u64, now) {
            // It counts as useful only once the caller accepts it.
            BlockReceipt::Wanted(height) => self.hand_out(height, hash, raw),
            BlockReceipt::Duplicate(_) | BlockReceipt::NoRoom(_) | BlockReceipt::Unrequested => {}
        }
    }

    /// Passes a block to the caller that requested its hash, to the one that requested its height, or to
    /// both.
    fn hand_out(&mut self, height: Height, hash: BlockHash, raw: BlockBuffer) {
        let of_chain = self.mailboxes.of(height).filter(|_| self.download.is_on_chain(&hash));
        let of_chain = of_chain.map(|mailbox| &**mailbox);
        match (self.hash_requests.mailbox(&hash, of_chain.is_some()), of_chain) {
            (Some(request), Some(of_chain)) => {
                request.put(height, hash, raw.clone());
                of_chain.put(height, hash, raw);
            }
            (Some(mailbox), None) | (None, Some(mailbox)) => mailbox.put(height, hash, raw),
            (None, None) => {
                self.download.consumed(&hash);
            }
        }
    }

    /// Records that a caller accepted a block.
    pub(super) fn accepted(&mut self, hash: &BlockHash, now: u64) {
        self.useful_at = now;
        self.download.consumed(hash);
        self.act(now);
    }

    /// Records that a caller gave back a block unchecked.
    pub(super) fn returned(&mut self, hash: &BlockHash, now: u64) {
        self.download.consumed(hash);
        self.act(now);
    }

    /// Records that a caller rejected a damaged copy. Returns the sender's address, even if the sender is gone.
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

/// Peers that lacked a block are asked again after this time, in milliseconds: they may have it by then.
pub(super) const AGAIN_MS: u64 = 20_000;

impl NetworkState {
    /// Requests a block by hash. Returns `None` if its header is unknown.
    fn request_hash(&mut self, hash: BlockHash, now: u64) -> Option<Arc<Mailbox>> {
        let tree = self.headers.tree();
        let header = tree.connected(tree.find(&hash)?)?;
        self.begin_to_wait(now);
        let request = self.hash_requests.0.entry(hash).or_insert_with(|| HashRequest {
            height: header.height,
            mailbox: Arc::default(),
            holders: 0,
            with_range: false,
            again_at: now + AGAIN_MS,
        });
        request.holders += 1;
        let mailbox = Arc::clone(&request.mailbox);
        if self.failure.is_some() || self.ended {
            mailbox.close();
        }
        self.download.want_hash(header.height, hash);
        self.ask_all_for(hash);
        self.act(now);
        Some(mailbox)
    }

    /// Removes a dropped holder. An unchecked copy that it had counts as neither good nor damaged.
    fn release_hash(&mut self, hash: &BlockHash, has_copy: bool, now: u64) {
        let Some(request) = self.hash_requests.0.get_mut(hash) else { return };
        request.holders -= 1;
        let is_last = request.holders == 0;
        if has_copy || is_last {
            self.let_go(hash);
        }
        if is_last {
            self.hash_requests.0.remove(hash);
        }
        self.renew_hash_requests();
        self.act(now);
    }

    /// Records that a holder accepted its copy.
    fn hash_request_done(&mut self, hash: &BlockHash, now: u64) {
        self.useful_at = now;
        self.let_go(hash);
        self.act(now);
    }

    /// Releases a block that a holder is done with. A caller that wants the same block by height either has its
    /// own copy to check, or will still get one.
    fn let_go(&mut self, hash: &BlockHash) {
        let Some(request) = self.hash_requests.0.get_mut(hash) else { return };
        let (height, with_range) = (request.height, std::mem::take(&mut request.with_range));
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

    /// Requests blocks again that a caller by height gave up, but a caller by hash still wants.
    pub(super) fn renew_hash_requests(&mut self) {
        for (hash, request) in &self.hash_requests.0 {
            self.download.want_hash(request.height, *hash);
        }
    }

    fn ask_all_for(&mut self, hash: BlockHash) {
        for id in self.peers.keys() {
            self.download.peer_has_hash(*id, hash);
        }
    }

    /// Asks a new peer for the blocks requested by hash: it may have what others lack.
    pub(super) fn ask_for_hash_requests(&mut self, id: PeerId) {
        for hash in self.hash_requests.0.keys() {
            self.download.peer_has_hash(id, *hash);
        }
    }

    /// Asks all peers again for the requests that are due.
    pub(super) fn retry_hash_requests(&mut self, now: u64) {
        let due: Vec<BlockHash> = self
            .hash_requests
            .0
            .iter_mut()
            .filter(|(_, request)| now >= request.again_at)
            .map(|(hash, request)| {
                request.again_at = now + AGAIN_MS;
                *hash
            })
            .collect();
        due.into_iter().for_each(|hash| self.ask_all_for(hash));
    }

    /// Sends a ping behind a request for blocks that the peer may not know.
    pub(super) fn fence(&mut self, id: PeerId, blocks: &[(Height, BlockHash)]) {
        let hashes = blocks.iter().map(|(_, hash)| *hash);
        let unsure: Vec<BlockHash> =
            hashes.filter(|hash| self.hash_requests.0.contains_key(hash)).collect();
        if unsure.is_empty() {
            return;
        }
        let nonce = self.next_nonce();
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.fences.put(nonce, unsure);
            self.send(id, WriterCommand::Message(Message::Ping(nonce)));
        }
    }

    /// Handles the answer to a ping: the peer lacks the blocks requested before it and not sent.
    pub(super) fn fence_passed(&mut self, id: PeerId, nonce: u64, now: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for hash in peer.fences.passed(nonce) {
            self.download.not_found(id, &hash, now);
        }
    }
}

/// A request for a block by hash, open until this is dropped.
pub struct WantBlock<'a> {
    shared: &'a NetworkShared,
    hash: BlockHash,
    mailbox: Arc<Mailbox>,
    /// True if a copy was returned and the caller has not reported its result.
    given: bool,
    done: bool,
}

impl PeerNetwork {
    /// Requests all blocks of `range`. Ranges of concurrent callers must not overlap.
    pub fn want(&self, range: HeightRange) -> WantRange<'_> {
        let mut state = self.shared.lock();
        let mailbox = state.want(range, self.shared.now());
        drop(state);
        self.shared.wake.notify_all();
        WantRange { shared: &self.shared, range, mailbox, left: range.count(), given: None }
    }

    /// Requests a block, on the chain or off it, from any peer that has it. Returns `None` if its header is
    /// unknown.
    pub fn want_block(&self, hash: BlockHash) -> Option<WantBlock<'_>> {
        let now = self.shared.now();
        let mailbox = self.shared.lock().request_hash(hash, now)?;
        self.shared.wake.notify_all();
        Some(WantBlock { shared: &self.shared, hash, mailbox, given: false, done: false })
    }
}

impl WantBlock<'_> {
    /// Returns the block; waits for at most `patience`.
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

    /// Reports the last copy as valid and taken.
    pub fn accepted(&mut self) {
        if std::mem::take(&mut self.given) {
            self.done = true;
            let now = self.shared.now();
            self.shared.lock().hash_request_done(&self.hash, now);
        }
    }

    /// Reports the last copy as damaged, and requests another.
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
        self.shared.lock().release_hash(&self.hash, self.given, now);
    }
}
