//! [`BlockSource`]: the pipeline's interface to the origin of raw blocks.
//!
//! A source is shared; each worker thread has its own [`BlockFetcher`], from which it requests whole segments.
//! Blocks of a segment may arrive in any order. Blocks are untrusted: the receiver checks each and may refuse a
//! damaged copy, and then the source looks for another copy.

pub mod blocksdir;
mod given;
pub mod peers;

pub use given::GivenBlocks;

use crate::engines::swiftsync::UndoSource;
use crate::error::{ChainGap, SourceError, SyncError};
use crate::folder::FolderDraft;
use crate::progress::Observer;
use apus_chain::{BlockError, BlockHash, HeaderChain, Height, HeightRange};
use apus_datadir::{BlockStore, Obfuscation, SpentCoins};
use apus_p2p::addresses::{NodeAddress, Services};
use blocksdir::BlockHead;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// The receiver's answer to a raw block.
#[derive(Debug)]
pub enum BlockReply {
    /// The block was accepted.
    Yes,
    /// The copy is damaged; another copy may be intact.
    Damaged(BlockError),
    /// The block was not requested, or was accepted before: this copy was not checked.
    NotWanted,
    /// Stop: the receiver has its own error to report, or was interrupted.
    Stop,
}

/// Kept blocks, with an index that finds them.
#[derive(Debug)]
pub struct StoredBlocks<'a> {
    /// Their folder.
    pub folder: PathBuf,
    /// Their index.
    pub blocks: &'a BlockStore,
    /// Their data directory, if it does not have its name yet.
    pub draft: Option<FolderDraft>,
}

/// An origin of raw blocks.
pub trait BlockSource: Send + Sync {
    /// Makes a fetcher for one thread. Once `halt` is set, the caller no longer needs the blocks: a waiting
    /// fetcher returns early, without an error.
    fn fetcher<'a>(&'a self, halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a>;

    /// Returns whether the block at a height comes from the user's disk: others may send other bytes the next time.
    fn is_on_disk(&self, _height: Height) -> bool {
        true
    }

    /// Makes the kept blocks durable.
    fn sync(&self) -> Result<(), SyncError> {
        Ok(())
    }

    /// Returns whether a copy with extra bytes after the block must be refused.
    fn is_exact(&self) -> bool {
        false
    }

    /// Returns whether [`block_bytes`](Self::block_bytes) is exact rather than a guess.
    fn knows_sizes(&self) -> bool {
        true
    }

    /// Returns the number of fetchers that keep this source busy if `threads` process its blocks.
    fn fetchers(&self, threads: usize) -> usize {
        threads
    }

    /// Returns the approximate size of the block at `height`, in bytes, for dividing work.
    fn block_bytes(&self, height: Height) -> u64;

    /// Declares that the caller does not use the witnesses of the chain's blocks up to this height.
    fn leave_witnesses(&self, _up_to: Height) {}
}

/// Options of a search through many files.
pub struct SearchOptions<'a> {
    /// Number of threads to use.
    pub threads: usize,
    /// Receives the progress.
    pub observer: &'a dyn Observer,
    /// Stops the search once it is set.
    pub interrupt: &'a AtomicBool,
}

/// A store in the form of a node's block files: the blocks that a source provides, and the undo data of
/// connected blocks.
pub trait BlockArchive: Sync {
    /// Returns whether a block is stored.
    fn has(&self, hash: &BlockHash) -> bool;

    /// Returns whether a block's undo data is stored.
    fn has_undo(&self, hash: &BlockHash) -> bool;

    /// Stores the undo data of a connected block, whose parent is `prev`.
    fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), SyncError>;

    /// Writes the index with which a node finds the blocks of `chain` up to `last`, which are all kept. Returns
    /// `None` if no node needs it.
    fn write_index(
        &self,
        chain: &HeaderChain,
        last: Height,
    ) -> Result<Option<StoredBlocks<'_>>, SyncError>;
}

/// Returns the blocks of `range` that `dir` must keep and whose undo data is missing.
pub fn without_undo(dir: &dyn ChainSource, range: HeightRange) -> Vec<HeightRange> {
    let Some(archive) = dir.archive() else { return Vec::new() };
    let has = |height: Height| dir.chain().hash(height).is_some_and(|it| archive.has_undo(it));
    ranges(range.heights().filter(|height| !has(*height)), 1)
}

