//! What a [`Bridge`] finds when it starts: the forest, and files of earlier starts.

use super::{Bridge, BridgeOptions, BridgeRecord, DRAFT, ProofIndex};
use crate::bridge_error::BridgeError;
use crate::forest_store::{ForestState, ForestStore};
use crate::proof_files::{ProofsTotals, open, proofs_files};
use apus_chain::{HeaderChain, Height, HeightRange, KnownBlock, Network};
use apus_storage::Storage;
use apus_sync::SyncError;
use apus_sync::error::StorageResult;
use apus_sync::folder::room;
use apus_sync::progress::{DiskUse, Event};
use apus_sync::request::{Request, RunEnv};
use apus_sync::source::ChainSource;
use apus_sync::warning::Warning;
use apus_utreexo::Forest;
use std::sync::Arc;

impl<'a> Bridge<'a> {
    /// Goes on where an earlier start left the forest, or begins one, for the blocks of a chain up to `end`. If no run
    /// has `begun` in the work folder, and it has no forest, then there must be no files.
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
        let gone = files.look_at(&*store, has_forest || begun)?;
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
            forest: Forest::open(BridgeRecord(Arc::clone(&store)), roots, bytes_max),
            store,
            places,
            at,
            stored: at.height,
            range: None,
            from: at.height + 1,
            totals: ProofsTotals::default(),
            told: &index.made,
        })
    }
}

/// The forest must be at a block of the chain that the run goes along.
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
        _ => beyond("above the last one of this run"),
    }
}

/// Files that earlier starts left.
struct ProofFileList<'a> {
    storage: &'a dyn Storage,
    network: Network,
    chain: &'a HeaderChain,
    /// Where the forest is.
    at: Height,
}

impl ProofFileList<'_> {
    /// Holds them against the chain. Those above the forest, which are to be made again.
    fn look_at(&self, store: &dyn ForestStore, begun: bool) -> Result<Vec<String>, SyncError> {
        let (mut next, mut gone) = (1, Vec::new());
        for (range, name) in proofs_files(self.storage)? {
            let is_above = range.end > self.at + 1;
            match self.expect_of_chain(range, &name) {
                // What was under way when the power went need not be whole.
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

    /// A file must be about blocks of the chain.
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

/// Whether an error is about what a file holds.
fn is_of_file(error: &SyncError) -> bool {
    matches!(error.downcast(), Some(BridgeError::File { .. }))
}

// How much disk proofs take, which is said before hours of work.

/// What the forest takes in the work folder, and the numbers of leaves that records carry, in percent of the blocks'
/// bytes: 64 bytes for each leaf that lives, twice while its store merges, and 4 bytes for each coin three times. That is
/// where a quarter of the coins live; on the main chain it is less.
pub(super) const DISK_PERCENT: u64 = 25;

/// What files of proofs take, in percent of the blocks' bytes: 78 were measured, in a forest of some six million leaves.
/// Each hash more that a coin needs adds 32 bytes, and what is spent together shares them.
const FILES_PERCENT: u64 = 80;

/// What the files are called where disk is asked for.
const DISK: DiskUse = DiskUse::Extra { word: "proofs", what: "files of proofs" };

/// Says how much disk the files take that are to be made, up to the block at `end`, and warns where that is not free.
/// How much it really is depends on what blocks spend, so no run is refused.
pub(super) fn tell_disk(
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
        let warning = format!(
            "{} is on a disk with {free} bytes free, and proofs of so many blocks may take {bytes}: make room, or end \
             the run lower (--stopatheight). What is made stays, and a run that the disk stops goes on when there is \
             room",
            options.folder.display()
        );
        env.observer.event(Event::Warning(Warning::Extra(warning)));
    }
    Ok(())
}
