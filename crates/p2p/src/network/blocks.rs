//! Blocks by height on their way: what is asked for, which caller gets it, and what became of it.

use super::mailbox::Mailbox;
use super::state::State;
use crate::PeerId;
use crate::download::Received;
use crate::transport::BlockBytes;
use apus_chain::{BlockHash, Height, HeightRange};
use std::sync::Arc;

impl State {
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

    pub(super) fn block(&mut self, id: PeerId, hash: BlockHash, raw: BlockBytes, now: u64) {
        match self.download.block(id, &hash, raw.len() as u64, now) {
            // Whether it was useful is known when it is judged.
            Received::Wanted(height) => self.hand_out(height, hash, raw),
            Received::Duplicate(_) | Received::NoRoom(_) | Received::Unrequested => {}
        }
    }

    /// Hands a block to the caller that asked for it by its hash, to the one that asked for its
    /// height, or to both.
    fn hand_out(&mut self, height: Height, hash: BlockHash, raw: BlockBytes) {
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
