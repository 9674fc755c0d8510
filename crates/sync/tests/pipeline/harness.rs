//! The test harness: a chain on disk, its expected results, and syncs over it.

use apus_chain::{Network, Params};
use apus_engine::script::Signatures;
use apus_storage::{Storage, StorageFile};
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::hints::HintsOptions;
use apus_sync::{
    Event, HintedTask, HintedValidity, HintsInput, Observer, Outcome, Output, OutputKind, Request,
    RunEnv, SilentObserver, Source, Stop, SyncError, Task, UseIndex,
};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape, UtxoSet, hints, utxo_set};
use apus_testkit::oracle::{self, BitOrder};
use apus_testkit::storage::{CrashStorage, FaultStorage, Operation};
use bitcoin::Block;
pub(crate) use placed::PlacedFile;
use placed::placed;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[path = "placed.rs"]
mod placed;

/// A time later than all blocks of all tests.
pub(crate) const NOW: i64 = 4_000_000_000;

/// Names of the outputs.
pub(crate) const SET: &str = "set.dat";
pub(crate) const HINTS: &str = "set.hints";
pub(crate) const PLACED: &str = "set.placed";

/// A folder's files.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// The expected result of a sync.
#[derive(Debug, Clone)]
pub(crate) struct Truth {
    pub(crate) stop: u32,
    pub(crate) stop_hash: String,
    pub(crate) coins: u64,
    pub(crate) amount: u64,
    pub(crate) hash_serialized_3: String,
    pub(crate) muhash: String,
    pub(crate) snapshot: Vec<u8>,
    /// The hintsfile that a sync writes, in the bit order of BIP-456.
    pub(crate) hints: Vec<u8>,
    /// The commitment to the set: its file's name, and the file.
    pub(crate) commitment: (&'static str, Vec<u8>),
}

impl Truth {
    /// Computes the expected results for a regtest chain from the genesis block on.
    pub(crate) fn of(chain: &[Block]) -> Self {
        let coins = utxo_set(chain);
        let tip = chain.last().unwrap().block_hash();
        Self {
            stop: chain.len() as u32 - 1,
            stop_hash: tip.to_string(),
            coins: coins.len() as u64,
            amount: coins.values().map(|coin| coin.output.value.to_sat()).sum(),
            hash_serialized_3: oracle::hash_serialized_3(&coins),
            muhash: oracle::muhash(&coins),
            snapshot: snapshot(chain, &coins),
            hints: oracle::hints_file(&hints(chain, &coins), BitOrder::Msb),
            commitment: (PLACED, placed(chain)),
        }
    }

    /// Checks an outcome and its files.
    pub(crate) fn check(&self, outcome: &Outcome, out: &dyn Storage) {
        assert_eq!(outcome.chain.stop.height, self.stop);
        assert_eq!(outcome.chain.stop.hash.to_string(), self.stop_hash);
        let (commitment, _) = self.commitment;
        let mut names: &[&str] = &[SET, HINTS, commitment];
        if outcome.set.hashes.is_none() {
            // This engine keeps no set, so it writes only the commitment.
            names = &names[2..];
        } else {
            assert_eq!(display(&outcome.set.hash_serialized_3().unwrap()), self.hash_serialized_3);
            assert_eq!(display(&outcome.set.muhash().unwrap()), self.muhash);
        }
        assert_eq!(outcome.set.totals.coins, self.coins);
        assert_eq!(outcome.set.totals.amount, u128::from(self.amount));
        let files = files(out);
        assert_eq!(files.keys().collect::<Vec<_>>(), names, "drafts are left");
        self.check_files(&files);
    }

    /// Checks all outputs that exist.
    pub(crate) fn check_files(&self, files: &Files) {
        let right = |name: &str, bytes: &Vec<u8>| match files.get(name) {
            Some(found) => found == bytes,
            None => true,
        };
        assert!(right(SET, &self.snapshot), "a wrong snapshot under its final name");
        assert!(right(HINTS, &self.hints), "wrong hints under their final name");
        let (name, bytes) = &self.commitment;
        assert!(right(name, bytes), "a wrong commitment under its final name");
    }
}

/// Makes the snapshot of `coins` after a regtest chain.
pub(crate) fn snapshot(chain: &[Block], coins: &UtxoSet) -> Vec<u8> {
    oracle::snapshot(Network::Regtest.magic(), chain.last().unwrap().block_hash(), coins)
}

/// Formats a hash in display order: hex, with the bytes reversed.
pub(crate) fn display(hash: &[u8; 32]) -> String {
    hash.iter().rev().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads all files of a folder.
pub(crate) fn files(storage: &dyn Storage) -> Files {
    let read = |name: String| {
        let mut bytes = Vec::new();
        storage.open(&name, 0).unwrap().read_to_end(&mut bytes).unwrap();
        (name, bytes)
    };
    storage.names().unwrap().into_iter().map(read).collect()
}

/// Block files in their own folder, with hints of every kind next to them.
pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) chain: Vec<Block>,
    pub(crate) truth: Truth,
}

