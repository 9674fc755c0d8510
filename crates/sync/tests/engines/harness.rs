//! The test harness: jobs over block files, with their folders and expected results.

use crate::world::{Files, HINTS, NOW, PLACED, PlacedFile, SET, Truth, files};
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint, Params};
use apus_engine::script::{SignatureMode, Signatures};
use apus_engine::utxo::store::{EachCoin, MemoryStore};
use apus_engine::utxo::{CoinBytes, CoinsStore, Flush, StoreError};
use apus_storage::Storage;
use apus_sync::chain_index::ChainIndex;
use apus_sync::commitment::SetCommitment;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{
    ChainEngine, ConnectOptions, DatadirBlocks, Engine, EngineTask, FolderKind, FolderOutput,
    HintedTask, HintedValidity, HintsInput, Machines, MergeSyncTask, Observer, Outcome, Output,
    OutputKind, Request, RunEnv, ScratchLimits, SilentObserver, Source, SpentSource, Stop,
    SyncError, Task, UseIndex,
};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::oracle::{self, BitOrder};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use bitcoin::hashes::Hash;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// All scripts of all tests run twice: the checks of signatures must not depend on who proves them.
static SIGNATURES: LazyLock<Arc<Signatures>> =
    LazyLock::new(|| Arc::new(Signatures::new(SignatureMode::Shadow)));

/// Number of blocks above the end of a job: two weeks of work under [`assuming`].
pub(crate) const ABOVE: usize = 4;

/// Returns a chain's rules with blocks so far apart that two weeks are only a few blocks. So scripts of
/// assumed-valid blocks need not be run, which not every build can do. Difficulty is unchanged.
pub(crate) fn assuming(network: Network) -> &'static Params {
    let week = NonZeroU32::new(60 * 60 * 24 * 7).unwrap();
    Box::leak(Box::new(Params {
        pow_target_spacing_seconds: week,
        pow_target_timespan_seconds: week.checked_mul(NonZeroU32::new(2016).unwrap()).unwrap(),
        pow_no_retargeting: true,
        minimum_chain_work: 0,
        ..Params::of(network).clone()
    }))
}

pub(crate) fn hash_of(block: &Block) -> BlockHash {
    BlockHash(block.block_hash().to_byte_array())
}

/// Block files with a chain that ends some blocks above the height where jobs end.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    /// The chain up to where jobs end.
    pub(crate) chain: Vec<Block>,
    pub(crate) truth: Truth,
}

impl World {
    /// Lays out `chain` with `layout`, which also gets the blocks above.
    pub(crate) fn laid_out(chain: &[Block], layout: impl FnOnce(&[Block]) -> BlockFiles) -> Self {
        let chain = chain.to_vec();
        let (folder, truth) = (tempfile::tempdir().unwrap(), Truth::of(&chain));
        let mut above = ChainBuilder::new(u64::from(truth.stop));
        chain[1..].iter().for_each(|block| above.add(block.clone()));
        above.empty_blocks(ABOVE);
        layout(&above.blocks()).write(&folder.path().join("blocks"));
        Self { folder, chain, truth }
    }

    pub(crate) fn of(chain: &[Block]) -> Self {
        Self::laid_out(chain, |blocks| {
            let mut files = BlockFiles::regtest().key([3, 1, 4, 1, 5, 9, 2, 6]);
            files = files.file_bytes_max(20_000).preallocate(4_096);
            files.blocks(blocks);
            files
        })
    }

    pub(crate) fn small(seed: u64) -> Self {
        Self::of(&random_chain(seed).blocks())
    }

    pub(crate) fn blocksdir(&self) -> PathBuf {
        self.folder.path().join("blocks")
    }

    pub(crate) fn job(&self) -> Job {
        Job {
            params: assuming(Network::Regtest),
            blocksdir: self.blocksdir(),
            hints: None,
            engine: Engine::Utxo,
            assume_valid: self.chain.last().map(hash_of),
            leave_witnesses: false,
            hinted_validity: HintedValidity::Anchored,
            stop: Stop::At(self.truth.stop),
            threads: 2,
            prevout_threads: 2,
            cache_bytes: 1 << 24,
            memory_bytes: 16 << 20,
            checkpoint_interval: Duration::ZERO,
            folders: Vec::new(),
            with_placed: true,
            commitment: None,
            index: None,
            outside: None,
            spent: None,
            segment_bytes: 5_000,
            batch_segments: None,
            machines: None,
            beyond: None,
        }
    }

    /// Makes hints for the chain up to `stop`.
    pub(crate) fn hints(&self, stop: u32) -> HintsInput {
        let part = &self.chain[..=stop as usize];
        let hints = apus_testkit::chain::hints(part, &apus_testkit::chain::utxo_set(part));
        let path = self.folder.path().join(format!("{stop}.hints"));
        std::fs::write(&path, oracle::hints_file(&hints, BitOrder::Msb)).unwrap();
        crate::world::hintsfile(&path)
    }
}

