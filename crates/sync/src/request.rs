//! [`Request`]: the input of a sync, and [`Outcome`], its result.
//!
//! This module only has the values; other modules act on them.

use crate::chain_index::ChainIndex;
use crate::commitment::{NewHasher, SetCommitment};
use crate::engines::swiftsync::UndoSource;
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::engines::swiftsync::hints::HintsOptions;
use crate::error::{InvalidError, SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::machines::{Machines, SharedPass};
use crate::progress::Observer;
use crate::sink::SetOutput;
use crate::source::GivenBlocks;
use crate::source::blocksdir::UseIndex;
use crate::source::peers::Peers;
use crate::source::{ChainSource, SearchOptions};
use apus_chain::{BlockHash, HeaderChain, Height, Params, ScriptVerifier};
use apus_datadir::BlocksFolder;
use apus_engine::script::Signatures;
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_storage::Storage;
pub use memory::MemoryParts;
pub use outcome::{
    ChainEnd, HintsProof, Outcome, ScriptCounts, SetHashes, SetSummary, Validation, Written,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

mod memory;
mod outcome;

/// The source of the hints.
#[derive(Debug, Clone)]
pub enum HintsInput {
    /// A BIP-456 hintsfile.
    File(PathBuf, HintsOptions),
    /// A UTXO snapshot as `dumptxoutset` writes it.
    Snapshot(PathBuf),
}

/// What a sync does if Core would not assume valid all blocks processed with hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintedValidity {
    /// Refuses the hints, before the first block.
    Anchored,
    /// Assumes the blocks valid, because the user does (`--assumevalid hints`), and warns of it.
    Assumed,
    /// Checks every rule anyway: with undo data if they are available, and otherwise without the hints, up to
    /// where they stop.
    Checked,
    /// Does not check. For callers that only check whether hints and blocks fit each other, and for blocks
    /// that were checked by other means. The output must not claim more than that.
    NotAsked,
}

/// A file to write.
#[derive(Clone)]
pub struct Output {
    /// What to write.
    pub kind: OutputKind,
    /// The folder.
    pub storage: Arc<dyn Storage>,
    /// The file's name in the folder.
    pub name: String,
}

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// A UTXO snapshot.
    Snapshot,
    /// A BIP-456 hintsfile.
    Hints,
}

impl OutputKind {
    /// Whether the set's coins go into it, through a [`CoinSink`](crate::sink::CoinSink). Hints are made from
    /// the coins' places.
    pub fn takes_coins(self) -> bool {
        self != Self::Hints
    }
}

/// Where blocks come from.
#[derive(Debug, Clone)]
pub enum Source<'a> {
    /// Core's block files.
    Files {
        /// The folders of blocks and of their index.
        blocksdir: BlocksFolder,
        /// Whether to use Core's index of them.
        use_index: UseIndex,
    },
    /// Peers.
    Peers(&'a Peers<'a>),
}

impl Source<'_> {
    /// Whether scanning all files is another way to find the chain.
    pub fn may_leave_index(&self) -> bool {
        matches!(self, Self::Files { use_index: UseIndex::IfPresent, .. })
    }
}

/// The engine for blocks without hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Engine {
    /// In order, looking up each coin.
    #[default]
    Utxo,
    /// In any order: spends are joined with the coins that they take.
    MergeSync,
    /// Another engine ([`Task::By`]), by its name.
    Outside(&'static str),
}

