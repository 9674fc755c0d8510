//! [`Request`]: what a run is asked for, and [`Outcome`], what came of it.
//!
//! Values only: what is done with them is elsewhere.

use crate::chain_index::ChainIndex;
use crate::commitment::{NewHasher, SetCommitment};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::engines::swiftsync::hints::HintsOptions;
use crate::error::{InvalidError, SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::machines::{Machines, SharedPass};
use crate::progress::Observer;
use crate::source::GivenBlocks;
use crate::source::blocksdir::UseIndex;
use crate::source::peers::Peers;
use crate::source::{ChainSource, SearchOptions};
use apus_chain::{BlockHash, HeaderChain, Height, Params, ScriptVerifier};
use apus_datadir::BlocksFolder;
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

/// Where the hints come from.
#[derive(Debug, Clone)]
pub enum HintsInput {
    /// A BIP-456 hintsfile.
    File(PathBuf, HintsOptions),
    /// A UTXO snapshot as `dumptxoutset` writes it.
    Snapshot(PathBuf),
}

/// What a run does where blocks under hints are not all assumed valid by Core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintedValidity {
    /// It refuses the hints, before the first block is taken.
    Anchored,
    /// It takes the blocks for valid, as its user does (`--assumevalid hints`), and warns of it.
    Assumed,
    /// It checks every rule all the same: by undo data where these are at hand, and otherwise without the
    /// hints, up to where they stop.
    Checked,
    /// It says nothing of it. For callers that ask only whether hints and blocks fit each other, and for
    /// blocks that were checked by other means. What is written is to say no more than that.
    NotAsked,
}

/// A file to write.
#[derive(Clone)]
pub struct Output {
    /// What.
    pub kind: OutputKind,
    /// The folder.
    pub storage: Arc<dyn Storage>,
    /// The file's name in it.
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
    /// Whether the coins of the set go into it, by a [`CoinSink`](crate::sink::CoinSink). Hints are made of the places of coins.
    pub fn takes_coins(self) -> bool {
        self != Self::Hints
    }
}

/// Where blocks come from.
#[derive(Debug, Clone)]
pub enum Source<'a> {
    /// Core's block files.
    Files {
        /// Their folder, and that of their index.
        blocksdir: BlocksFolder,
        /// Whether Core's index of them is looked at.
        use_index: UseIndex,
    },
    /// Peers.
    Peers(&'a Peers<'a>),
}

impl Source<'_> {
    /// Whether going through all files is another way to find the chain.
    pub fn may_leave_index(&self) -> bool {
        matches!(self, Self::Files { use_index: UseIndex::IfPresent, .. })
    }
}

/// What did blocks that no hints are about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Engine {
    /// One after the other, on coins that are looked up.
    #[default]
    Utxo,
    /// In any order: spends are joined with the coins that they take.
    MergeSync,
    /// Any other ([`Task::By`]), by its name.
    Outside(&'static str),
}

