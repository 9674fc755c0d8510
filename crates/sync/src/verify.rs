//! Audit of a node's data directory. [`verify`] checks the node's headers, blocks, undo data, index and coins
//! against each other and against every rule. It changes nothing in the directory.
//!
//! The node's coins serve as hints, and its undo data supplies the spent coins: with both, every rule is
//! checked in one pass ([0020](../../../docs/decisions/0020-hints-with-undo-data.md)), and neither is trusted.
//! If the sums are equal and the resulting set has the same hash as the node's coins, everything is correct. If
//! not, that pass cannot locate the fault. Then every block is [checked](survey) by itself, and if all are
//! intact, they are [joined](crate::engines::mergesync) without hints and undo data: this identifies the block
//! that breaks a rule, or the wrong undo data and coins.
//!
//! That pass does not cover the following, which is checked separately: blocks off the chain; blocks above the
//! coins, because a node flushes its coins less often; the validation [status] and the [file
//! records](file_records) of the index, which a node trusts without reading the blocks; and blocks that the
//! node [marks as invalid](marked).
//!
//! Quick checks run first, and checks that take hours last.

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
use crate::progress::{Event, stop_if_interrupted};
use crate::request::{
    ConnectOptions, HintedTask, HintedValidity, HintsInput, MemoryParts, MergeSyncTask, Output,
    Request, RunEnv, ScriptCounts, Source, Stop, Task,
};
use crate::source::blocksdir::UseIndex;
use crate::warning::Warning;
use crate::workdir::names::LOCK;
use apus_chain::{BlockHash, KnownBlock};
use apus_datadir::chainstate::{SNAPSHOT_CHAINSTATE, check_files};
use apus_datadir::{BlockFiles, BlocksFolder, IndexError, check_index_files};
use apus_engine::utxo::store::{DiskOptions, DiskStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_storage::{DirStorage, Storage, create_private_dir, write_atomically};
use coins::{DRAFT, TAKEN};
use finding::Findings;
use index::NodeIndex;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Names of subfolders of the work folder: for the proof, for joining, and for the coins that the blocks
/// produce.
const PROOF: &str = "proof";
const JOIN: &str = "join";
const SET: &str = "set";
const FOLDERS: [&str; 4] = [PROOF, JOIN, SET, VERIFIED_INDEXES];

/// The subfolder for temporary files of a check of the node's optional indexes, which the caller does.
pub const VERIFIED_INDEXES: &str = "indexes";

/// The file that names the audited node: its chain and folder.
const NODE: &str = "node";

/// Threads that fetch coins when blocks are connected in order.
const PREVOUT_THREADS: usize = 8;

/// What to audit, and how.
pub struct Verify<'a> {
    /// The environment. Its work folder is [`work`](Self::work); each step uses a folder in it.
    pub env: RunEnv<'a>,
    /// The node's folder for this chain, which contains `blocks` and `chainstate`.
    pub folder: PathBuf,
    /// The folder of the node's block files; their index is in `blocks` of [`folder`](Self::folder).
    pub block_files: PathBuf,
    /// The block up to which scripts are assumed valid, under Core's conditions; `None` to run all scripts.
    pub assume_valid: Option<BlockHash>,
    /// Existing folder for progress, which no other program uses.
    pub work: PathBuf,
}

/// Proven facts about the blocks up to the block of the node's coins.
#[derive(Debug, Clone)]
pub struct ProvenBy {
    /// The block of the node's coins.
    pub at: KnownBlock,
    /// Totals of these blocks.
    pub counts: Counts,
    /// Totals of the coins that these blocks produce.
    pub coins: CoinTotals,
    /// The set's MuHash, in internal byte order.
    pub muhash: [u8; 32],
    /// The set's `hash_serialized_3`, in internal byte order.
    pub hash_serialized_3: [u8; 32],
    /// Numbers of blocks whose scripts were run, and whose scripts were assumed valid.
    pub scripts: ScriptCounts,
    /// Whether the node's coins and undo data sufficed to prove everything in one pass.
    pub by_hints: bool,
}

