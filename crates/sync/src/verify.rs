//! Is what a node believes true? [`verify`] holds its headers, blocks, undo data, index and coins against each
//! other and against every rule, and changes nothing of them.
//!
//! The coins of the node are the hints, and its undo data say what blocks spend: by both every rule is applied
//! in one pass ([0020](../../../docs/decisions/0020-hints-with-undo-data.md)), and neither is trusted. If the
//! sums are equal and the set has the hash that the node's coins have, all of it is true. If not, that pass
//! cannot say where the fault lies. Then every block is [looked at](survey) by itself, and those that are whole
//! are [joined](crate::engines::mergesync) without hints and undo data: that names a block that breaks a rule, and the
//! undo data and coins that are wrong.
//!
//! What the pass has no part in is looked at one by one: blocks beside the chain, and those above the coins,
//! which a node writes more seldom; what the index [says](status) of how far blocks came and [of files](file_records), which
//! a node believes without a look; and blocks that it [takes for invalid](marked).
//!
//! What takes seconds comes before what takes hours.

mod coins;
mod compared;
mod file_records;
mod finding;
mod heads;
mod index;
mod marked;
mod status;
mod survey;
mod work;

pub use finding::{Finding, FindingKind, FoundFault};

use crate::engines::pass::Counts;
use crate::engines::swiftsync::CoinTotals;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{ErrorKind, SourceError, StorageResult, SyncError, UsageError};
use crate::folder::at;
use crate::progress::{Event, Observer};
use crate::request::{
    ConnectOptions, HintedTask, HintedValidity, HintsInput, MemoryParts, MergeSyncTask, Output,
    RunEnv, Task,
};
use crate::request::{Request, ScriptCounts, Source, Stop};
use crate::source::blocksdir::UseIndex;
use crate::warning::Warning;
use crate::workdir::names::LOCK;
use apus_chain::{BlockHash, HeaderChain, KnownBlock, Params, ScriptVerifier};
use apus_datadir::chainstate::{SNAPSHOT_CHAINSTATE, check_files};
use apus_datadir::{BlockFiles, BlocksFolder, check_index_files};
use apus_engine::utxo::store::{DiskOptions, DiskStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_storage::{DirStorage, Storage, create_private_dir, write_atomically};
use coins::{DRAFT, TAKEN};
use finding::Findings;
use index::NodeIndex;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Folders of the work folder: of the proof, of joining, and of the coins that the blocks leave.
const PROOF: &str = "proof";
const JOIN: &str = "join";
const SET: &str = "set";
const FOLDERS: [&str; 3] = [PROOF, JOIN, SET];

/// The file that says which node is verified: chain and folder.
const NODE: &str = "node";

/// Threads that fetch coins, where blocks are connected one after the other.
const PREVOUT_THREADS: usize = 8;

/// What is to be verified, and how.
pub struct Verify<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// The node's folder of this chain, with `blocks` and `chainstate` in it.
    pub folder: PathBuf,
    /// Where its block files are; the index of them is in `blocks` of its folder.
    pub block_files: PathBuf,
    /// The block up to which scripts are taken for valid, under Core's conditions; none where all are run.
    pub assume_valid: Option<BlockHash>,
    /// Worker threads, at least one.
    pub threads: usize,
    /// Memory for buffers, in bytes.
    pub memory_bytes: u64,
    /// Bytes of blocks in a segment; by the other budgets where not given.
    pub segment_bytes: Option<u64>,
    /// The longest that finished segments wait to be made durable together.
    pub checkpoint_interval: Duration,
    /// Seconds since 1970.
    pub now: i64,
    /// Runs scripts; needed for signet.
    pub verifier: Option<&'a dyn ScriptVerifier>,
    /// Progress is kept in this folder, which is there, and which no other program uses.
    pub work: PathBuf,
    /// Told what happens.
    pub observer: &'a dyn Observer,
    /// Set from outside to stop it.
    pub interrupt: &'a AtomicBool,
}

