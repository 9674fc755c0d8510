//! [`BlockSource`]: where raw blocks come from, as the pipeline sees it.
//!
//! A source is shared; each worker thread has a [`BlockFetcher`] of its own and asks it for whole
//! segments. Nothing promises an order inside a segment. Blocks are data of no standing: the
//! receiver checks each and may turn down a copy that is damaged, whereupon the source looks for
//! another one.

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
use blocksdir::BlockHead;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// What a receiver made of a raw block.
#[derive(Debug)]
pub enum Taken {
    /// It was taken.
    Yes,
    /// The copy is damaged; another one may be good.
    Damaged(BlockError),
    /// It is no part of what was asked for, or was taken before: it was not looked at, so nothing is
    /// known of this copy.
    NotWanted,
    /// Stop: the receiver has an error of its own to report, or was interrupted.
    Stop,
}

/// Blocks that were kept, with an index that finds them.
#[derive(Debug)]
pub struct KeptWhole<'a> {
    /// Their folder.
    pub folder: PathBuf,
    /// What is known of them.
    pub blocks: &'a BlockStore,
    /// The data directory that they are in, where it is still to get its name.
    pub draft: Option<FolderDraft>,
}

/// A place that blocks come from.
pub trait BlockSource: Sync {
    /// A fetcher for one thread. Once `halt` is set its blocks are not waited for any more: one that
    /// itself waits for blocks then returns early, without an error.
    fn fetcher<'a>(&'a self, halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a>;

    /// Makes durable what it keeps of the blocks that were given.
    fn sync(&self) -> Result<(), SyncError> {
        Ok(())
    }

    /// Whether the bytes that it gives of a block are to be the block and nothing else.
    fn is_exact(&self) -> bool {
        false
    }

    /// Whether [`block_bytes`](Self::block_bytes) is what the blocks have, and no guess.
    fn knows_sizes(&self) -> bool {
        true
    }

    /// How many fetchers keep this source busy, where `threads` are to work on what they give.
    fn fetchers(&self, threads: usize) -> usize {
        threads
    }

    /// About how many bytes the block at `height` has, for dividing work.
    fn block_bytes(&self, height: Height) -> u64;

    /// The caller has no use for witnesses of the chain's blocks up to this height.
    fn leave_witnesses(&self, _up_to: Height) {}
}

/// What a search through many files goes by.
pub struct SearchOptions<'a> {
    /// How many it may take.
    pub threads: usize,
    /// Told how far it is.
    pub observer: &'a dyn Observer,
    /// Ends it once it is set.
    pub interrupt: &'a AtomicBool,
}

/// Where a source keeps the blocks that it gives, with the undo data of those that are connected: a node's block files.
pub trait BlockArchive: Sync {
    /// Whether it has a block.
    fn has(&self, hash: &BlockHash) -> bool;

    /// Whether it has a block's undo data.
    fn has_undo(&self, hash: &BlockHash) -> bool;

    /// Keeps the undo data of a connected block, whose parent is `prev`.
    fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), SyncError>;

    /// Writes the index by which a node finds the blocks of `chain` up to `last`, all of which are kept. None where no
    /// node is to find them.
    fn write_index(
        &self,
        chain: &HeaderChain,
        last: Height,
    ) -> Result<Option<KeptWhole<'_>>, SyncError>;
}

/// Blocks of `range` that `dir` is to keep, and that have no undo data.
pub fn without_undo(dir: &dyn ChainSource, range: HeightRange) -> Vec<HeightRange> {
    let Some(archive) = dir.archive() else { return Vec::new() };
    let has = |height: Height| dir.chain().hash(height).is_some_and(|it| archive.has_undo(it));
    let mut missing: Vec<HeightRange> = Vec::new();
    for height in range.heights().filter(|height| !has(*height)) {
        match missing.last_mut() {
            Some(last) if last.end == height => last.end += 1,
            _ => missing.push(HeightRange::new(height, height + 1)),
        }
    }
    missing
}

