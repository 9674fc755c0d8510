//! [`GivenBlocks`]: the blocks of a folder, handed to peers that connect.
//!
//! It is the folder that a run goes by, which has opened it, and is only read. Each block is read when it is asked for, and a
//! copy that is damaged is passed over for another one, as in a run. Nothing is asked of peers.

use super::blocksdir::BlocksDir;
use super::{BlockFetcher, ChainSource, Taken};
use crate::error::{SourceError, SyncError};
use crate::progress::stop_if_interrupted;
use apus_chain::{BlockHash, BlockLayout, HEADER_SIZE, Header, HeightRange};
use apus_p2p::network::{BlockProvider, NetworkOptions, PeerNetwork};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are read at once for a block.
const READ_BYTES: usize = 1 << 20;

/// Is told where it is listened.
type Listens = dyn Fn(SocketAddr) + Send + Sync;

/// See the module. Dropped, nothing is handed out any more.
pub struct GivenBlocks {
    options: NetworkOptions,
    listens: Box<Listens>,
    network: Mutex<Option<PeerNetwork>>,
}

impl GivenBlocks {
    /// Will listen where `options` say, which name no peers, and tell of it, once a run has found the chain of its folder.
    /// Headers and blocks are set then.
    pub fn new(
        options: NetworkOptions,
        listens: impl Fn(SocketAddr) + Send + Sync + 'static,
    ) -> Self {
        Self { options, listens: Box::new(listens), network: Mutex::default() }
    }

    /// Hands out the blocks of this folder, and no more of the one before.
    ///
    /// # Errors
    /// Where it cannot be listened, and where it is interrupted.
    pub fn give(&self, dir: &Arc<BlocksDir>, interrupt: &AtomicBool) -> Result<(), SyncError> {
        let mut network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        *network = None;
        let heads = dir.heads(dir.chain().tip_height(), &mut |_| {
            stop_if_interrupted(interrupt).map_err(|_| SourceError::Interrupted)
        });
        let heads = match heads {
            Err(SourceError::Interrupted) => return Err(SyncError::Interrupted),
            other => other?,
        };
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
                // Behind it may be what an index took for a part of it.
                Ok(block) if hash_of(block.raw()) == Some(*hash) => {
                    found = Some(block.raw().to_vec());
                    Taken::Yes
                }
                Ok(_) => Taken::NotWanted,
                Err(error) => Taken::Damaged(error.into()),
            }
        };
        // A peer that asks for what cannot be read is told that it is not there; the run says why.
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
