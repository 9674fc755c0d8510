//! Is what a node believes true? [`verify`] holds its headers, blocks, undo data, index and coins against each
//! other and against every rule, and changes nothing of them.
//!
//! The coins of the node are the hints, and its undo data say what blocks spend: by both every rule is applied
//! in one pass ([0020](../../../docs/decisions/0020-hints-with-undo-data.md)), and neither is trusted. If the
//! sums are equal and the set has the hash that the node's coins have, all of it is true. If not, that pass
//! cannot say where the fault lies. Then every block is [looked at](survey) by itself, and those that are whole
//! are [joined](crate::mergesync) without hints and undo data: that names a block that breaks a rule, and the
//! undo data and coins that are wrong.
//!
//! What the pass has no part in is looked at one by one: blocks beside the chain, and those above the coins,
//! which a node writes more seldom.

mod coins;
mod compared;
mod finding;
mod index;
mod survey;

pub use finding::{Finding, FindingKind, Found};

use crate::best_chain::headers;
use crate::error::{
    ErrorKind, InvalidBlock, InvalidError, SourceError, StorageResult, SyncError, UsageError,
};
use crate::folder::at;
use crate::mergesync::{self, Joining};
use crate::progress::Observer;
use crate::request::{ConnectOptions, HintedValidity, HintsInput, Memory, Output, OutputKind};
use crate::request::{Request, Scripts, Source, Stop};
use crate::run::run;
use crate::source::blocksdir::UseIndex;
use crate::workdir::Workdir;
use crate::workdir::names::LOCK;
use apus_chain::{BlockHash, HeaderChain, KnownBlock, Params, ScriptVerifier};
use apus_datadir::BlockFiles;
use apus_datadir::chainstate::SNAPSHOT_CHAINSTATE;
use apus_engine::pass::Counts;
use apus_engine::swiftsync::CoinTotals;
use apus_engine::swiftsync::aggregate::AggregateKind;
use apus_engine::utxo::store::{DiskOptions, DiskStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_storage::{DirStorage, Storage, create_private_dir, write_atomically};
use coins::{DRAFT, TAKEN, Taken};
use compared::Compared;
use finding::Findings;
use index::NodeIndex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use survey::{Survey, by_chain};

/// Folders of the work folder: of the proof, of joining, and of the coins that the blocks leave.
const PROOF: &str = "proof";
const JOIN: &str = "join";
const SET: &str = "set";
const FOLDERS: [&str; 3] = [PROOF, JOIN, SET];

/// The file that says which node is verified: chain and folder.
const NODE: &str = "node";

/// The snapshot of the coins that the blocks leave.
const OF_BLOCKS: &str = "coins.dat";

/// What is to be verified, and how.
pub struct Verify<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// The node's folder of this chain, with `blocks` and `chainstate` in it.
    pub folder: PathBuf,
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
pub struct Proof {
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
    pub scripts: Scripts,
    /// The node's coins and undo data were good enough to prove all in one pass.
    pub by_hints: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Verified {
    /// What is not as it should be, one of each kind; nothing where the node is right.
    pub findings: Vec<Finding>,
    /// What is proven of the blocks up to the node's coins.
    pub proof: Option<Proof>,
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
    fn blocksdir(&self) -> PathBuf {
        self.folder.join("blocks")
    }

    fn chainstate(&self) -> PathBuf {
        self.folder.join("chainstate")
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
        let cache_bytes = Memory::with_files(self.memory_bytes, self.threads).coins_bytes;
        let connect = ConnectOptions {
            assume_valid: self.assume_valid,
            prevout_threads: 0,
            cache_bytes,
            store,
            beyond: None,
            hints_folder: workdir.folder().join("hints"),
            positions: workdir.folder().join("positions"),
        };
        let use_index = UseIndex::Stated(*base);
        Request {
            params: self.params,
            source: Source::Files { blocksdir: self.blocksdir(), use_index },
            stop: if hints.is_some() { Stop::AtHints } else { Stop::AtTip },
            proofs: None,
            engine: hints.is_none().then_some(crate::request::Engine::MergeSync),
            hints,
            aggregate: AggregateKind::Sha256,
            hinted_validity: HintedValidity::Checked,
            leave_witnesses: None,
            connect: Some(connect),
            follow: false,
            threads: self.threads,
            memory_bytes: self.memory_bytes,
            segment_bytes: self.segment_bytes,
            checkpoint_interval: self.checkpoint_interval,
            now: self.now,
            verifier: self.verifier,
            workdir,
            outputs,
            folders: &[],
            muhash: true,
            bridge: None,
            queue: None,
            observer: self.observer,
            interrupt: self.interrupt,
        }
    }
}

/// Verifies a node. The progress stays in the work folder: once the outcome is told,
/// [`discard_verify`] removes it.
pub fn verify(request: &Verify<'_>) -> Result<Verified, SyncError> {
    let storage = DirStorage::private(&request.work);
    let findings = Findings::default();
    expect_same_node(request, &storage)?;
    let taken = coins::take(request, &storage, &findings)?;
    let mut verified = Verified {
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
            let work = Work { request, findings: &findings, index: &index };
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

/// Whether a name in a work folder is one that a verification makes.
pub fn is_verify_file(name: &str) -> bool {
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    [LOCK, NODE, TAKEN, DRAFT].contains(&name) || FOLDERS.contains(&name)
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

/// What is verified by.
struct Work<'a> {
    request: &'a Verify<'a>,
    findings: &'a Findings,
    index: &'a NodeIndex,
}

impl Work<'_> {
    fn verify(&self, taken: Option<Taken>, verified: &mut Verified) -> Result<(), SyncError> {
        let Self { request, findings, index } = *self;
        let files = BlockFiles::open(&request.blocksdir(), request.params.network.magic())
            .map_err(SourceError::from)?;
        verified.tip = index.chain_to(&index.best).map(|chain| tip_of(&chain));
        let base = self.base(taken.as_ref());
        let Some(chain) = index.chain_to(&base).filter(|chain| chain.tip_height() > 0) else {
            verified.unproven = Some("the node has connected no block yet".to_owned());
            return self.look_beside(&files, None, verified);
        };
        let on_chain = index.on_chain(request, &chain, findings)?;
        if index.pruned && on_chain.missing > 0 {
            verified.pruned_below = Some(on_chain.stored_from);
            let what = format!(
                "the node has pruned its blocks below {}: that its coins are those which the chain \
                 leaves only all blocks prove",
                on_chain.stored_from
            );
            verified.unproven = Some(what);
            return self.look_beside(&files, None, verified);
        }
        if on_chain.missing == 0 && on_chain.without_undo == 0 {
            verified.proof = self.prove(taken.as_ref(), &chain, on_chain.transactions)?;
        }
        if verified.proof.is_none() {
            self.diagnose(&files, taken.as_ref(), &chain, verified)?;
        }
        self.look_beside(&files, Some(&chain), verified)
    }

    /// The block that the node's coins are at; where that is not known, the one that it connected last.
    fn base(&self, taken: Option<&Taken>) -> BlockHash {
        let Some(taken) = taken else { return self.index.best };
        let base = taken.info.base_hash;
        if self.index.tree.find(&base).is_none() {
            let what = "the coins are at this block, which the index does not have";
            let found = Found { hash: Some(base), ..Found::new(what) };
            let found = found.of(&self.request.chainstate());
            self.findings.add(FindingKind::CoinsBlock, found);
            return self.index.best;
        }
        base
    }

    /// Proves all in one pass by the coins and undo data of the node; nothing where that fails.
    fn prove(
        &self,
        taken: Option<&Taken>,
        chain: &HeaderChain,
        transactions: u64,
    ) -> Result<Option<Proof>, SyncError> {
        let request = self.request;
        let Some(taken) = taken.filter(|taken| taken.info.base_hash == *chain.tip_hash()) else {
            return Ok(None);
        };
        let joining = request.work.join(JOIN);
        if joining.is_dir() && mergesync::has_begun(&DirStorage::private(&joining))? {
            // An earlier start got further.
            return Ok(None);
        }
        let storage = request.storage(PROOF)?;
        let hints = Some(HintsInput::Snapshot(taken.path.clone()));
        let store = || open_store(request, &storage);
        let run_request = request.request(chain.tip_hash(), hints, &storage, &[], &store);
        let outcome = match run(&run_request) {
            Ok(outcome) => outcome,
            Err(error) if is_about_node(&error) => {
                remove(storage.folder())?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let is_same = outcome.aggregate == Some(AggregateKind::Coins)
            && outcome.hash_serialized_3 == taken.info.hash_serialized_3.0
            && outcome.counts.transactions == transactions;
        if !is_same {
            remove(storage.folder())?;
            return Ok(None);
        }
        Ok(Some(Proof {
            at: tip_of(chain),
            counts: outcome.counts,
            coins: outcome.coins,
            muhash: outcome.muhash.expect("it was asked for"),
            hash_serialized_3: outcome.hash_serialized_3,
            scripts: outcome.scripts,
            by_hints: true,
        }))
    }

    /// Finds what is wrong where the proof failed.
    fn diagnose(
        &self,
        files: &BlockFiles,
        taken: Option<&Taken>,
        chain: &HeaderChain,
        verified: &mut Verified,
    ) -> Result<(), SyncError> {
        let Self { request, findings, index } = *self;
        let mut blocks =
            index.stored(request, &|block| chain.hash(block.height) == Some(&block.hash))?;
        Survey::new(request, files, findings, chain, false)?.look_at(&mut blocks)?;
        verified.looked_at += blocks.len() as u64;
        drop(blocks);
        use FindingKind as Kind;
        let broken = [Kind::BlockMissing, Kind::BlockDamaged, Kind::BlockInvalid];
        if findings.has(&broken) {
            let what =
                "blocks are missing or wrong: what those above them do to the coins is not known";
            verified.unproven = Some(what.to_owned());
            return Ok(());
        }
        match self.join(taken, chain) {
            Ok(proof) => verified.proof = Some(proof),
            Err(error) => {
                let error = match error {
                    SyncError::NoWayOn { error, .. } => *error,
                    other => other,
                };
                let Some(invalid) = InvalidBlock::of(&error) else { return Err(error) };
                let found = Found::new(&invalid.why).block(invalid.block);
                findings.add(Kind::BlockInvalid, found);
                let what = "a block is invalid: what those above it do to the coins is not known";
                verified.unproven = Some(what.to_owned());
            }
        }
        if findings.is_empty() && taken.is_some() {
            let what = "the coins and undo data of the node failed to prove its blocks, and nothing wrong \
                        was found with them";
            findings.add(Kind::Unexplained, Found::new(what));
        }
        Ok(())
    }

    /// Joins the blocks without hints and undo data, and compares both with what that leads to.
    fn join(&self, taken: Option<&Taken>, chain: &HeaderChain) -> Result<Proof, SyncError> {
        let Self { request, findings, .. } = *self;
        let storage = request.storage(JOIN)?;
        // What was found of blocks judged before is not kept, so they are judged again.
        Workdir::clear_scratch(&storage)?;
        let store = || open_store(request, &storage);
        let set = request.storage(SET)?;
        let of_blocks = set.folder().join(OF_BLOCKS);
        let (kind, name) = (OutputKind::Snapshot, OF_BLOCKS.to_owned());
        let outputs = taken.map(|_| Output { kind, storage: Arc::new(set), name });
        let base = chain.tip_hash();
        let joining = request.request(base, None, &storage, outputs.as_slice(), &store);
        let dir = headers(&joining, None)?;
        let undo = dir.undo(chain.tip_height(), &joining.search())?;
        let compared = Arc::new(Compared { dir: &*dir, findings, undo });
        let Joining::Whole(mut merged) = mergesync::run(&joining, compared)? else {
            // Only peers' blocks are left for another engine.
            return Err(InvalidError::BaseNotOnChain { base: *base }.into());
        };
        let (put, coins) = merged.write_out(&joining)?;
        if let Some(taken) = taken {
            coins::compare(request, &of_blocks, &taken.path, findings)?;
        }
        Ok(Proof {
            at: tip_of(chain),
            counts: merged.counts,
            coins,
            muhash: put.muhash.expect("it was asked for"),
            hash_serialized_3: put.hash_serialized_3,
            scripts: merged.judged.scripts,
            by_hints: false,
        })
    }

    /// Looks at the stored blocks that are not on a chain.
    fn look_beside(
        &self,
        files: &BlockFiles,
        chain: Option<&HeaderChain>,
        verified: &mut Verified,
    ) -> Result<(), SyncError> {
        let Self { request, findings, index } = *self;
        let is_beside = |block: KnownBlock| {
            chain.is_none_or(|chain| chain.hash(block.height) != Some(&block.hash))
        };
        let beside = index.stored(request, &is_beside)?;
        let chains = by_chain(beside, &|stored| index.chain_to(&stored.block.hash));
        for (chain, mut blocks) in chains {
            Survey::new(request, files, findings, &chain, true)?.look_at(&mut blocks)?;
            verified.looked_at += blocks.len() as u64;
        }
        Ok(())
    }
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
        SyncError::Source(SourceError::Interrupted) => false,
        SyncError::Source(_) | SyncError::NoWayOn { .. } => true,
        other => matches!(other.kind(), ErrorKind::Invalid | ErrorKind::Wrong),
    }
}
