//! [`ChainIndex`]: the interface for an index that follows the blocks of a chain and keeps its own state, as
//! Bitcoin Core's `BaseIndex` does. For each block it receives what the block spends and creates.
//!
//! The threads that validate blocks do the part of the work that does not depend on the blocks below. The
//! blocks then reach the [`IndexWriter`] in ascending height, once they are known to be valid. Only mergesync
//! supports an index.

use crate::engines::mergesync::{IndexedCoin, SeenBlock};
use crate::error::SyncError;
use crate::request::Request;
use crate::source::ChainSource;
use apus_chain::{Height, KnownBlock};
use std::any::Any;

/// An index that follows the blocks of a chain. Dropped and reopened when the sync switches to another chain.
pub trait ChainIndex: Sync {
    /// Gerund phrase for progress messages, such as "making proofs".
    fn making(&self) -> &'static str;

    /// Opens the index for the blocks of a chain up to `end`, at the block where an earlier start left it.
    /// `begun` says whether the work folder already has a sync in progress.
    fn open<'i>(
        &'i self,
        request: &Request<'_>,
        source: &dyn ChainSource,
        end: Height,
        begun: bool,
    ) -> Result<Box<dyn IndexWriter + 'i>, SyncError>;

    /// Computes the entry of a block validated with these coins, one for each input except the coinbase's;
    /// `None` if the coins do not fit the block. Called on any thread.
    fn of_block(&self, block: &SeenBlock<'_>, coins: &[IndexedCoin<'_>]) -> Option<BlockEntry>;

    /// Approximate disk space that the index takes in the work folder, in percent of the blocks' bytes.
    fn disk_percent(&self) -> u64;

    /// Reports the disk space that the index needs outside the work folder for the blocks up to `end`. Called
    /// before hours of work.
    fn tell_disk(
        &self,
        request: &Request<'_>,
        source: &dyn ChainSource,
        end: Height,
    ) -> Result<(), SyncError>;
}

/// An index's entry for one block.
pub struct BlockEntry {
    /// The index's own value.
    pub value: Box<dyn Any + Send>,
    /// Memory that the value takes, in bytes.
    pub memory_bytes: u64,
}

/// An index being written.
pub trait IndexWriter {
    /// Returns the height of the last block in the index.
    fn best_block(&self) -> Height;

    /// Appends the next block's entry. Ignores a block that the index already has.
    fn append(&mut self, block: KnownBlock, entry: BlockEntry) -> Result<(), SyncError>;

    /// Whether the index can be made durable in its current state.
    fn can_commit(&self) -> bool;

    /// Makes the index durable up to its last block.
    fn commit(&mut self) -> Result<(), SyncError>;

    /// Ends the index at its last block and makes it durable.
    fn finish(&mut self) -> Result<(), SyncError>;
}
