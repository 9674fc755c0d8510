//! Starts a [`Bridge`]: opens the forest, and checks the files of earlier starts.

use super::{Bridge, BridgeOptions, DRAFT, ProofIndex, SharedPages};
use crate::bridge_error::BridgeError;
use crate::forest_store::{ForestState, ForestStore};
use crate::proof_files::{ProofsTotals, open, proofs_files};
use apus_chain::{HeaderChain, Height, HeightRange, KnownBlock, Network};
use apus_storage::Storage;
use apus_sync::SyncError;
use apus_sync::error::StorageResult;
use apus_sync::folder::room;
use apus_sync::numbers;
use apus_sync::progress::{DiskUse, Event};
use apus_sync::request::{Request, RunEnv};
use apus_sync::source::ChainSource;
use apus_sync::warning::Warning;
use apus_utreexo::Forest;
use std::sync::Arc;

impl<'a> Bridge<'a> {
    /// Resumes where an earlier start left the forest, or begins a new one, for the blocks of a chain up to
    /// `end`. If no job has `begun` in the work folder and there is no forest, there must be no files,
    /// either.
    pub(super) fn start(
        request: &Request<'_>,
        index: &'a ProofIndex,
        chain: &HeaderChain,
        end: Height,
        begun: bool,
    ) -> Result<Self, SyncError> {
        let options = &index.options;
        let store = (options.store)()?;
        let state = store.state()?;
        let storage = &*options.storage;
        let has_forest = state.is_some();
        let genesis = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
        let ForestState { block: at, roots, places } =
            state.unwrap_or_else(|| ForestState { block: genesis, ..ForestState::default() });
        expect_on_chain(&*store, chain, at, end)?;
        let network = request.env.params.network;
        let files = ProofFileList { storage, network, chain, at: at.height };
        let gone = files.check(&*store, has_forest || begun)?;
        for name in &gone {
            storage.remove(name).at(storage, name)?;
        }
        storage.remove(DRAFT).at(storage, DRAFT)?;
        storage.sync_names().at(storage, "")?;
        let bytes_max = usize::try_from(options.memory_bytes).unwrap_or(usize::MAX);
        Ok(Self {
            storage,
            network,
            every: options.every.max(1),
            forest: Forest::open(SharedPages(Arc::clone(&store)), roots, bytes_max),
            store,
            places,
            at,
            stored: at.height,
            range: None,
            from: at.height + 1,
            totals: ProofsTotals::default(),
            result: &index.made,
        })
    }
}

/// Checks that the forest is at a block of this chain, not above `end`.
fn expect_on_chain(
    store: &dyn ForestStore,
    chain: &HeaderChain,
    at: KnownBlock,
    end: Height,
) -> Result<(), BridgeError> {
    let forest = store.describe();
    let beyond = |why| Err(BridgeError::Beyond { at: at.height, why, forest: forest.clone() });
    match chain.hash(at.height) {
        Some(hash) if *hash != at.hash => beyond("of another chain"),
        Some(_) if at.height <= end => Ok(()),
        _ => beyond("above the stop height"),
    }
}

/// The files of earlier starts.
struct ProofFileList<'a> {
    storage: &'a dyn Storage,
    network: Network,
    chain: &'a HeaderChain,
    /// Height of the forest.
    at: Height,
}

impl ProofFileList<'_> {
    /// Checks the files against the chain. Returns the names of files above the forest, which will be made
    /// again.
    fn check(&self, store: &dyn ForestStore, begun: bool) -> Result<Vec<String>, SyncError> {
        let (mut next, mut gone) = (1, Vec::new());
        for (range, name) in proofs_files(self.storage)? {
            let is_above = range.end > self.at + 1;
            match self.expect_of_chain(range, &name) {
                // A power failure may leave the last file incomplete.
                Err(error) if is_above && begun && is_of_file(&error) => {}
                other => other?,
            }
            if is_above && !begun {
                return Err(BridgeError::There { file: self.storage.describe(&name) }.into());
            }
            if is_above {
                gone.push(name);
            } else if range.start == next {
                next = range.end;
            }
        }
        if next != self.at + 1 {
            let (folder, forest) = (self.storage.describe(""), store.describe());
            return Err(BridgeError::Lacking { folder, at: self.at, end: next, forest }.into());
        }
        Ok(gone)
    }

    /// Checks that a file covers blocks of the chain.
    fn expect_of_chain(&self, range: HeightRange, name: &str) -> Result<(), SyncError> {
        let (file, described) = (open(self.storage, name)?, self.storage.describe(name));
        let magic = file.head().network;
        if magic != self.network.magic() {
            let found = match Network::from_magic(magic) {
                Some(network) => format!("the {network} chain"),
                None => "an unknown chain".to_owned(),
            };
            let wanted = self.network;
            return Err(BridgeError::Network { file: described, found, wanted }.into());
        }
        let mut blocks = range.heights().zip(file.blocks());
        let other = blocks.find(|(height, block)| self.chain.hash(*height) != Some(&block.hash));
        match other {
            Some((height, _)) => Err(BridgeError::Chain { file: described, height }.into()),
            None => Ok(()),
        }
    }
}

/// Whether an error is about the content of a file.
fn is_of_file(error: &SyncError) -> bool {
    matches!(error.downcast(), Some(BridgeError::File { .. }))
}

// The disk space that proofs need. It is reported early, because a job takes hours.

/// Disk space of the forest in the work folder, and of the leaf numbers in records, in percent of the blocks'
/// bytes: 64 bytes for each live leaf, twice while its store merges, and 4 bytes for each coin three times.
/// That holds if a quarter of the coins live; on the main chain fewer do.
pub(super) const DISK_PERCENT: u64 = 25;

/// Disk space of proof files, in percent of the blocks' bytes: 78 were measured, in a forest of about six
/// million leaves. Each additional hash for a coin adds 32 bytes, and coins spent together share hashes.
const FILES_PERCENT: u64 = 80;

/// The name of the files in disk estimates.
const DISK: DiskUse = DiskUse::Extra { word: "proofs", what: "proof files" };

/// Reports how much disk space the files need up to the block at `end`, and warns if less is free. The exact
/// size depends on the coins that blocks spend, so this is never an error.
pub(super) fn report_disk(
    env: &RunEnv<'_>,
    options: &BridgeOptions,
    dir: &dyn ChainSource,
    end: Height,
) -> Result<(), SyncError> {
    if !options.folder.is_dir() {
        return Ok(());
    }
    let files = proofs_files(&*options.storage)?;
    let first = files.last().map_or(1, |(range, _)| range.end);
    let block_bytes: u64 = (first..=end).map(|height| dir.block_bytes(height)).sum();
    let (bytes, free) = (block_bytes / 100 * FILES_PERCENT, room(&options.folder)?);
    env.observer.event(Event::DiskNeeded { what: DISK, bytes, free });
    if free < bytes {
        let (needed, free) = (numbers::bytes(bytes), numbers::bytes(free));
        let warning = format!(
            "not enough disk, perhaps: the proofs in {} may need {needed}, and {free} is free. Choose one: free some \
             space, or stop at a lower height (--stopatheight). If the disk gets full, finished files are kept: free \
             some space, then rerun the same command to resume",
            options.folder.display()
        );
        env.observer.event(Event::Warning(Warning::Extra(warning)));
    }
    Ok(())
}
