//! [`ChainIndex`]: the seam for something that follows the blocks of a chain and keeps a state of its own, as Bitcoin Core's
//! `BaseIndex` does: what it is told of each block is what the block spends and makes.
//!
//! What can be done of a block without those below it is done on the threads that judge blocks; then the blocks come to the
//! [`IndexWriter`] in ascending height, once they are known to be valid. Only mergesync serves one.

use crate::engines::mergesync::{NumberedCoin, SeenBlock};
use crate::error::SyncError;
use crate::request::Request;
use crate::source::ChainSource;
use apus_chain::{Height, KnownBlock};
use std::any::Any;

/// See the module. Dropped and opened anew where the run goes on along another chain.
pub trait ChainIndex: Sync {
    /// What making it is called, as in "making proofs".
    fn making(&self) -> &'static str;

    /// Opens it for the blocks of a chain up to `end`, at the block where an earlier start left it. `begun` is whether a run
    /// has begun in the work folder.
    fn open<'i>(
        &'i self,
        request: &Request<'_>,
        source: &dyn ChainSource,
        end: Height,
        begun: bool,
    ) -> Result<Box<dyn IndexWriter + 'i>, SyncError>;

    /// What a block does that was judged with these coins, one for each input but the coinbase's; none where they are not
    /// such. Called on any thread.
    fn of_block(&self, block: &SeenBlock<'_>, coins: &[NumberedCoin<'_>]) -> Option<BlockEntry>;

    /// About how much disk it takes in the work folder, in percent of the blocks' bytes.
    fn disk_percent(&self) -> u64;

    /// Says how much disk it takes elsewhere for the blocks up to `end`, before hours of work.
    fn tell_disk(
        &self,
        request: &Request<'_>,
        source: &dyn ChainSource,
        end: Height,
    ) -> Result<(), SyncError>;
}

/// What an index wants to know of a block.
pub struct BlockEntry {
    /// The index's own.
    pub value: Box<dyn Any + Send>,
    /// Memory that it takes, in bytes.
    pub memory_bytes: u64,
}

/// An index that is being written.
pub trait IndexWriter {
    /// The last block that it has.
    fn best_block(&self) -> Height;

    /// Takes the next block. One that it has already does nothing.
    fn append(&mut self, block: KnownBlock, entry: BlockEntry) -> Result<(), SyncError>;

    /// Whether it can be made durable as it is.
    fn can_commit(&self) -> bool;

    /// Makes it durable up to the last block.
    fn commit(&mut self) -> Result<(), SyncError>;

    /// Ends it at the last block, and makes it durable.
    fn finish(&mut self) -> Result<(), SyncError>;
}