/// Makes a random chain with spends.
pub(crate) fn random_chain(seed: u64) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(98);
    builder.random_blocks(22, Shape::default());
    builder
}

/// The input of a job, without its folders.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) params: &'static Params,
    pub(crate) blocksdir: PathBuf,
    pub(crate) hints: Option<HintsInput>,
    pub(crate) engine: Engine,
    pub(crate) assume_valid: Option<BlockHash>,
    pub(crate) leave_witnesses: bool,
    pub(crate) hinted_validity: HintedValidity,
    pub(crate) stop: Stop,
    pub(crate) threads: usize,
    pub(crate) prevout_threads: usize,
    pub(crate) cache_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) checkpoint_interval: Duration,
    pub(crate) folders: Vec<FolderOutput>,
    /// Whether to write the list of hashes.
    pub(crate) with_placed: bool,
    /// Makes a different commitment instead.
    pub(crate) commitment: Option<Arc<NewCommitment>>,
    pub(crate) index: Option<Arc<dyn ChainIndex + Send + Sync>>,
    /// Makes an engine from another crate, which assumes scripts up to a block valid.
    pub(crate) outside: Option<Arc<NewEngine>>,
    /// The source of spent coins for blocks under hints, if it is not undo data.
    pub(crate) spent: Option<Arc<dyn SpentSource + Send + Sync>>,
    pub(crate) segment_bytes: u64,
    /// The number of segments in each batch of mergesync; `None` for one batch.
    pub(crate) batch_segments: Option<usize>,
    /// Other machines, if they share the job.
    pub(crate) machines: Option<Arc<dyn Machines + Send + Sync>>,
    /// The name of the store, if it outlives the work folder.
    pub(crate) beyond: Option<String>,
}

/// The engines that process all blocks of files without hints and keep a set, for tests that every such
/// engine must pass. [`Job::task`] says what a job does with them.
#[allow(dead_code, reason = "not every test that includes this file uses them")]
pub(crate) const ENGINES: [Engine; 2] = [Engine::Utxo, Engine::MergeSync];

/// Makes a commitment that goes to a folder.
pub(crate) type NewCommitment = dyn Fn(&Arc<dyn Storage>) -> Box<dyn SetCommitment> + Send + Sync;

/// Makes an engine.
pub(crate) type NewEngine = dyn Fn(Option<BlockHash>) -> Box<dyn ChainEngine> + Send + Sync;

/// The folders of a job and what is in them.
pub(crate) struct Place {
    pub(crate) work: CrashStorage,
    pub(crate) out: CrashStorage,
    pub(crate) store: Arc<dyn CoinsStore>,
    pub(crate) hints_folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(Arc::new(MemoryStore::new()))
    }

    pub(crate) fn with(store: Arc<dyn CoinsStore>) -> Self {
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        Self { work, out, store, hints_folder: tempfile::tempdir().unwrap() }
    }

    /// Returns the height of the coins.
    pub(crate) fn height(&self) -> Option<u32> {
        self.store.tip().unwrap().map(|tip| tip.height)
    }

    pub(crate) fn output_files(&self) -> Files {
        files(&self.out)
    }
}

impl Job {
    /// Also writes a data directory in `folder`.
    pub(crate) fn keeping(self, folder: &Path) -> Self {
        let kind = FolderKind::Datadir(DatadirBlocks::All);
        let output = FolderOutput { kind, path: folder.join("node"), replace: false };
        Self { folders: vec![output], ..self }
    }

    pub(crate) fn run(&self, place: &Place) -> Result<Outcome, SyncError> {
        self.run_watched(place, &SilentObserver, &AtomicBool::new(false))
    }

