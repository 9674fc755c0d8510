//! `Bridge`: builds the forest of all coins block by block, and writes the proofs of the coins that each
//! block spends to files of block ranges.
//!
//! It receives validated blocks in ascending height, with the leaves that each spends and adds, and does only
//! the work that depends on the blocks below. Proofs go into a draft. At the end of a range the draft is made
//! durable and gets its name; the forest's store moves to a block only after that. So there is a file for
//! every block up to the forest's block, and everything above it is rebuilt after a crash.
//!
//! Ranges end at multiples of a height that the caller gives, so every start produces the same files. If
//! changes of the forest fill its memory earlier, the range ends early, and the next one ends at the
//! multiple.

mod start;

use crate::bridge_error::BridgeError;
use crate::forest_store::{ForestStore, ForestWrite};
use crate::leaf_change::BlockLeafChange;
use crate::proof_files::{ProofsMade, ProofsTotals};
use apus_chain::{Height, HeightRange, KnownBlock, Network};
use apus_engine::utxo::StoreError;
use apus_storage::{Storage, StorageFile};
use apus_sync::SyncError;
use apus_sync::chain_index::{BlockEntry, ChainIndex, IndexWriter};
use apus_sync::commitment::BlockPlaces;
use apus_sync::engines::mergesync::{IndexedCoin, SeenBlock};
use apus_sync::error::StorageResult;
use apus_sync::request::Request;
use apus_sync::source::ChainSource;
use apus_utreexo::{Forest, ForestError, PageId, Pages, RangeHead, RangeWriter, range_file_name};
use parking_lot::Mutex;
use std::io::{BufWriter, IntoInnerError};
use std::path::PathBuf;
use std::sync::Arc;

/// Name of a file until its range ends.
const DRAFT: &str = "proofs.incomplete";

/// Opens the forest of a job.
pub type OpenForest = dyn Fn() -> Result<Arc<dyn ForestStore>, StoreError> + Send + Sync;

/// Options for making proofs.
pub struct BridgeOptions {
    /// The folder of the proof files.
    pub storage: Arc<dyn Storage>,
    /// The same folder as a path, to query free disk space; not queried if it does not exist.
    pub folder: PathBuf,
    /// Files end at heights that are multiples of this.
    pub every: u32,
    /// Opens the forest, which remains when the progress files are deleted.
    pub store: Box<OpenForest>,
    /// Memory for the forest, in bytes.
    pub memory_bytes: u64,
}

/// An index of the chain that makes a mergesync job write proofs.
pub struct ProofIndex {
    options: BridgeOptions,
    made: Mutex<Option<ProofsMade>>,
}

impl ProofIndex {
    /// Creates the index with these options.
    pub fn new(options: BridgeOptions) -> Self {
        Self { options, made: Mutex::default() }
    }

    /// The result, once a job has ended.
    pub fn made(&self) -> Option<ProofsMade> {
        self.made.lock().clone()
    }
}

impl ChainIndex for ProofIndex {
    fn making(&self) -> &'static str {
        "making proofs"
    }

    fn open<'i>(
        &'i self,
        request: &Request<'_>,
        source: &dyn ChainSource,
        end: Height,
        begun: bool,
    ) -> Result<Box<dyn IndexWriter + 'i>, SyncError> {
        let bridge = Bridge::start(request, self, source.chain(), end, begun)?;
        bridge.report();
        Ok(Box::new(bridge))
    }

    fn of_block(&self, block: &SeenBlock<'_>, coins: &[IndexedCoin<'_>]) -> Option<BlockEntry> {
        let change = BlockLeafChange::of(block, coins)?;
        Some(BlockEntry { memory_bytes: change.memory_bytes(), value: Box::new(change) })
    }

    fn disk_percent(&self) -> u64 {
        start::DISK_PERCENT
    }

    fn tell_disk(
        &self,
        request: &Request<'_>,
        source: &dyn ChainSource,
        end: Height,
    ) -> Result<(), SyncError> {
        start::report_disk(&request.env, &self.options, source, end)
    }
}

/// Pages of a shared store.
struct SharedPages(Arc<dyn ForestStore>);

impl Pages for SharedPages {
    type Error = StoreError;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.0.read(page, out)
    }
}

/// Builds the forest and writes the proofs, block by block.
struct Bridge<'a> {
    storage: &'a dyn Storage,
    network: Network,
    every: u32,
    store: Arc<dyn ForestStore>,
    forest: Forest<SharedPages>,
    places: BlockPlaces,
    /// The last block in the forest, and the height that the store is at.
    at: KnownBlock,
    stored: Height,
    range: Option<Range>,
    from: Height,
    totals: ProofsTotals,
    /// Receives the result so far.
    result: &'a Mutex<Option<ProofsMade>>,
}

/// A range in progress.
struct Range {
    first: Height,
    writer: RangeWriter<BufWriter<Box<dyn StorageFile>>>,
}

impl IndexWriter for Bridge<'_> {
    fn best_block(&self) -> Height {
        self.at.height
    }

    fn append(&mut self, block: KnownBlock, entry: BlockEntry) -> Result<(), SyncError> {
        let leaves = entry.value.downcast::<BlockLeafChange>();
        let leaves = leaves.unwrap_or_else(|_| unreachable!("no other index made it"));
        if block.height <= self.at.height {
            return Ok(());
        }
        assert_eq!(block.height, self.at.height + 1, "blocks come in ascending height");
        let spent = leaves.spent.iter().map(|leaf| self.places.of(leaf.height, leaf.number));
        let spent: Option<Vec<u64>> = spent.collect();
        let spent =
            spent.ok_or_else(|| self.unusable("a block spends a coin that is not a leaf"))?;
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
        if is_full { self.commit() } else { Ok(()) }
    }

    /// Whether no range is in progress.
    fn can_commit(&self) -> bool {
        self.range.is_none()
    }

    /// Moves the store to the last block. The files up to there are already durable.
    fn commit(&mut self) -> Result<(), SyncError> {
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

    /// Ends the last range and makes everything durable.
    fn finish(&mut self) -> Result<(), SyncError> {
        self.end_range()?;
        self.commit()?;
        self.report();
        Ok(())
    }
}

impl Bridge<'_> {
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

    /// Completes the file of the range in progress, if any.
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

    /// Publishes the result so far.
    fn report(&self) {
        let (totals, roots) = (self.totals.clone(), self.forest.roots().clone());
        let made = ProofsMade { from: self.from, totals, roots };
        *self.result.lock() = Some(made);
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