/// What does blocks, and what it has to know for that.
#[derive(Clone)]
pub enum Task<'a> {
    /// Blocks in any order under hints, up to where these stop; those above one after the other.
    Hinted(HintedTask<'a>),
    /// All blocks without hints, by what fits: [`MergeSync`](Self::MergeSync) where they are files, [`InOrder`](Self::InOrder)
    /// where they come from peers, unless an earlier start began otherwise.
    Unhinted(ConnectOptions<'a>),
    /// All blocks one after the other, on coins that are looked up.
    InOrder(ConnectOptions<'a>),
    /// All blocks in any order: spends are joined with the coins that they take.
    MergeSync(MergeSyncTask<'a>),
    /// All blocks by any other engine.
    By(EngineTask<'a>),
}

/// Blocks by any other engine.
#[derive(Clone)]
pub struct EngineTask<'a> {
    /// What does them.
    pub engine: &'a dyn ChainEngine,
    /// How it connects blocks; none for an engine that asks nothing of it.
    pub connect: Option<ConnectOptions<'a>>,
}

/// An engine: it turns the blocks of a chain, up to where a request ends, into a verdict on all of them and, if it keeps
/// one, the UTXO set after the last.
///
/// It is handed the chain, and asks it for blocks by height; where they lie and which chain is the best one is settled.
/// Its progress goes into [`RunEnv::workdir`], so that the same request goes on after a kill, and what it comes to must not
/// depend on threads, timing or memory. An engine that takes blocks segment by segment in any order is a
/// [`Pass`](crate::engines::pass::Pass), which the run drives.
pub trait ChainEngine: Sync {
    /// Does the blocks, or has `machines` do its segments.
    ///
    /// # Errors
    /// The lowest block that breaks a rule, whatever is found first; an engine's own errors are [`RunError`](crate::RunError)s.
    fn run<'a>(
        &self,
        request: &'a Request<'a>,
        chain: Arc<dyn ChainSource + 'a>,
        machines: Option<&dyn Machines>,
    ) -> Result<Outcome, SyncError>;

    /// By what other machines do its segments, if they can.
    fn shared(&self) -> Option<&dyn SharedPass> {
        None
    }
}

/// Blocks under hints.
#[derive(Clone)]
pub struct HintedTask<'a> {
    /// Which coins survive.
    pub hints: HintsInput,
    /// How that is proven.
    pub aggregate: AggregateKind,
    /// What becomes of hints that cover blocks which Core would check.
    pub validity: HintedValidity,
    /// How blocks above the hints are connected; needed wherever the run ends above them.
    pub connect: Option<ConnectOptions<'a>>,
}

/// Blocks whose spends are joined with coins.
#[derive(Clone)]
pub struct MergeSyncTask<'a> {
    /// How blocks are connected.
    pub connect: ConnectOptions<'a>,
    /// An index from outside that follows the blocks; for blocks of files.
    pub index: Option<&'a dyn ChainIndex>,
}

/// With what a run works, whatever it does.
#[derive(Clone, Copy)]
pub struct RunEnv<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Worker threads, at least one.
    pub threads: usize,
    /// Memory for buffers, in bytes.
    pub memory_bytes: u64,
    /// Bytes of blocks in a segment; by the other budgets where not given.
    pub segment_bytes: Option<u64>,
    /// The longest that finished segments wait to be made durable together: what a crash costs
    /// beside the segments under way.
    pub checkpoint_interval: Duration,
    /// Seconds since 1970, for the rule against blocks from the future.
    pub now: i64,
    /// Runs scripts; needed for signet.
    pub verifier: Option<&'a dyn ScriptVerifier>,
    /// Progress is kept here.
    pub workdir: &'a dyn Storage,
    /// Whether other machines do the segments ([`run_shared`](crate::run_shared)), and threads of this one none.
    pub is_shared: bool,
    /// From where these have blocks of the run's folder, if this run hands them out.
    pub given: Option<&'a GivenBlocks>,
    /// Told what happens.
    pub observer: &'a dyn Observer,
    /// Set from outside to stop the run.
    pub interrupt: &'a AtomicBool,
}

/// What to do.
#[derive(Clone)]
pub struct Request<'a> {
    /// Where blocks come from.
    pub source: Source<'a>,
    /// What does them.
    pub task: Task<'a>,
    /// The block up to which witnesses are left alone, under Core's conditions for scripts that are taken for
    /// valid ([`BlockChecker::leave_witnesses`]); none where all are checked. They are all the same where blocks
    /// are handed on or an index follows them.
    ///
    /// [`BlockChecker::leave_witnesses`]: apus_chain::BlockChecker::leave_witnesses
    pub leave_witnesses: Option<BlockHash>,
    /// Where to stop.
    pub stop: Stop,
    /// Whether to stay at the tip until it is interrupted, with peers as the source.
    pub follow: bool,
    /// Files to write once the set is proven.
    pub outputs: &'a [Output],
    /// A commitment to the set, from outside, to make once the set is proven.
    pub commitment: Option<&'a dyn SetCommitment>,
    /// Folders to write once the set is proven.
    pub folders: &'a [FolderOutput],
    /// Whether the set's MuHash is wanted, which takes up to two microseconds a coin.
    pub muhash: bool,
    /// With what the run works.
    pub env: RunEnv<'a>,
}

/// The least memory that is of any use, in bytes.
const MEMORY_BYTES_MIN: u64 = 4 << 20;