impl World {
    /// Makes files of a chain from the genesis block on, laid out by `layout`.
    pub(crate) fn laid_out(chain: Vec<Block>, layout: impl FnOnce(&[Block]) -> BlockFiles) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let truth = Truth::of(&chain);
        let world = Self { folder, chain, truth };
        layout(&world.chain).write(&world.blocksdir());
        world.file("snapshot", &world.truth.snapshot);
        world.file("msb.hints", &world.truth.hints);
        let hints = hints(&world.chain, &utxo_set(&world.chain));
        world.file("lsb.hints", &oracle::hints_file(&hints, BitOrder::Lsb));
        world
    }

    /// Lays out the blocks as most nodes do: in order, in obfuscated files with zeros at their ends.
    pub(crate) fn of(chain: Vec<Block>) -> Self {
        Self::laid_out(chain, |blocks| {
            let mut files = BlockFiles::regtest().key([0x5a, 1, 2, 3, 0, 0xff, 6, 7]);
            files = files.file_bytes_max(20_000).preallocate(4_096);
            files.blocks(blocks);
            files
        })
    }

    /// Makes a small chain with spends.
    pub(crate) fn small(seed: u64) -> Self {
        Self::of(small_chain(seed).blocks())
    }

    pub(crate) fn blocksdir(&self) -> PathBuf {
        self.folder.path().join("blocks")
    }

    /// Writes a file next to the blocks.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Makes a job with the hintsfile, in about five segments on one thread.
    pub(crate) fn job(&self) -> Job {
        Job {
            params: Params::of(Network::Regtest),
            blocksdir: self.blocksdir(),
            hints: self.hints("msb.hints"),
            aggregate: AggregateKind::Sha256,
            stop_height: None,
            threads: 1,
            memory_bytes: 16 << 20,
            segment_bytes: Some(self.chain.iter().map(|b| b.total_size() as u64).sum::<u64>() / 5),
            checkpoint_interval: Duration::ZERO,
        }
    }

    /// Returns one of the hintsfiles.
    pub(crate) fn hints(&self, name: &str) -> HintsInput {
        hintsfile(&self.folder.path().join(name))
    }

    /// Returns the snapshot as hints.
    pub(crate) fn snapshot_hints(&self) -> HintsInput {
        HintsInput::Snapshot(self.folder.path().join("snapshot"))
    }
}

pub(crate) fn hintsfile(path: &Path) -> HintsInput {
    HintsInput::File(path.to_owned(), HintsOptions::default())
}

/// Makes a chain with spends and as few blocks as possible.
pub(crate) fn small_chain(seed: u64) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(98);
    builder.random_blocks(22, Shape::default());
    builder
}

/// The part of a [`Request`] that is the same for each start.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) params: &'static Params,
    pub(crate) blocksdir: PathBuf,
    pub(crate) hints: HintsInput,
    pub(crate) aggregate: AggregateKind,
    pub(crate) stop_height: Option<u32>,
    pub(crate) threads: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) segment_bytes: Option<u64>,
    pub(crate) checkpoint_interval: Duration,
}

