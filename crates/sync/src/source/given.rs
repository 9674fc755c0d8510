//! [`GivenBlocks`]: the blocks of a folder, handed to peers that connect.
//!
//! The folder is only read. Each block is read when it is asked for, and a copy that is damaged is passed over for another
//! one, as in a run. Nothing is asked of peers.

use super::blocksdir::{BlocksDir, UseIndex};
use super::{BlockSource, ChainSource, Taken};
use crate::error::{SourceError, SyncError};
use crate::progress::{Observer, stop_if_interrupted};
use apus_chain::{BlockHash, BlockLayout, HEADER_SIZE, Header, HeightRange};
use apus_p2p::network::{BlockProvider, Network, NetworkOptions};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes that are read at once for a block.
const READ_BYTES: usize = 1 << 20;

/// See the module. Dropped, nothing is handed out any more.
pub struct GivenBlocks(Network);

impl GivenBlocks {
    /// Looks for the chain in a folder, and listens where `options` say, which name no peers; their headers and blocks are
    /// set here.
    ///
    /// # Errors
    /// Where the folder has no chain, where it cannot be listened, and where it is interrupted.
    pub fn start(
        folder: &Path,
        use_index: UseIndex,
        options: NetworkOptions,
        now: i64,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Self, SyncError> {
        let params = options.params.clone();
        let mut dir = BlocksDir::open(folder, &params, now, use_index, observer, interrupt)?;
        dir.set_buffer_bytes(READ_BYTES);
        let heads = dir.heads(dir.chain().tip_height(), &mut |_| {
            stop_if_interrupted(interrupt).map_err(|_| SourceError::Interrupted)
        });
        let heads = match heads {
            Err(SourceError::Interrupted) => return Err(SyncError::Interrupted),
            other => other?,
        };
        let headers = heads.into_iter().map(|head| head.header).collect();
        let chain = Arc::new(dir.chain().clone());
        let blocks = Arc::new(Folder { dir, halt: AtomicBool::new(false) });
        let network = Network::start(NetworkOptions {
            headers,
            blocks: Some(blocks),
            outbound: 0,
            ..options
        })?;
        network.serve(chain);
        Ok(Self(network))
    }

    /// Where it is listened.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.0.listening()
    }
}

struct Folder {
    dir: BlocksDir,
    /// Never set: a block is read to its end.
    halt: AtomicBool,
}

impl BlockProvider for Folder {
    fn block(&self, hash: &BlockHash) -> Option<Vec<u8>> {
        let height = self.dir.chain().height_of(hash)?;
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
        self.dir.fetcher(&self.halt).fetch(HeightRange::new(height, height + 1), &mut take).ok()?;
        found
    }

    fn has(&self, hash: &BlockHash) -> bool {
        self.dir.chain().height_of(hash).is_some()
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

fn hash_of(block: &[u8]) -> Option<BlockHash> {
    Some(Header::parse(block.first_chunk::<HEADER_SIZE>()?).hash())
}