/// The engine that processes blocks, with its options.
#[derive(Clone)]
pub enum Task<'a> {
    /// Blocks in any order with hints, up to where these stop; blocks above in order.
    Hinted(HintedTask<'a>),
    /// All blocks without hints, with the engine that fits: [`MergeSync`](Self::MergeSync) for files,
    /// [`InOrder`](Self::InOrder) for peers, unless an earlier start began with another.
    Unhinted(ConnectOptions<'a>),
    /// All blocks in order, looking up each coin.
    InOrder(ConnectOptions<'a>),
    /// All blocks in any order: spends are joined with the coins that they take.
    MergeSync(MergeSyncTask<'a>),
    /// All blocks, with another engine.
    By(EngineTask<'a>),
}

/// Options for another engine.
#[derive(Clone)]
pub struct EngineTask<'a> {
    /// The engine.
    pub engine: &'a dyn ChainEngine,
    /// How blocks are connected; `None` for an engine that does not need this.
    pub connect: Option<ConnectOptions<'a>>,
}

/// An engine: computes, from the blocks of a chain up to the end of a request, a verdict on all of them and,
/// if it keeps one, the UTXO set after the last.
///
/// It gets the chain and asks it for blocks by height; the caller has already found the blocks and chosen the
/// chain. Its progress goes into [`RunEnv::workdir`], so that the same request resumes after a kill. Its
/// result must not depend on threads, timing or memory. An engine that takes segments of blocks in any order
/// is a [`Pass`](crate::engines::pass::Pass), which this crate drives.
pub trait ChainEngine: Sync {
    /// Processes the blocks, or has `machines` process its segments.
    ///
    /// # Errors
    /// The lowest block that breaks a rule, even if another is found first; an engine's own errors are
    /// [`RunError`](crate::RunError)s.
    fn run<'a>(
        &self,
        request: &'a Request<'a>,
        chain: Arc<dyn ChainSource + 'a>,
        machines: Option<&dyn Machines>,
    ) -> Result<Outcome, SyncError>;

    /// Returns the pass whose segments other machines can process, if there is one.
    fn shared(&self) -> Option<&dyn SharedPass> {
        None
    }
}

/// A source of the coins that the blocks of a chain spend, which need not be trusted.
pub trait SpentSource: Sync {
    /// Opens it for the blocks of a chain.
    ///
    /// # Errors
    /// It cannot be had.
    fn open<'a>(
        &'a self,
        request: &'a Request<'_>,
        chain: Arc<dyn ChainSource + 'a>,
    ) -> Result<Box<dyn UndoSource + 'a>, SyncError>;
}

/// Options for blocks with hints.
#[derive(Clone)]
pub struct HintedTask<'a> {
    /// Which coins survive.
    pub hints: HintsInput,
    /// The aggregate that proves the hints.
    pub aggregate: AggregateKind,
    /// What to do with hints that cover blocks which Core would check.
    pub validity: HintedValidity,
    /// A source of the coins that blocks spend, in place of undo data next to the blocks.
    pub spent: Option<&'a dyn SpentSource>,
    /// How blocks above the hints are connected; required if the sync ends above them.
    pub connect: Option<ConnectOptions<'a>>,
}

/// Options for mergesync.
#[derive(Clone)]
pub struct MergeSyncTask<'a> {
    /// How blocks are connected.
    pub connect: ConnectOptions<'a>,
    /// An index from another crate that follows the blocks. Then the sync joins all blocks, also those of peers, and
    /// cannot follow the tip.
    pub index: Option<&'a dyn ChainIndex>,
}

/// The environment of a sync, regardless of its task.
#[derive(Clone, Copy)]
pub struct RunEnv<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Worker threads, at least one.
    pub threads: usize,
    /// Memory for buffers, in bytes.
    pub memory_bytes: u64,
    /// Bytes of blocks in a segment; `None` derives it from the other limits.
    pub segment_bytes: Option<u64>,
    /// Disk space for the records of an engine that can process the chain in batches; `None` for one batch.
    pub scratch: Option<ScratchLimits>,
    /// Longest time that finished segments wait to be made durable together: a crash loses this much work,
    /// besides the segments in progress.
    pub checkpoint_interval: Duration,
    /// Seconds since 1970, for the rule against blocks from the future.
    pub now: i64,
    /// How scripts' signatures are checked.
    pub signatures: &'a Arc<Signatures>,
    /// Runs scripts; required for signet.
    pub verifier: Option<&'a dyn ScriptVerifier>,
    /// The folder for progress.
    pub workdir: &'a dyn Storage,
    /// Whether other machines process the segments ([`run_shared`](crate::run_shared)) instead of this
    /// machine's threads.
    pub is_shared: bool,
    /// Where these machines read blocks of the sync's folder, if this sync offers them.
    pub given: Option<&'a GivenBlocks>,
    /// Receives events.
    pub observer: &'a dyn Observer,
    /// Stops the sync once the caller sets it.
    pub interrupt: &'a AtomicBool,
}