/// What the blocks up to the node's coins were proven to be.
#[derive(Debug, Clone)]
pub struct ProvenBy {
    /// The block that the coins are at.
    pub at: KnownBlock,
    /// What the blocks have.
    pub counts: Counts,
    /// Coins that they leave.
    pub coins: CoinTotals,
    /// The set's MuHash, in the order of its bytes.
    pub muhash: [u8; 32],
    /// The set's `hash_serialized_3`, in the order of its bytes.
    pub hash_serialized_3: [u8; 32],
    /// Blocks whose scripts were run, and blocks whose scripts were taken for valid.
    pub scripts: ScriptCounts,
    /// The node's coins and undo data were good enough to prove all in one pass.
    pub by_hints: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct VerifyOutcome {
    /// What is not as it should be, one of each kind; nothing where the node is right.
    pub findings: Vec<Finding>,
    /// What is proven of the blocks up to the node's coins.
    pub proof: Option<ProvenBy>,
    /// Why that is not all that the node believes, or nothing.
    pub unproven: Option<String>,
    /// Blocks that were looked at one by one.
    pub looked_at: u64,
    /// The lowest block from which on a node that pruned its blocks has them.
    pub pruned_below: Option<u32>,
    /// The tip of the chain that the node connected.
    pub tip: Option<KnownBlock>,
    /// The coins are those that an earlier start took of the node.
    pub coins_of_earlier: bool,
}

impl Verify<'_> {
    fn blocks(&self) -> BlocksFolder {
        BlocksFolder { files: self.block_files.clone(), home: self.blocksdir() }
    }

    fn blocksdir(&self) -> PathBuf {
        self.folder.join("blocks")
    }

    fn chainstate(&self) -> PathBuf {
        self.folder.join("chainstate")
    }

    /// Whether the node began with a snapshot: its index has no blocks, or not all, below that. A snapshot that proved
    /// wrong leaves a folder of another name, and blocks above it.
    fn began_with_snapshot(&self) -> bool {
        let names = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names = names.map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with(SNAPSHOT_CHAINSTATE))
    }

    fn warn(&self, what: String) {
        self.observer.event(Event::Warning(Warning::WrongAlready { what }));
    }

    /// Tells at once what the files of both databases of the node tell. What can be seen of their files in seconds belongs
    /// here; all of it is found again when they are read to their ends, and is a finding then.
    fn warn_of_databases(&self) {
        if let Err(error) = check_files(&self.chainstate()) {
            self.warn(error.to_string());
        }
        if let Err(error) = check_index_files(&self.blocksdir()) {
            self.warn(error.to_string());
        }
    }

    fn storage(&self, name: &str) -> Result<DirStorage, SyncError> {
        let path = self.work.join(name);
        create_private_dir(&path).map_err(at(&path))?;
        Ok(DirStorage::private(&path))
    }

    /// A run over the node's blocks up to one of them.
    fn request<'r>(
        &'r self,
        base: &BlockHash,
        hints: Option<HintsInput>,
        workdir: &'r DirStorage,
        outputs: &'r [Output],
        store: &'r crate::request::OpenStore<'r>,
    ) -> Request<'r> {
        let cache_bytes = MemoryParts::with_files(self.memory_bytes, self.threads).coins_bytes;
        let connect = ConnectOptions {
            assume_valid: self.assume_valid,
            prevout_threads: PREVOUT_THREADS,
            cache_bytes,
            store,
            beyond: None,
            hints_folder: workdir.folder().join("hints"),
            positions: workdir.folder().join("positions"),
        };
        let task = match hints {
            Some(hints) => Task::Hinted(HintedTask {
                hints,
                aggregate: AggregateKind::Sha256,
                validity: HintedValidity::Checked,
                connect: Some(connect),
            }),
            None => Task::MergeSync(MergeSyncTask { connect, index: None }),
        };
        Request {
            source: Source::Files { blocksdir: self.blocks(), use_index: UseIndex::Stated(*base) },
            stop: if matches!(task, Task::Hinted(_)) { Stop::AtHints } else { Stop::AtTip },
            task,
            leave_witnesses: None,
            follow: false,
            commitment: None,
            outputs,
            folders: &[],
            muhash: true,
            env: RunEnv {
                params: self.params,
                threads: self.threads,
                memory_bytes: self.memory_bytes,
                segment_bytes: self.segment_bytes,
                checkpoint_interval: self.checkpoint_interval,
                now: self.now,
                verifier: self.verifier,
                workdir,
                is_shared: false,
                given: None,
                observer: self.observer,
                interrupt: self.interrupt,
            },
        }
    }
}