    pub(crate) fn run_watched(
        &self,
        place: &Place,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Outcome, SyncError> {
        let open = || Ok(Arc::clone(&place.store));
        self.run_in(&place.work, &place.out, &open, place.hints_folder.path(), observer, interrupt)
    }

    /// Runs a start on these disks.
    pub(crate) fn run_on(
        &self,
        work: &dyn Storage,
        out: &Arc<dyn Storage>,
        place: &Place,
    ) -> Result<Outcome, SyncError> {
        let open = || Ok(Arc::clone(&place.store));
        let (folder, never) = (place.hints_folder.path(), AtomicBool::new(false));
        self.run_with(work, out, &open, folder, &SilentObserver, &never)
    }

    pub(crate) fn run_in(
        &self,
        work: &dyn Storage,
        out: &CrashStorage,
        open: &apus_sync::OpenStore<'_>,
        hints_folder: &Path,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Outcome, SyncError> {
        let out: Arc<dyn Storage> = Arc::new(out.clone());
        self.run_with(work, &out, open, hints_folder, observer, interrupt)
    }

    fn run_with(
        &self,
        work: &dyn Storage,
        out: &Arc<dyn Storage>,
        open: &apus_sync::OpenStore<'_>,
        hints_folder: &Path,
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Outcome, SyncError> {
        let output =
            |kind, name: &str| Output { kind, storage: Arc::clone(out), name: name.to_owned() };
        let outputs = [output(OutputKind::Snapshot, SET), output(OutputKind::Hints, HINTS)];
        let placed = PlacedFile::new(&**out, PLACED).if_wanted(self.with_placed);
        let other = self.commitment.as_ref().map(|new| new(out));
        let commitment = other.as_deref().unwrap_or(&placed);
        let connect = ConnectOptions {
            assume_valid: self.assume_valid,
            prevout_threads: self.prevout_threads,
            cache_bytes: self.cache_bytes,
            store: open,
            beyond: self.beyond.clone(),
            hints_folder: hints_folder.to_owned(),
            positions: hints_folder.join("positions"),
        };
        let outside = self.outside.as_ref().map(|new| new(self.assume_valid));
        let request = Request {
            source: Source::Files {
                blocksdir: self.blocksdir.clone().into(),
                use_index: UseIndex::IfPresent,
            },
            task: match &outside {
                Some(engine) => Task::By(EngineTask { engine: &**engine, connect: None }),
                None => self.task(connect),
            },
            leave_witnesses: self.assume_valid.filter(|_| self.leave_witnesses),
            stop: self.stop,
            follow: false,
            commitment: Some(commitment),
            // An engine without a set only makes a commitment.
            outputs: if outside.is_some() { &[] } else { &outputs },
            folders: &self.folders,
            sets: &[],
            muhash: true,
            env: RunEnv {
                params: self.params,
                threads: self.threads,
                memory_bytes: self.memory_bytes,
                segment_bytes: Some(self.segment_bytes),
                scratch: self
                    .batch_segments
                    .map(|segments| ScratchLimits { bytes: u64::MAX, segments: Some(segments) }),
                checkpoint_interval: self.checkpoint_interval,
                now: NOW,
                signatures: &SIGNATURES,
                verifier: None,
                workdir: work,
                is_shared: false,
                given: None,
                observer,
                interrupt,
            },
        };
        match &self.machines {
            Some(machines) => apus_sync::run_shared(&request, &**machines),
            None => apus_sync::run(&request),
        }
    }

    /// Returns the job's task.
    fn task<'a>(&'a self, connect: ConnectOptions<'a>) -> Task<'a> {
        if let Some(hints) = self.hints.clone() {
            let (aggregate, validity) = (AggregateKind::Sha256, self.hinted_validity);
            return Task::Hinted(HintedTask {
                hints,
                aggregate,
                validity,
                spent: self.spent.as_ref().map(|spent| &**spent as &dyn SpentSource),
                connect: Some(connect),
            });
        }
        match self.engine {
            Engine::Utxo => Task::InOrder(connect),
            Engine::MergeSync => {
                let index = self.index.as_ref().map(|index| &**index as &dyn ChainIndex);
                Task::MergeSync(MergeSyncTask { connect, index })
            }
            Engine::Outside(name) => unreachable!("nothing makes {name}"),
        }
    }

    /// Runs a start that must produce the right set.
    pub(crate) fn expect(&self, truth: &Truth, place: &Place) -> Outcome {
        let outcome = self.run(place).unwrap_or_else(|error| panic!("{error}"));
        truth.check(&outcome, &place.out);
        outcome
    }

    /// Runs a start that must fail and leave no output.
    pub(crate) fn refused(&self, place: &Place) -> SyncError {
        let error = self.run(place).unwrap_err();
        assert!(place.output_files().is_empty(), "output in spite of: {error}");
        error
    }
}

/// A call of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Get,
    /// A write, before and after it is done.
    Write,
    Written,
    ForEach,
}

type Hook = dyn Fn(Call, u64) -> Result<(), StoreError> + Send + Sync;

/// A wrapper of a store whose hook sees each call and can make it fail.
pub(crate) struct Hooked {
    inner: Arc<dyn CoinsStore>,
    counts: [AtomicU64; 4],
    hook: Box<Hook>,
}

impl Hooked {
    /// Wraps `store`. `hook` gets each call and the number of earlier calls of its kind.
    pub(crate) fn over(
        inner: &Arc<dyn CoinsStore>,
        hook: impl Fn(Call, u64) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Arc<dyn CoinsStore> {
        let (inner, hook) = (Arc::clone(inner), Box::new(hook));
        Arc::new(Self { inner, counts: Default::default(), hook })
    }

    fn call(&self, call: Call) -> Result<(), StoreError> {
        let before = self.counts[call as usize].fetch_add(1, Ordering::SeqCst);
        (self.hook)(call, before)
    }
}

pub(crate) fn store_error() -> StoreError {
    StoreError::Io { place: "the store".to_owned(), error: "made to fail".to_owned() }
}

impl CoinsStore for Hooked {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.inner.tip()
    }
    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.call(Call::Get)?;
        self.inner.get(outpoint)
    }
    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        self.call(Call::Write)?;
        self.inner.write(flush)?;
        self.call(Call::Written)
    }
    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.undo(block)
    }
    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.call(Call::ForEach)?;
        self.inner.for_each(each)
    }
}
