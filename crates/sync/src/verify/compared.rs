//! [`ComparedSource`]: a node's blocks as a source whose undo data are compared with those that joining leads to.

use super::finding::{FindingKind, Findings, FoundFault};
use crate::engines::swiftsync::UndoSource;
use crate::error::{ChainGap, SourceError, SyncError};
use crate::source::blocksdir::BlockHead;
use crate::source::{BlockArchive, BlockFetcher, BlockSource, ChainSource, KeptWhole};
use apus_chain::{BlockHash, BlockUndo, HeaderChain, Height, KnownBlock};
use apus_datadir::{Obfuscation, SpentCoins};
use std::sync::atomic::AtomicBool;

/// See the module.
pub(super) struct ComparedSource<'a> {
    pub(super) dir: &'a dyn ChainSource,
    pub(super) findings: &'a Findings,
    /// Those of the node, if the index says where all of them are.
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

    /// Only compares it.
    fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), SyncError> {
        let height = self.chain().height_of(hash).unwrap_or_default();
        let Some(undo) = &self.undo else { return Ok(()) };
        // What cannot be read was found before.
        let Ok(said) = undo.reader().read(height, prev) else { return Ok(()) };
        if said != spends.undo
            && let (Ok(said), Ok(right)) = (BlockUndo::read(&said), BlockUndo::read(spends.undo))
        {
            let coins = said.coins().iter().zip(right.coins());
            let what = match coins.into_iter().position(|(said, right)| said != right) {
                Some(at) => format!("coin {at} of its undo data is another than the one it spends"),
                None => format!(
                    "its undo data are of {} coins, and it spends {}",
                    said.coins().len(),
                    right.coins().len()
                ),
            };
            let block = KnownBlock { height, hash: *hash };
            self.findings.add(FindingKind::UndoWrong, FoundFault::new(what).block(block));
        }
        Ok(())
    }

    fn write_index(&self, _: &HeaderChain, _: Height) -> Result<Option<KeptWhole<'_>>, SyncError> {
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