impl<'a> RunEnv<'a> {
    /// One thread with the least memory, which makes nothing durable on the way.
    pub const fn new(
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
            checkpoint_interval: Duration::MAX,
            now: 0,
            verifier: None,
            workdir,
            is_shared: false,
            given: None,
            observer,
            interrupt,
        }
    }

    /// What a search on the run's threads goes by.
    pub fn search(&self) -> SearchOptions<'_> {
        SearchOptions { threads: self.threads, observer: self.observer, interrupt: self.interrupt }
    }

    /// What is in the work folder is another run's, which says in which way.
    pub fn other_run(&self, what: impl Into<String>) -> SyncError {
        let (folder, what) = (self.workdir.describe(""), what.into());
        SyncError::Usage(UsageError::OtherRun { folder, what })
    }
}

impl<'a> Request<'a> {
    /// How blocks are connected, if any may be.
    pub fn connect(&self) -> Option<&ConnectOptions<'a>> {
        match &self.task {
            Task::Hinted(task) => task.connect.as_ref(),
            Task::Unhinted(connect) | Task::InOrder(connect) => Some(connect),
            Task::MergeSync(task) => Some(&task.connect),
            Task::By(task) => task.connect.as_ref(),
        }
    }

    /// The same where the run comes to blocks that are to be connected.
    pub fn expect_connect(&self) -> Result<&ConnectOptions<'a>, SyncError> {
        self.connect().ok_or(SyncError::Usage(UsageError::NothingToConnect))
    }

    /// The block up to which scripts are taken for valid, under Core's conditions; none where all are to be run.
    pub fn assume_valid(&self) -> Option<BlockHash> {
        self.connect()?.assume_valid
    }

    /// The index that follows the blocks, if there is one.
    pub fn index(&self) -> Option<&'a dyn ChainIndex> {
        match &self.task {
            Task::MergeSync(task) => task.index,
            _ => None,
        }
    }

    /// Whether a commitment to the set is to be made.
    pub fn wants_commitment(&self) -> bool {
        self.commitment.is_some_and(|commitment| commitment.is_wanted())
    }

    /// What hashes coins for a commitment, if one is given.
    pub fn hasher(&self) -> Option<NewHasher> {
        self.commitment.map(|commitment| commitment.hasher())
    }
}

/// Opens the coins of a run.
pub type OpenStore<'a> = dyn Fn() -> Result<Arc<dyn CoinsStore>, StoreError> + Sync + 'a;

/// How blocks are connected.
#[derive(Clone)]
pub struct ConnectOptions<'a> {
    /// The block up to which scripts are taken for valid, under Core's conditions; none where all
    /// are to be run.
    pub assume_valid: Option<BlockHash>,
    /// Threads that fetch coins; 0 to look them up where they are needed.
    pub prevout_threads: usize,
    /// Memory for coins, and for undo data until it is flushed, in bytes.
    pub cache_bytes: u64,
    /// Opens the folder of this run's coins, which goes with its progress.
    pub store: &'a OpenStore<'a>,
    /// What the store is called where it is no folder of this run's, and stays when the progress goes.
    pub beyond: Option<String>,
    /// Where a second pass over the blocks works, which is there if hints are to be written. Goes
    /// with the progress, too.
    pub hints_folder: PathBuf,
    /// The file that notes where blocks lie which go into a data directory. Goes with the progress,
    /// too.
    pub positions: PathBuf,
}

// [`Stop`]: where a run ends, and which blocks are its last ones.

/// Where a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Where the hints do.
    AtHints,
    /// At this height, which is not below that of the hints.
    At(Height),
    /// At the tip of the most-work chain.
    AtTip,
}

impl Stop {
    /// The height at which a run on `chain` ends, with hints that stop at `hinted`.
    pub fn end(self, hinted: Height, chain: &HeaderChain) -> Height {
        match self {
            Self::AtHints => hinted,
            Self::At(height) => height,
            Self::AtTip => chain.tip_height(),
        }
    }

    /// The height at which a run without hints ends, or one that goes on above them.
    pub fn end_in(self, dir: &dyn ChainSource) -> Result<Height, SyncError> {
        self.expect_in(dir)?;
        Ok(self.end(dir.chain().tip_height(), dir.chain()))
    }

    /// Fails where the chain does not reach up to it.
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

/// So many of its last blocks a node always keeps with their undo data (Core `validation.h`,
/// `MIN_BLOCKS_TO_KEEP`).
pub const LAST_BLOCKS: Height = 288;

/// The first of the last blocks of a chain that ends at `end`. The genesis block is never among them:
/// nothing goes back over it.
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
