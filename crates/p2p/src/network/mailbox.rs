//! Passes blocks from the reading threads to the callers that requested them, by height or by hash.

use crate::transport::BlockBuffer;
use apus_chain::{BlockHash, Height, HeightRange};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The result of [`Mailbox::take`].
#[derive(Debug)]
pub(super) enum Mail {
    /// A block as received.
    Block(Height, BlockHash, BlockBuffer),
    /// Nothing arrived in time.
    Nothing,
    /// Nothing will arrive any more.
    Closed,
}

/// Blocks of one range, passed from the reading threads to the caller that requested them.
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
    pub(super) fn put(&self, height: Height, hash: BlockHash, raw: BlockBuffer) {
        self.inner.lock().blocks.push_back((height, hash, raw));
        self.came.notify_one();
    }

    /// Discards the blocks that were not taken, and returns their hashes.
    pub(super) fn empty(&self) -> Vec<BlockHash> {
        self.inner.lock().blocks.drain(..).map(|(_, hash, _)| hash).collect()
    }

    /// Wakes the waiting caller: nothing more will arrive.
    pub(super) fn close(&self) {
        self.inner.lock().closed = true;
        self.came.notify_all();
    }

    /// Returns the next block; waits for at most `patience`.
    pub(super) fn take(&self, patience: Duration) -> Mail {
        let mut inner = self.inner.lock();
        let waiting = |inner: &mut MailQueue| inner.blocks.is_empty() && !inner.closed;
        self.came.wait_while_for(&mut inner, waiting, patience);
        match inner.blocks.pop_front() {
            Some((height, hash, raw)) => Mail::Block(height, hash, raw),
            None if inner.closed => Mail::Closed,
            None => Mail::Nothing,
        }
    }
}

/// All requested ranges. They do not overlap.
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

    /// Removes a range. Returns its blocks that were not taken.
    pub(super) fn remove(&mut self, range: HeightRange) -> Vec<BlockHash> {
        let removed = self.by_start.remove(&range.start);
        removed.map(|(_, mailbox)| mailbox.empty()).unwrap_or_default()
    }

    /// The mailbox for a block at this height, or `None` if none was requested.
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

/// Maximum number of pings to keep behind requests that a peer may leave unanswered. Older ones are ignored.
const FENCES_MAX: usize = 64;

/// All blocks requested by hash.
#[derive(Debug, Default)]
pub(super) struct HashRequests(pub(super) BTreeMap<BlockHash, HashRequest>);

#[derive(Debug)]
pub(super) struct HashRequest {
    pub(super) height: Height,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) holders: usize,
    /// True if the last copy also went to the caller that wants its height.
    pub(super) with_range: bool,
    /// When to ask the peers again that lacked it.
    pub(super) again_at: u64,
}

impl HashRequests {
    /// The mailbox for a block. `with_range` is true if a caller that wants its height gets it too.
    pub(super) fn mailbox(&mut self, hash: &BlockHash, with_range: bool) -> Option<&Mailbox> {
        let request = self.0.get_mut(hash)?;
        request.with_range = with_range;
        Some(&*request.mailbox)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn close_all(&self) {
        self.0.values().for_each(|request| request.mailbox.close());
    }
}

/// Requests to one peer that are followed by a ping, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Fences(VecDeque<(u64, Vec<BlockHash>)>);

impl Fences {
    /// Adds requests followed by a ping. An earlier ping then says nothing about the same blocks.
    pub(super) fn put(&mut self, nonce: u64, hashes: Vec<BlockHash>) {
        for (_, earlier) in &mut self.0 {
            earlier.retain(|hash| !hashes.contains(hash));
        }
        self.0.push_back((nonce, hashes));
        if self.0.len() > FENCES_MAX {
            self.0.pop_front();
        }
    }

    /// The blocks requested before the ping with this nonce.
    pub(super) fn passed(&mut self, nonce: u64) -> Vec<BlockHash> {
        let place = self.0.iter().position(|(of, _)| *of == nonce);
        let passed = place.map(|at| self.0.drain(..=at).flat_map(|(_, hashes)| hashes));
        passed.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_reaches_the_range_that_requested_it() {
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

    #[test]
    fn a_ping_closes_the_requests_before_it() {
        let [a, b, c] = [1, 2, 3].map(|byte| BlockHash([byte; 32]));
        let mut fences = Fences::default();
        fences.put(1, vec![a, b]);
        fences.put(2, vec![c]);
        fences.put(5, vec![a]);
        assert_eq!(fences.passed(3), []);
        assert_eq!(fences.passed(2), [b, c], "the other block was requested again");
        assert_eq!(fences.passed(1), []);
        assert_eq!(fences.passed(5), [a]);
        for nonce in 0..1000 {
            fences.put(nonce, vec![a]);
        }
        assert_eq!(fences.0.len(), FENCES_MAX);
    }
}