/// Blocks up to `last` that `dir` is to keep and does not have: an earlier start may have taken them without being asked
/// to.
pub fn not_kept(dir: &dyn ChainSource, last: Height) -> Vec<HeightRange> {
    let Some(archive) = dir.archive() else { return Vec::new() };
    let missing = |height: &Height| !dir.chain().hash(*height).is_some_and(|it| archive.has(it));
    ranges((1..=last).filter(missing))
}

/// A source that has settled on a chain.
pub trait ChainSource: BlockSource {
    /// The most-work chain whose blocks can be had.
    fn chain(&self) -> &HeaderChain;

    /// Whether the chain is one that an index of blocks told of, which may be older than the blocks.
    fn is_by_index(&self) -> bool {
        false
    }

    /// What lies beyond the chain's end.
    fn gap(&self) -> &ChainGap;

    /// The key for block files that are written from this source.
    fn obfuscation(&self) -> Obfuscation {
        Obfuscation::NONE
    }

    /// The run that takes its blocks can go on with another chain: where one cannot be had and others do
    /// without it, its fetchers end with [`SourceError::ChainLeft`], and wait no longer. It may
    /// `follow` the tip, which means that it does not end where it gets to.
    fn may_be_left(&self, _follow: bool) {}

    /// The lowest block whose undo data a run needs that is at height `tip`, should a block above prove
    /// invalid; none where it would go on from there.
    fn undo_needed(&self, _tip: Height) -> Option<Height> {
        None
    }

    /// The undo data of all blocks up to a height; none where they are not at hand.
    fn undo(
        &self,
        _last: Height,
        _search: &SearchOptions<'_>,
    ) -> Result<Option<Box<dyn UndoSource>>, SyncError> {
        Ok(None)
    }

    /// All its blocks were connected: others may have them.
    fn reached_tip(&self) {}

    /// Where it keeps the blocks that it gives; none where it keeps none.
    fn archive(&self) -> Option<&dyn BlockArchive> {
        None
    }

    /// Blocks up to `last` that have to be taken before [`heads`](Self::heads).
    fn not_counted(&self, _last: Height) -> Vec<HeightRange> {
        Vec::new()
    }

    /// Gives the copies of a block that need not be on the chain to `take`, until it takes one.
    /// Tells whether one was taken.
    fn block_by_hash(
        &self,
        hash: &BlockHash,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError>;

    /// The heads of the blocks of heights 1 to `last`, ascending. `reached` is told of heights on
    /// the way, and ends it with an error.
    fn heads(
        &self,
        last: Height,
        reached: &mut dyn FnMut(Height) -> Result<(), SourceError>,
    ) -> Result<Vec<BlockHead>, SourceError>;
}

/// Gets blocks for one thread.
pub trait BlockFetcher {
    /// Gives every block of `want` to `each`, in any order, until it was taken, is not wanted or nothing
    /// is left to try. Returns early, without an error, once `each` says [`Taken::Stop`].
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> Taken,
    ) -> Result<(), SourceError>;
}

/// Heights that are missing, as ranges; where two of them lie this close, the blocks between are
/// taken as well.
const GAP_MAX: Height = 16;

/// Puts ascending heights together.
pub fn ranges(heights: impl IntoIterator<Item = Height>) -> Vec<HeightRange> {
    let mut ranges: Vec<HeightRange> = Vec::new();
    for height in heights {
        match ranges.last_mut() {
            Some(last) if height < last.end.saturating_add(GAP_MAX) => last.end = height + 1,
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
        assert_eq!(ranges([]), []);
        let found = ranges([1, 2, 3, 10, 26, 42, 59, 1000]);
        let expected = [(1, 43), (59, 60), (1000, 1001)];
        assert_eq!(found, expected.map(|(start, end)| HeightRange::new(start, end)));
    }
}