/// Verifies a node. The progress stays in the work folder: once the outcome is told,
/// [`discard_verify`] removes it.
pub fn verify(request: &Verify<'_>) -> Result<VerifyOutcome, SyncError> {
    let storage = DirStorage::private(&request.work);
    let findings = Findings::default();
    expect_same_node(request, &storage)?;
    request.warn_of_databases();
    let taken = coins::take(request, &storage, &findings)?;
    let mut verified = VerifyOutcome {
        findings: Vec::new(),
        proof: None,
        unproven: None,
        looked_at: 0,
        pruned_below: None,
        tip: None,
        coins_of_earlier: taken.as_ref().is_some_and(|taken| taken.of_earlier),
    };
    match NodeIndex::read(request, &findings)? {
        Some(index) => {
            let marked_rightly = Mutex::default();
            let work = VerifyWork { request, findings: &findings, index: &index, marked_rightly };
            work.verify(taken, &mut verified)?;
        }
        None => {
            let what = "without the index nothing says where blocks and undo data lie: neither they nor \
                        the coins were looked at";
            verified.unproven = Some(what.to_owned());
        }
    }
    if request.folder.join(SNAPSHOT_CHAINSTATE).exists() && verified.unproven.is_none() {
        let what = "the node goes on from a snapshot, and the coins that it goes by are not those that were \
                    looked at: verify it again once it has validated the blocks below";
        verified.unproven = Some(what.to_owned());
    }
    verified.findings = findings.into_all();
    Ok(verified)
}

/// What is in the work folder must be of this node: what an earlier start found of another is nothing to go
/// on with.
fn expect_same_node(request: &Verify<'_>, storage: &DirStorage) -> Result<(), SyncError> {
    let folder = std::fs::canonicalize(&request.folder).map_err(at(&request.folder))?;
    let mut wanted = format!("{} ", request.params.network).into_bytes();
    wanted.extend_from_slice(folder.as_os_str().as_encoded_bytes());
    let path = storage.folder().join(NODE);
    match std::fs::read(&path) {
        Ok(found) if found == wanted => Ok(()),
        Ok(found) => {
            let (folder, what) = (storage.describe(""), String::from_utf8_lossy(&found));
            let what = format!("a verification of another node ({what})");
            Err(UsageError::OtherRun { folder, what }.into())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            write_atomically(storage, NODE, &wanted).at(storage, NODE)
        }
        Err(error) => Err(at(&path)(error)),
    }
}

/// The first name that is in the way of a verification in a folder where these are. Others may have files of the
/// names that it uses: only a file that says which node is verified, which comes first and goes last, makes them its.
pub fn foreign_to_verify(names: &[String]) -> Option<&str> {
    let is_begun = names.iter().any(|name| name == NODE);
    let is_ours = |name: &str| {
        let of_begun = [TAKEN, DRAFT].contains(&name) || FOLDERS.contains(&name);
        [LOCK, NODE].contains(&name)
            || name.strip_suffix(".tmp") == Some(NODE)
            || is_begun && of_begun
    };
    names.iter().map(String::as_str).find(|name| !is_ours(name))
}

