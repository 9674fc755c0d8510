//! Blocks by height on their way: what is asked for, which caller gets it, and what became of it.

use super::state::NetworkState;
use crate::PeerId;
use crate::download::Received;
use crate::transport::BlockBuffer;
use apus_chain::{BlockHash, Height, HeightRange};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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

/// What [`Mailbox::take`] found.
#[derive(Debug)]
pub(super) enum Mail {
    /// A block, as it came.
    Block(Height, BlockHash, BlockBuffer),
    /// Nothing came in time.
    Nothing,
    /// Nothing will come any more.
    Closed,
}

/// Blocks of one range on their way from the threads that read to the caller that asked.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    inner: Mutex<MailQueue>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct MailQueue {
    blocks: VecDeque<(Height, BlockHash, BlockBuffer)>,
    closed: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MailQueue> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, height: Height, hash: BlockHash, raw: BlockBuffer) {
        self.lock().blocks.push_back((height, hash, raw));
        self.came.notify_one();
    }

    /// Gives up what was not taken.
    pub(super) fn empty(&self) -> Vec<BlockHash> {
        self.lock().blocks.drain(..).map(|(_, hash, _)| hash).collect()
    }

    /// Tells the waiting caller that there is no use in it.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.came.notify_all();
    }

    /// The next block, for which it waits so long at most.
    pub(super) fn take(&self, patience: Duration) -> Mail {
        let inner = self.lock();
        let waiting = |inner: &mut MailQueue| inner.blocks.is_empty() && !inner.closed;
        let (mut inner, _) = self
            .came
            .wait_timeout_while(inner, patience, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        match inner.blocks.pop_front() {
            Some((height, hash, raw)) => Mail::Block(height, hash, raw),
            None if inner.closed => Mail::Closed,
            None => Mail::Nothing,
        }
    }
}

/// All ranges that are asked for; they don't overlap.
#[derive(Debug, Default)]
pub(super) struct Mailboxes {
    by_start: BTreeMap<Height, (Height, Arc<Mailbox>)>,
}

impl Mailboxes {
    pub(super) fn open(&mut self, range: HeightRange) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        self.by_start.insert(range.start, (range.end, Arc::clone(&mailbox)));
        mailbox
    }

    /// Forgets a range, and tells which of its blocks were not taken.
    pub(super) fn remove(&mut self, range: HeightRange) -> Vec<BlockHash> {
        let removed = self.by_start.remove(&range.start);
        removed.map(|(_, mailbox)| mailbox.empty()).unwrap_or_default()
    }

    /// Where the block at a height is to go; none where none was asked for.
    pub(super) fn of(&self, height: Height) -> Option<&Arc<Mailbox>> {
        let (_, (end, mailbox)) = self.by_start.range(..=height).next_back()?;
        (height < *end).then_some(mailbox)
    }

    pub(super) fn close_all(&self) {
        self.by_start.values().for_each(|(_, mailbox)| mailbox.close());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reaches_the_range_that_asked() {
        let mut all = Mailboxes::default();
        let low = all.open(HeightRange::new(1, 5));
        let high = all.open(HeightRange::new(5, 9));
        assert!(all.of(0).is_none() && all.of(9).is_none());
        let bytes = |byte| BlockBuffer::new(vec![byte], &Arc::default());
        all.of(4).unwrap().put(4, BlockHash::ZERO, bytes(4));
        all.of(5).unwrap().put(5, BlockHash::ZERO, bytes(5));
        assert!(matches!(low.take(Duration::ZERO), Mail::Block(4, _, raw) if raw[..] == [4]));
        assert!(matches!(low.take(Duration::ZERO), Mail::Nothing));
        assert!(matches!(high.take(Duration::ZERO), Mail::Block(5, _, raw) if raw[..] == [5]));
        all.remove(HeightRange::new(1, 5));
        assert!(all.of(4).is_none() && !all.is_empty());
        all.of(6).unwrap().put(6, BlockHash::ZERO, bytes(6));
        all.close_all();
        assert!(matches!(high.take(Duration::ZERO), Mail::Block(6, ..)));
        assert!(matches!(high.take(Duration::MAX), Mail::Closed));
    }
}
