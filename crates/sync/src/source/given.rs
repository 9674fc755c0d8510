//! [`GivenBlocks`]: serves the blocks of a folder to peers that connect.
//!
//! The sync has already opened this folder, which is only read. Each block is read on request, and a damaged
//! copy is replaced by another one, as in the sync. Nothing is requested from peers.

use super::blocksdir::BlocksDir;
use super::{BlockFetcher, BlockReply, ChainSource};
use crate::error::{SourceError, SyncError};
use crate::progress::stop_if_interrupted;
use apus_chain::{BlockHash, BlockLayout, HEADER_SIZE, Header, HeightRange};
use apus_p2p::network::{BlockProvider, NetworkOptions, PeerNetwork};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes read at once for a block.
const READ_BYTES: usize = 1 << 20;

/// Receives the listening address.
type ListenAddress = dyn Fn(SocketAddr) + Send + Sync;

/// Serves the blocks of a folder to peers that connect, until it is dropped.
pub struct GivenBlocks {
    options: NetworkOptions,
    listens: Box<ListenAddress>,
    network: Mutex<Option<PeerNetwork>>,
}

impl GivenBlocks {
    /// Prepares to serve: once the sync has found the chain of its folder, this listens as `options` say and
    /// reports the address. `options` name no peers; their headers and blocks are set then.
    pub fn new(
        options: NetworkOptions,
        listens: impl Fn(SocketAddr) + Send + Sync + 'static,
    ) -> Self {
        Self { options, listens: Box::new(listens), network: Mutex::default() }
    }

    /// Serves the blocks of this folder from now on, instead of the previous folder's.
    ///
    /// # Errors
    /// If it cannot listen, or is interrupted.
    pub fn give(&self, dir: &Arc<BlocksDir>, interrupt: &AtomicBool) -> Result<(), SyncError> {
        let mut network = self.network.lock();
        *network = None;
        let heads = dir.heads(dir.chain().tip_height(), &mut |_| {
            stop_if_interrupted(interrupt).map_err(|_| SourceError::Interrupted)
        })?;
        let chain = Arc::new(dir.chain().clone());
        let started = PeerNetwork::start(NetworkOptions {
            headers: heads.into_iter().map(|head| head.header).collect(),
            blocks: Some(Arc::new(GivenFolder(Arc::clone(dir)))),
            outbound: 0,
            ..self.options.clone()
        })?;
        started.serve(chain);
        if let Some(address) = started.listening() {
            (self.listens)(address);
        }
        *network = Some(started);
        Ok(())
    }
}

struct GivenFolder(Arc<BlocksDir>);

impl BlockProvider for GivenFolder {
    fn block(&self, hash: &BlockHash) -> Option<Vec<u8>> {
        let height = self.0.chain().height_of(hash)?;
        let mut found = None;
        let mut take = |_, raw: &[u8]| {
            let mut layout = BlockLayout::new();
            match layout.read(raw) {
                // The copy may end with bytes after the block that the index counted as part of it.
                Ok(block) if hash_of(block.raw()) == Some(*hash) => {
                    found = Some(block.raw().to_vec());
                    BlockReply::Yes
                }
                Ok(_) => BlockReply::NotWanted,
                Err(error) => BlockReply::Damaged(error.into()),
            }
        };
        // A peer that asks for an unreadable block gets the answer that it is missing; the sync reports why.
        self.0
            .fetcher_of(READ_BYTES)
            .fetch(HeightRange::new(height, height + 1), &mut take)
            .ok()?;
        found
    }

    fn has(&self, hash: &BlockHash) -> bool {
        self.0.chain().height_of(hash).is_some()
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

fn hash_of(block: &[u8]) -> Option<BlockHash> {
    Some(Header::parse(block.first_chunk::<HEADER_SIZE>()?).hash())
}