/// Returns the blocks up to `last` that `dir` must keep and does not have: an earlier start may have fetched
/// them without keeping them.
pub fn not_kept(dir: &dyn ChainSource, last: Height) -> Vec<HeightRange> {
    let Some(archive) = dir.archive() else { return Vec::new() };
    let missing = |height: &Height| !dir.chain().hash(*height).is_some_and(|it| archive.has(it));
    ranges((1..=last).filter(missing), GAP_MAX)
}

/// A source that has chosen its chain.
pub trait ChainSource: BlockSource {
    /// Returns the most-work chain of available blocks.
    fn chain(&self) -> &HeaderChain;

    /// Returns whether the chain was found through a block index, which may be older than the blocks.
    fn is_by_index(&self) -> bool {
        false
    }

    /// Returns the evidence of blocks beyond the chain's end.
    fn gap(&self) -> &ChainGap;

    /// Returns the obfuscation key for block files written from this source.
    fn obfuscation(&self) -> Obfuscation {
        Obfuscation::NONE
    }

    /// Declares that the sync can switch to another chain: if a block is unavailable and others have a chain
    /// without it, fetchers end with [`SourceError::ChainLeft`] and stop waiting. With `follow`, the sync does
    /// not end at the tip.
    fn may_be_left(&self, _follow: bool) {}

    /// Returns the lowest block whose undo data a sync at height `tip` needs if a block above proves invalid;
    /// `None` if it would continue from there.
    fn undo_needed(&self, _tip: Height) -> Option<Height> {
        None
    }

    /// Opens the undo data of all blocks up to a height; `None` if it is unavailable.
    fn undo(
        &self,
        _last: Height,
        _search: &SearchOptions<'_>,
    ) -> Result<Option<Box<dyn UndoSource>>, SyncError> {
        Ok(None)
    }

    /// Returns the addresses of up to `most` nodes with these services, which the source has found on the network; none
    /// if the blocks do not come from peers.
    fn nodes_with(&self, _services: Services, _most: usize) -> Vec<NodeAddress> {
        Vec::new()
    }

    /// Declares that all blocks of the chain were connected, so that peers may get them.
    fn reached_tip(&self) {}

    /// Returns the store of the blocks that the source keeps, if it keeps any.
    fn archive(&self) -> Option<&dyn BlockArchive> {
        None
    }

    /// Returns the blocks up to `last` that must be fetched before [`heads`](Self::heads).
    fn not_counted(&self, _last: Height) -> Vec<HeightRange> {
        Vec::new()
    }

    /// Passes the copies of a block, which may be off the chain, to `take` until it accepts one. Returns
    /// whether it accepted one.
    fn block_by_hash(
        &self,
        hash: &BlockHash,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError>;

    /// Returns the heads of the blocks of heights 1 to `last`, ascending. `reached` receives the current height
    /// from time to time, and can stop the call with an error.
    fn heads(
        &self,
        last: Height,
        reached: &mut dyn FnMut(Height) -> Result<(), SourceError>,
    ) -> Result<Vec<BlockHead>, SourceError>;
}

/// Fetches blocks for one thread.
pub trait BlockFetcher {
    /// Passes every block of `want` to `each`, in any order, until it is accepted, not wanted, or has no copy
    /// left. Returns early, without an error, once `each` returns [`BlockReply::Stop`].
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
    ) -> Result<(), SourceError>;
}

/// Missing heights this close together are joined into one range, which includes the blocks between them.
pub(crate) const GAP_MAX: Height = 16;

/// Joins ascending heights into ranges. A range includes gaps of fewer than `gap` heights.
pub fn ranges(heights: impl IntoIterator<Item = Height>, gap: Height) -> Vec<HeightRange> {
    let mut ranges: Vec<HeightRange> = Vec::new();
    for height in heights {
        match ranges.last_mut() {
            Some(last) if height < last.end.saturating_add(gap) => last.end = height + 1,
            _ => ranges.push(HeightRange::new(height, height + 1)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_that_lie_close_are_one_range() {
        assert_eq!(ranges([], GAP_MAX), []);
        let found = ranges([1, 2, 3, 10, 26, 42, 59, 1000], GAP_MAX);
        let expected = [(1, 43), (59, 60), (1000, 1001)];
        assert_eq!(found, expected.map(|(start, end)| HeightRange::new(start, end)));
    }
}