/// Limits of the batches in which a sync without hints processes a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchLimits {
    /// Bytes of all temporary files together.
    pub bytes: u64,
    /// A fixed number of segments in each batch, instead of as many as `bytes` allow.
    pub segments: Option<usize>,
}

/// The input of a sync.
#[derive(Clone)]
pub struct Request<'a> {
    /// Where blocks come from.
    pub source: Source<'a>,
    /// The engine and its options.
    pub task: Task<'a>,
    /// The block up to which witnesses are not read, under Core's conditions for assumed-valid scripts
    /// ([`BlockChecker::leave_witnesses`]); `None` if all are checked. They are checked anyway if blocks are
    /// passed on or an index follows them.
    ///
    /// [`BlockChecker::leave_witnesses`]: apus_chain::BlockChecker::leave_witnesses
    pub leave_witnesses: Option<BlockHash>,
    /// Where to stop.
    pub stop: Stop,
    /// Whether to follow the tip until interrupted, with peers as the source.
    pub follow: bool,
    /// Files to write once the set is proven.
    pub outputs: &'a [Output],
    /// A commitment to the set, from another crate, to make once the set is proven.
    pub commitment: Option<&'a dyn SetCommitment>,
    /// Folders to write once the set is proven.
    pub folders: &'a [FolderOutput],
    /// Outputs of other crates that receive the set's coins.
    pub sets: &'a [&'a dyn SetOutput],
    /// Whether to compute the set's MuHash, which takes up to two microseconds a coin.
    pub muhash: bool,
    /// The environment of the sync.
    pub env: RunEnv<'a>,
}

/// Minimum memory in bytes.
const MEMORY_BYTES_MIN: u64 = 4 << 20;

impl<'a> RunEnv<'a> {
    /// Creates an environment with one thread and the minimum of memory, which makes nothing durable before
    /// the end.
    pub fn new(
        params: &'a Params,
        workdir: &'a dyn Storage,
        observer: &'a dyn Observer,
        interrupt: &'a AtomicBool,
    ) -> Self {
        Self {
            params,
            threads: 1,
            memory_bytes: MEMORY_BYTES_MIN,
            segment_bytes: None,
            scratch: None,
            checkpoint_interval: Duration::MAX,
            now: 0,
            signatures: Signatures::libsecp256k1(),
            verifier: None,
            workdir,
            is_shared: false,
            given: None,
            observer,
            interrupt,
        }
    }

    /// Returns the options for a search with the sync's threads.
    pub fn search(&self) -> SearchOptions<'_> {
        SearchOptions { threads: self.threads, observer: self.observer, interrupt: self.interrupt }
    }

    /// The error for a work folder that belongs to another sync; `what` names the difference.
    pub fn other_run(&self, what: impl Into<String>) -> SyncError {
        let (folder, what) = (self.workdir.describe(""), what.into());
        SyncError::Usage(UsageError::OtherRun { folder, what })
    }
}