impl Job {
    /// Runs a start with both outputs.
    pub(crate) fn run(
        &self,
        work: &dyn Storage,
        out: &(impl Storage + Clone + 'static),
    ) -> Result<Outcome, SyncError> {
        self.run_watched(work, out, &SilentObserver, &AtomicBool::new(false))
    }

    /// Does what [`run`](Self::run) does, with an observer that can stop the sync.
    pub(crate) fn run_watched(
        &self,
        work: &dyn Storage,
        out: &(impl Storage + Clone + 'static),
        observer: &dyn Observer,
        interrupt: &AtomicBool,
    ) -> Result<Outcome, SyncError> {
        let output = |kind, name: &str| Output {
            kind,
            storage: std::sync::Arc::new(out.clone()),
            name: name.to_owned(),
        };
        let outputs = [output(OutputKind::Snapshot, SET), output(OutputKind::Hints, HINTS)];
        let commitment = PlacedFile::new(out, PLACED);
        let signed = self.params.signet_challenge.is_some();
        let verifier = signed.then(apus_sync::script_verifier).and_then(Result::ok);
        apus_sync::run(&Request {
            source: Source::Files {
                blocksdir: self.blocksdir.clone().into(),
                use_index: UseIndex::IfPresent,
            },
            task: Task::Hinted(HintedTask {
                hints: self.hints.clone(),
                aggregate: self.aggregate,
                validity: HintedValidity::Assumed,
                spent: None,
                connect: None,
            }),
            leave_witnesses: None,
            stop: self.stop_height.map_or(Stop::AtHints, Stop::At),
            follow: false,
            commitment: Some(&commitment),
            outputs: &outputs,
            folders: &[],
            sets: &[],
            muhash: true,
            env: RunEnv {
                params: self.params,
                threads: self.threads,
                memory_bytes: self.memory_bytes,
                segment_bytes: self.segment_bytes,
                scratch: None,
                checkpoint_interval: self.checkpoint_interval,
                now: NOW,
                signatures: Signatures::libsecp256k1(),
                verifier: verifier.as_deref(),
                workdir: work,
                is_shared: false,
                given: None,
                observer,
                interrupt,
            },
        })
    }

    /// Runs a start in empty folders that never fail.
    pub(crate) fn run_afresh(&self) -> Result<Outcome, SyncError> {
        self.run(&CrashStorage::new(), &CrashStorage::new())
    }

    /// Runs a start that must succeed with the right result; returns the number of segments that were done
    /// before, if it resumed.
    pub(crate) fn expect(&self, truth: &Truth, work: &dyn Storage, out: &CrashStorage) -> LogState {
        let events = Events::default();
        let outcome = self.run_watched(work, out, &events, &AtomicBool::new(false));
        truth.check(&outcome.unwrap_or_else(|error| panic!("{error}")), out);
        events.resumed()
    }

    /// Returns the work folder of a sync that stopped because of a full disk after `segments` segments.
    pub(crate) fn stopped_after(&self, segments: u64) -> Files {
        let disk = CrashStorage::new();
        let work = FaultStorage::new(disk.clone());
        // The plan is created first, then four files for each segment.
        work.fail_from(Operation::Create, 1 + 4 * segments, ErrorKind::StorageFull);
        self.run(&work, &CrashStorage::new()).unwrap_err();
        disk.live_files()
    }

    /// Returns the work folder of a sync that has all segments and could not begin its outputs.
    pub(crate) fn stopped_before_outputs(&self) -> Files {
        let (work, out) = (CrashStorage::new(), FaultStorage::new(CrashStorage::new()));
        out.fail_from(Operation::Create, 0, ErrorKind::PermissionDenied);
        self.run(&work, &out).unwrap_err();
        work.live_files()
    }
}

/// If a start resumed an earlier one: the number of finished segments, and of all segments.
pub(crate) type LogState = Option<(usize, usize)>;

/// Records all events.
#[derive(Default)]
pub(crate) struct Events(Mutex<Vec<Event>>);

impl Observer for Events {
    fn event(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Events {
    pub(crate) fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn resumed(&self) -> LogState {
        self.all().into_iter().find_map(|event| match event {
            Event::Resumed { segments, of } => Some((segments, of)),
            _ => None,
        })
    }
}

/// A folder with a path in its messages, which records the created files.
#[derive(Clone)]
pub(crate) struct Named {
    path: &'static str,
    inner: Arc<dyn Storage>,
    created: Arc<Mutex<Vec<String>>>,
}

impl Named {
    pub(crate) fn new(path: &'static str, inner: impl Storage + 'static) -> Self {
        Self { path, inner: Arc::new(inner), created: Arc::default() }
    }

    /// Returns the names of the created files, in order.
    pub(crate) fn created(&self) -> Vec<String> {
        self.created.lock().unwrap().clone()
    }
}

impl Storage for Named {
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        self.created.lock().unwrap().push(name.to_owned());
        self.inner.create(name)
    }
    fn sync(&self, name: &str) -> io::Result<()> {
        self.inner.sync(name)
    }
    fn open(&self, name: &str, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.inner.open(name, offset)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn sync_names(&self) -> io::Result<()> {
        self.inner.sync_names()
    }
    fn names(&self) -> io::Result<Vec<String>> {
        self.inner.names()
    }
    fn len(&self, name: &str) -> io::Result<u64> {
        self.inner.len(name)
    }
    fn describe(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}
