//! [`Bridge`]: the forest of all coins, block by block, and the proofs of what each block spends, in files of ranges.
//!
//! It takes blocks that were judged, in ascending height, with what each spends and adds, and only what depends on the
//! blocks below is done here. Proofs go into a draft. Where its range ends the draft is made durable and gets its
//! name, and where it is time the forest moves to that block: so there is a file for every block up to the forest's,
//! and what lies above is made again after a crash.
//!
//! Ranges end at heights that are multiples of what the caller says, so that any start leads to the same files. Where
//! changes of the forest fill its memory before, a range ends there, and the next one where it would have.

mod start;

pub(crate) use start::{DISK_PERCENT, tell_disk};

use crate::engines::mergesync::BlockLeafChange;
use crate::error::{BridgeError, StorageResult, SyncError};
use crate::proofs::{ProofsMade, ProofsTotals};
use apus_chain::{Height, HeightRange, KnownBlock, Network};
use apus_engine::utxo::StoreError;
use apus_engine::utxo::forest::{ForestStore, ForestWrite, Places};
use apus_storage::{Storage, StorageFile};
use apus_utreexo::{Forest, ForestError, PageId, Pages, RangeHead, RangeWriter, range_file_name};
use std::io::{BufWriter, IntoInnerError};
use std::sync::Arc;

/// What a file is called until its range has ended.
const DRAFT: &str = "proofs.incomplete";

/// Pages of a store that others hold, too.
struct BridgeRecord(Arc<dyn ForestStore>);

impl Pages for BridgeRecord {
    type Error = StoreError;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.0.read(page, out)
    }

    fn read_many(
        &self,
        pages: &[PageId],
        found: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), StoreError> {
        self.0.read_many(pages, found)
    }
}

/// See the module.
pub(crate) struct Bridge<'a> {
    storage: &'a dyn Storage,
    network: Network,
    every: u32,
    store: Arc<dyn ForestStore>,
    forest: Forest<BridgeRecord>,
    places: Places,
    /// The last block that is in the forest, and the one where the store is.
    at: KnownBlock,
    stored: Height,
    range: Option<Range>,
    from: Height,
    totals: ProofsTotals,
}

/// A range under way.
struct Range {
    first: Height,
    writer: RangeWriter<BufWriter<Box<dyn StorageFile>>>,
}

impl<'a> Bridge<'a> {
    /// The last block that it has.
    pub(crate) fn height(&self) -> Height {
        self.at.height
    }

    /// Takes the next block. One that it has already does nothing.
    pub(crate) fn put(
        &mut self,
        block: KnownBlock,
        leaves: &BlockLeafChange,
    ) -> Result<(), SyncError> {
        if block.height <= self.at.height {
            return Ok(());
        }
        assert_eq!(block.height, self.at.height + 1, "blocks come in ascending height");
        let spent = leaves.spent.iter().map(|leaf| self.places.leaf(leaf.height, leaf.number));
        let spent: Option<Vec<u64>> = spent.collect();
        let spent = spent.ok_or_else(|| self.unusable("a coin is spent that is no leaf"))?;
        if self.range.is_none() {
            self.range = Some(self.begin_range(block.height)?);
        }
        let proof = self.forest.block(&spent, &leaves.added).map_err(|error| self.failed(error))?;
        let mut entry = Vec::new();
        proof.write(&mut entry);
        let proof_bytes = entry.len();
        entry.extend_from_slice(&leaves.data);
        if let Some(range) = &mut self.range {
            let leaves_after = self.forest.leaves();
            range.writer.put(&block.hash, leaves_after, &entry).at(self.storage, DRAFT)?;
        }
        self.totals.count(spent.len(), proof.hashes.len(), proof_bytes, entry.len());
        self.places.push(leaves.added.len() as u64);
        self.at = block;
        let is_full = self.forest.wants_store();
        if is_full || block.height.is_multiple_of(self.every) {
            self.end_range()?;
        }
        if is_full { self.store() } else { Ok(()) }
    }

    fn begin_range(&self, first: Height) -> Result<Range, SyncError> {
        let file = self.storage.create(DRAFT).at(self.storage, DRAFT)?;
        let head = RangeHead {
            network: self.network.magic(),
            first,
            before: self.at.hash,
            roots: self.forest.roots().clone(),
        };
        let out = BufWriter::with_capacity(1 << 18, file);
        let writer = RangeWriter::new(out, &head).at(self.storage, DRAFT)?;
        Ok(Range { first, writer })
    }

    /// Makes the range under way a file, if there is one.
    fn end_range(&mut self) -> Result<(), SyncError> {
        let Some(Range { first, writer }) = self.range.take() else { return Ok(()) };
        let storage = self.storage;
        let out = writer.finish(self.forest.roots()).at(storage, DRAFT)?;
        let file = out.into_inner().map_err(IntoInnerError::into_error);
        file.and_then(|mut file| file.sync()).at(storage, DRAFT)?;
        let name = range_file_name(HeightRange::new(first, self.at.height + 1));
        storage.rename(DRAFT, &name).at(storage, &name)?;
        storage.sync_names().at(storage, &name)?;
        self.totals.files += 1;
        self.totals.file_bytes += storage.len(&name).at(storage, &name)?;
        Ok(())
    }

    /// Whether it can be made durable: no range is under way.
    pub(crate) fn is_between_ranges(&self) -> bool {
        self.range.is_none()
    }

    /// Moves the store to the last block. Files up to there are durable.
    pub(crate) fn store(&mut self) -> Result<(), SyncError> {
        if self.stored == self.at.height {
            return Ok(());
        }
        let write = ForestWrite {
            block: self.at,
            roots: self.forest.roots(),
            leaves: self.places.above(self.stored),
            changes: &|each| self.forest.changes(each),
        };
        self.store.write(&write)?;
        self.forest.set_stored();
        self.stored = self.at.height;
        Ok(())
    }

    /// Ends the last range, and makes all durable.
    pub(crate) fn finish(&mut self) -> Result<(), SyncError> {
        self.end_range()?;
        self.store()
    }

    /// What came of it.
    pub(crate) fn made(&self) -> ProofsMade {
        let (totals, roots) = (self.totals.clone(), self.forest.roots().clone());
        ProofsMade { from: self.from, totals, roots }
    }

    fn failed(&self, error: ForestError<StoreError>) -> SyncError {
        match error {
            ForestError::Read { source, .. } => source.into(),
            other => self.unusable(&other.to_string()),
        }
    }

    fn unusable(&self, what: &str) -> SyncError {
        BridgeError::Forest { forest: self.store.describe(), what: what.to_owned() }.into()
    }
}
