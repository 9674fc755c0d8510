//! [`ComparedSource`]: a source of a node's blocks. It compares their undo data with the result of the join.

use super::finding::{FindingKind, Findings, FoundFault};
use crate::engines::swiftsync::UndoSource;
use crate::error::{ChainGap, SourceError, SyncError};
use crate::source::blocksdir::BlockHead;
use crate::source::{BlockArchive, BlockFetcher, BlockSource, ChainSource, StoredBlocks};
use apus_chain::{BlockHash, BlockUndo, HeaderChain, Height, HeightRange, KnownBlock};
use apus_datadir::{Obfuscation, SpentCoins};
use std::sync::atomic::AtomicBool;

/// A source of a node's blocks that compares their undo data with the result of the join.
pub(super) struct ComparedSource<'a> {
    pub(super) dir: &'a dyn ChainSource,
    pub(super) findings: &'a Findings,
    /// The node's undo data, if the index has a position for each.
    pub(super) undo: Option<Box<dyn UndoSource>>,
}

impl BlockSource for ComparedSource<'_> {
    fn fetcher<'a>(&'a self, halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a> {
        self.dir.fetcher(halt)
    }

    fn is_exact(&self) -> bool {
        self.dir.is_exact()
    }

    fn block_bytes(&self, height: Height) -> u64 {
        self.dir.block_bytes(height)
    }
}

impl BlockArchive for ComparedSource<'_> {
    fn has(&self, _: &BlockHash) -> bool {
        true
    }

    fn has_undo(&self, _: &BlockHash) -> bool {
        true
    }

    /// Compares the undo data, and stores nothing.
    fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), SyncError> {
        let height = self.chain().height_of(hash).unwrap_or_default();
        let Some(undo) = &self.undo else { return Ok(()) };
        // Unreadable undo data was reported before.
        let Ok(stored) = undo.reader(HeightRange::new(height, height + 1)).read(height, prev)
        else {
            return Ok(());
        };
        if stored != spends.undo
            && let (Ok(stored), Ok(right)) =
                (BlockUndo::read(&stored), BlockUndo::read(spends.undo))
        {
            let coins = stored.coins().iter().zip(right.coins());
            let what = match coins.into_iter().position(|(stored, right)| stored != right) {
                Some(at) => {
                    format!(
                        "coin {at} of its undo data differs from the coin that the block spends"
                    )
                }
                None => format!(
                    "its undo data contains {} coins, but the block spends {}",
                    stored.coins().len(),
                    right.coins().len()
                ),
            };
            let block = KnownBlock { height, hash: *hash };
            self.findings.add(FindingKind::UndoWrong, FoundFault::new(what).block(block));
        }
        Ok(())
    }

    fn write_index(
        &self,
        _: &HeaderChain,
        _: Height,
    ) -> Result<Option<StoredBlocks<'_>>, SyncError> {
        Ok(None)
    }
}

impl ChainSource for ComparedSource<'_> {
    fn chain(&self) -> &HeaderChain {
        self.dir.chain()
    }

    fn is_by_index(&self) -> bool {
        true
    }

    fn gap(&self) -> &ChainGap {
        self.dir.gap()
    }

    fn obfuscation(&self) -> Obfuscation {
        self.dir.obfuscation()
    }

    fn archive(&self) -> Option<&dyn BlockArchive> {
        self.undo.is_some().then_some(self as &dyn BlockArchive)
    }

    fn block_by_hash(
        &self,
        hash: &BlockHash,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError> {
        self.dir.block_by_hash(hash, take)
    }

    fn heads(
        &self,
        last: Height,
        reached: &mut dyn FnMut(Height) -> Result<(), SourceError>,
    ) -> Result<Vec<BlockHead>, SourceError> {
        self.dir.heads(last, reached)
    }
}