/// Whether an earlier start of a verification left progress in a folder.
pub fn has_verify_progress(work: &Path) -> bool {
    work.join(NODE).is_file()
}

/// Removes the progress of a verification that ended. The coins that it began with go last: killed in the
/// middle, the same command verifies the same again.
pub fn discard_verify(work: &Path) -> Result<(), SyncError> {
    for name in FOLDERS {
        let path = work.join(name);
        if path.is_dir() {
            remove(&path)?;
        }
    }
    let storage = DirStorage::private(work);
    let names = storage.names().at(&storage, "")?;
    for name in
        [DRAFT, TAKEN, NODE].into_iter().filter(|name| names.iter().any(|there| there == name))
    {
        storage.remove(name).at(&storage, name)?;
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), SyncError> {
    std::fs::remove_dir_all(path).map_err(at(path))
}

/// What the index of a node says that would harm the node whatever its coins are: of block files, of how far blocks
/// came, and which blocks it takes for invalid though a chain of more work leads over them. Whether these are, this
/// does not ask. It takes seconds.
pub fn look_at_index(request: &Verify<'_>) -> Result<Vec<Finding>, SyncError> {
    use FindingKind as Kind;
    let findings = Findings::default();
    if let Some(index) = NodeIndex::read(request, &findings)? {
        let files = BlockFiles::open(request.blocks(), request.params.network.magic());
        index.compare_files(&files.map_err(SourceError::from)?, &findings);
        let chain = index.chain_to(&index.best);
        if let Some(chain) = &chain {
            index.on_chain(request, chain, &findings)?;
        }
        index.beside_chain(request, chain.as_ref(), &findings)?;
        if let Some(shunned) = index.shunned() {
            let what = format!(
                "the index marks it as invalid, and with it a chain of more work than the node has connected, of {} \
                 blocks: whether it is invalid `apus verify` tells",
                shunned.count
            );
            let index = request.blocksdir().join("index");
            let found = FoundFault::new(what).block(shunned.root).of(&index);
            findings.add(Kind::MarkedInvalid, found);
        }
    }
    let harms = [
        Kind::FileRecord,
        Kind::IndexDamaged,
        Kind::IndexFlag,
        Kind::IndexStatus,
        Kind::MarkedInvalid,
        Kind::WitnessMark,
    ];
    let mut all = findings.into_all();
    all.retain(|finding| harms.contains(&finding.kind));
    Ok(all)
}

fn tip_of(chain: &HeaderChain) -> KnownBlock {
    KnownBlock { height: chain.tip_height(), hash: *chain.tip_hash() }
}

/// For runs that connect nothing one by one.
fn open_store(
    request: &Verify<'_>,
    storage: &DirStorage,
) -> Result<Arc<dyn CoinsStore>, StoreError> {
    let path = storage.folder().join(crate::workdir::names::COINS);
    Ok(Arc::new(DiskStore::open(&path, request.params.network, DiskOptions::default())?))
}

/// Whether an error says that something of the node's is wrong.
fn is_about_node(error: &SyncError) -> bool {
    match error {
        SyncError::Source(SourceError::Interrupted | SourceError::Clock(_)) => false,
        SyncError::Source(_) | SyncError::NoWayOn { .. } => true,
        other => matches!(other.kind(), ErrorKind::Invalid | ErrorKind::Wrong),
    }
}

/// What is verified by.
struct VerifyWork<'a> {
    request: &'a Verify<'a>,
    findings: &'a Findings,
    index: &'a NodeIndex,
    /// Blocks that the index marks as invalid, and that break a rule.
    marked_rightly: Mutex<HashSet<BlockHash>>,
}

impl VerifyWork<'_> {
    fn marked_rightly(&self, hash: BlockHash) {
        self.marked_rightly.lock().unwrap_or_else(PoisonError::into_inner).insert(hash);
    }
}