impl<'a> Request<'a> {
    /// Returns how blocks are connected, if any may be.
    pub fn connect(&self) -> Option<&ConnectOptions<'a>> {
        match &self.task {
            Task::Hinted(task) => task.connect.as_ref(),
            Task::Unhinted(connect) | Task::InOrder(connect) => Some(connect),
            Task::MergeSync(task) => Some(&task.connect),
            Task::By(task) => task.connect.as_ref(),
        }
    }

    /// Returns [`connect`](Self::connect)'s options, or an error if the sync must connect blocks without any.
    pub fn expect_connect(&self) -> Result<&ConnectOptions<'a>, SyncError> {
        self.connect().ok_or(SyncError::Usage(UsageError::NothingToConnect))
    }

    /// The block up to which scripts are assumed valid, under Core's conditions; `None` if all scripts are
    /// run.
    pub fn assume_valid(&self) -> Option<BlockHash> {
        self.connect()?.assume_valid
    }

    /// Returns the index that follows the blocks, if there is one.
    pub fn index(&self) -> Option<&'a dyn ChainIndex> {
        match &self.task {
            Task::MergeSync(task) => task.index,
            _ => None,
        }
    }

    /// Whether the sync must compute a commitment to the set.
    pub fn wants_commitment(&self) -> bool {
        self.commitment.is_some_and(|commitment| commitment.is_wanted())
    }

    /// Returns the factory of the commitment's hashers, if there is a commitment.
    pub fn hasher(&self) -> Option<NewHasher> {
        self.commitment.map(|commitment| commitment.hasher())
    }
}

/// Opens the store that holds a sync's coins.
pub type OpenStore<'a> = dyn Fn() -> Result<Arc<dyn CoinsStore>, StoreError> + Sync + 'a;

/// How blocks are connected.
#[derive(Clone)]
pub struct ConnectOptions<'a> {
    /// The block up to which scripts are assumed valid, under Core's conditions; `None` if all scripts are
    /// run.
    pub assume_valid: Option<BlockHash>,
    /// Threads that fetch coins; 0 to look each coin up when it is needed.
    pub prevout_threads: usize,
    /// Memory for coins, and for undo data until it is flushed, in bytes.
    pub cache_bytes: u64,
    /// Opens the store of this sync's coins, which is deleted with its progress.
    pub store: &'a OpenStore<'a>,
    /// The store's name if it is outside the work folder; such a store stays when the progress is deleted.
    pub beyond: Option<String>,
    /// The work folder of a second pass over the blocks, used if hints are written. Deleted with the
    /// progress, too.
    pub hints_folder: PathBuf,
    /// The file with the positions of blocks in a data directory. Deleted with the progress, too.
    pub positions: PathBuf,
}

// [`Stop`]: where a sync ends, and which blocks are its last ones.

/// Where a sync ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Where the hints stop.
    AtHints,
    /// At this height, which is not below the hints' end.
    At(Height),
    /// At the tip of the most-work chain.
    AtTip,
}

impl Stop {
    /// Returns the height at which a sync on `chain` ends, with hints that stop at `hinted`.
    pub fn end(self, hinted: Height, chain: &HeaderChain) -> Height {
        match self {
            Self::AtHints => hinted,
            Self::At(height) => height,
            Self::AtTip => chain.tip_height(),
        }
    }

    /// Returns the height at which a sync without hints ends, or one that continues above them.
    pub fn end_in(self, dir: &dyn ChainSource) -> Result<Height, SyncError> {
        self.expect_in(dir)?;
        Ok(self.end(dir.chain().tip_height(), dir.chain()))
    }

    /// Fails if the chain does not reach that height.
    pub fn expect_in(self, dir: &dyn ChainSource) -> Result<(), SyncError> {
        let tip = dir.chain().tip_height();
        match self {
            Self::At(stop) if stop > tip => {
                let gap = dir.gap().clone();
                Err(SyncError::Invalid(InvalidError::StopAboveTip { stop, tip, gap }))
            }
            _ => Ok(()),
        }
    }
}

/// Number of last blocks that a node always keeps with their undo data (Core `validation.h`,
/// `MIN_BLOCKS_TO_KEEP`).
pub const LAST_BLOCKS: Height = 288;

/// The first of the last blocks of a chain that ends at `end`. Never the genesis block, which cannot be
/// disconnected.
pub fn first_of_last(end: Height) -> Height {
    (end + 1).saturating_sub(LAST_BLOCKS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_blocks_are_as_many_as_a_node_keeps() {
        for (end, first) in [(1, 1), (287, 1), (288, 1), (289, 2), (1000, 713)] {
            assert_eq!(first_of_last(end), first);
            assert_eq!(end + 1 - first, LAST_BLOCKS.min(end));
        }
    }
}
