//! [`RecentBlocks`]: the blocks that came last, for peers that ask for them and for a way back.

use apus_chain::BlockHash;
use apus_p2p::network::BlockProvider;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Bytes of blocks that are held at most.
const BYTES_MAX: usize = 32 << 20;

/// Blocks in memory, the last to come.
#[derive(Debug, Default)]
pub(super) struct RecentBlocks {
    inner: Mutex<RecentInner>,
}

#[derive(Debug, Default)]
struct RecentInner {
    order: VecDeque<BlockHash>,
    blocks: HashMap<BlockHash, Vec<u8>>,
    bytes: usize,
}

impl RecentBlocks {
    pub(super) fn put(&self, hash: BlockHash, raw: &[u8]) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.blocks.contains_key(&hash) {
            return;
        }
        inner.bytes += raw.len();
        inner.order.push_back(hash);
        inner.blocks.insert(hash, raw.to_vec());
        while inner.bytes > BYTES_MAX
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.bytes -= inner.blocks.remove(&oldest).map_or(0, |raw| raw.len());
        }
    }
}

impl BlockProvider for RecentBlocks {
    fn block(&self, hash: &BlockHash) -> Option<Vec<u8>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.blocks.get(hash).cloned()
    }

    fn has(&self, hash: &BlockHash) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.blocks.contains_key(hash)
    }

    fn keeps_all(&self) -> bool {
        false
    }
}