/// The result of an audit.
#[derive(Debug)]
pub struct VerifyOutcome {
    /// The problems found, one entry for each kind; empty if the node's data is correct.
    pub findings: Vec<Finding>,
    /// The proven facts, if the proof succeeded.
    pub proof: Option<ProvenBy>,
    /// Why the proof does not cover everything that the node relies on; `None` if it does.
    pub unproven: Option<String>,
    /// Number of blocks checked one by one.
    pub looked_at: u64,
    /// The lowest height from which a pruned node has all blocks.
    pub pruned_below: Option<u32>,
    /// The tip of the chain that the node connected.
    pub tip: Option<KnownBlock>,
    /// Whether the coins were copied from the node by an earlier start.
    pub coins_of_earlier: bool,
}

impl VerifyOutcome {
    /// Adds a reason why the proof does not cover everything.
    pub fn add_unproven(&mut self, what: String) {
        self.unproven = Some(match self.unproven.take() {
            Some(before) => format!("{before}; and {what}"),
            None => what,
        });
    }
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

    /// Returns whether the node started from a snapshot: then its index lacks some or all blocks below the
    /// snapshot. A snapshot that proved wrong leaves its folder, with a suffix to the name, and blocks above
    /// it.
    fn began_with_snapshot(&self) -> bool {
        let names = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names = names.map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with(SNAPSHOT_CHAINSTATE))
    }

    fn warn(&self, what: String) {
        self.env.observer.event(Event::Warning(Warning::WrongAlready { what }));
    }

    /// Warns at once about faults that a quick check of both databases' files shows. Reading the whole
    /// databases later turns all of them into findings.
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

    /// Makes the request for a sync of the node's blocks up to `base`.
    fn request<'r>(
        &'r self,
        base: &BlockHash,
        hints: Option<HintsInput>,
        workdir: &'r DirStorage,
        outputs: &'r [Output],
        store: &'r crate::request::OpenStore<'r>,
    ) -> Request<'r> {
        let cache_bytes =
            MemoryParts::with_files(self.env.memory_bytes, self.env.threads).coins_bytes;
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
                spent: None,
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
            sets: &[],
            muhash: true,
            env: RunEnv { workdir, ..self.env },
        }
    }
}

/// Audits a node. The progress stays in the work folder: after reporting the outcome, the caller removes it
/// with [`discard_verify`].
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
            let confirmed_marks = Mutex::default();
            let work = VerifyWork { request, findings: &findings, index: &index, confirmed_marks };
            work.verify(taken, &mut verified)?;
        }
        None => {
            let what = "the index is unreadable, so the positions of blocks and undo data are unknown. Apus \
                checked neither blocks, undo data nor coins";
            verified.unproven = Some(what.to_owned());
        }
    }
    if request.folder.join(SNAPSHOT_CHAINSTATE).exists() {
        let what = "the node started from a snapshot and now uses other coins, which Apus did not check. Run the audit \
            again once the node has validated the blocks below the snapshot";
        verified.add_unproven(what.to_owned());
    }
    verified.findings = findings.into_all();
    Ok(verified)
}

/// Checks that the work folder belongs to this node: progress of another node's audit cannot be resumed.
fn expect_same_node(request: &Verify<'_>, storage: &DirStorage) -> Result<(), SyncError> {
    let folder = std::fs::canonicalize(&request.folder).map_err(at(&request.folder))?;
    let mut wanted = format!("{} ", request.env.params.network).into_bytes();
    wanted.extend_from_slice(folder.as_os_str().as_encoded_bytes());
    let path = storage.folder().join(NODE);
    match std::fs::read(&path) {
        Ok(found) if found == wanted => Ok(()),
        Ok(found) => {
            let (folder, what) = (storage.describe(""), String::from_utf8_lossy(&found));
            let what = format!("an audit of another node ({what})");
            Err(UsageError::OtherRun { folder, what }.into())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            write_atomically(storage, NODE, &wanted).at(storage, NODE)
        }
        Err(error) => Err(at(&path)(error)),
    }
}

