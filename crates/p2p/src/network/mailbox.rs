//! Where the blocks of a range wait for the caller that asked for them.

use crate::transport::BlockBytes;
use apus_chain::{BlockHash, Height, HeightRange};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What [`Mailbox::take`] found.
#[derive(Debug)]
pub(super) enum Mail {
    /// A block, as it came.
    Block(Height, BlockHash, BlockBytes),
    /// Nothing came in time.
    Nothing,
    /// Nothing will come any more.
    Closed,
}

/// Blocks of one range on their way from the threads that read to the caller that asked.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    inner: Mutex<Inner>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: VecDeque<(Height, BlockHash, BlockBytes)>,
    closed: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, height: Height, hash: BlockHash, raw: BlockBytes) {
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
        let waiting = |inner: &mut Inner| inner.blocks.is_empty() && !inner.closed;
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
        let bytes = |byte| BlockBytes::new(vec![byte], &Arc::default());
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