/// Returns the first of a folder's names that does not belong to an audit. Other programs may have files of the
/// same names: they count as the audit's own only if the file that names the node is present, which is created
/// first and removed last.
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

/// Returns whether a folder has progress of an earlier start of an audit.
pub fn has_verify_progress(work: &Path) -> bool {
    work.join(NODE).is_file()
}

/// Removes the progress of a finished audit. The copied coins are removed last: if this is interrupted, the
/// same command audits the same coins again.
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

/// Finds faults in a node's index that would harm the node whatever its coins: wrong records of block files,
/// wrong validation status of blocks, and blocks marked as invalid although a chain with more work contains
/// them. Takes seconds, because it does not validate those blocks.
pub fn look_at_index(request: &Verify<'_>) -> Result<Vec<Finding>, SyncError> {
    use FindingKind as Kind;
    let findings = Findings::default();
    if let Some(index) = NodeIndex::read(request, &findings)? {
        let files = BlockFiles::open(request.blocks(), request.env.params.network.magic());
        index.compare_files(&files.map_err(SourceError::from)?, &findings);
        let chain = index.chain_to(&index.best);
        if let Some(chain) = &chain {
            index.on_chain(request, chain, &findings)?;
        }
        index.check_marks_off_chain(request, chain.as_ref(), &findings)?;
        if let Some(rejected) = index.rejected_chain() {
            let what = format!(
                "the index marks this block as invalid, and with it {} blocks of a chain with more work than the \
                 node's: run `apus verify` to check whether the block is invalid",
                rejected.count
            );
            let index = request.blocksdir().join("index");
            let found = FoundFault::new(what).block(rejected.root).of(&index);
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

/// Attempts to read a database of a node, and the time between two: while the node runs, it replaces files, and is
/// between two blocks while it writes coins.
const ATTEMPTS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(500);

/// Reads a database of the node, and reads it again if the error may pass.
fn read_again<T, E: From<SyncError>>(
    request: &Verify<'_>,
    may_pass: impl Fn(&E) -> bool,
    mut read: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    for _ in 1..ATTEMPTS {
        match read() {
            Err(error) if may_pass(&error) => {
                std::thread::sleep(PAUSE);
                stop_if_interrupted(request.env.interrupt)?;
            }
            other => return other,
        }
    }
    read()
}

/// Opens the coins store of a subfolder, for a sync that connects no blocks in order.
fn open_store(
    request: &Verify<'_>,
    storage: &DirStorage,
) -> Result<Arc<dyn CoinsStore>, StoreError> {
    let path = storage.folder().join(crate::workdir::names::COINS);
    Ok(Arc::new(DiskStore::open(&path, request.env.params.network, DiskOptions::default())?))
}

/// Returns whether an error proves a fault in the node's data.
fn is_about_node(error: &SyncError) -> bool {
    match error {
        SyncError::Source(
            SourceError::Clock(_) | SourceError::Index(IndexError::Vanished { .. }),
        ) => false,
        SyncError::Source(_) | SyncError::NoWayOn { .. } => true,
        other => matches!(other.kind(), ErrorKind::Invalid | ErrorKind::Wrong),
    }
}

/// Inputs and state that the checks share.
struct VerifyWork<'a> {
    request: &'a Verify<'a>,
    findings: &'a Findings,
    index: &'a NodeIndex,
    /// Blocks that the index marks as invalid and that do break a rule.
    confirmed_marks: Mutex<HashSet<BlockHash>>,
}

impl VerifyWork<'_> {
    fn confirm_mark(&self, hash: BlockHash) {
        self.confirmed_marks.lock().insert(hash);
    }
}
