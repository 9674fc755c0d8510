//! [`Request`]: what a run is asked for, and [`Outcome`], what came of it.
//!
//! Values only: what is done with them is elsewhere.

mod memory;
mod outcome;
mod stop;
#[cfg(test)]
pub(crate) mod testing;

pub use memory::Memory;
pub use outcome::{Outcome, Scripts};
pub(crate) use stop::first_of_last;
pub use stop::{LAST_BLOCKS, Stop};

use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::engines::swiftsync::hints::HintsOptions;
use crate::error::{SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::progress::Observer;
use crate::queue::{JobQueue, Jobs};
use crate::source::blocksdir::UseIndex;
use crate::source::peers::Peers;
use crate::source::{ChainSource, Search};
use apus_chain::{BlockHash, Params, ScriptVerifier};
use apus_datadir::BlocksFolder;
use apus_engine::utxo::forest::ForestStore;
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_p2p::addresses::NodeAddress;
use apus_p2p::transport::TransportChoice;
use apus_storage::Storage;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Where the hints come from.
#[derive(Debug, Clone)]
pub enum HintsInput {
    /// A BIP-456 hintsfile.
    File(PathBuf, HintsOptions),
    /// A UTXO snapshot as `dumptxoutset` writes it.
    Snapshot(PathBuf),
}

/// Where proofs of what blocks spend come from.
#[derive(Debug, Clone)]
pub enum ProofsInput {
    /// The folder of files of proofs.
    Folder(PathBuf),
    /// Bridge nodes of Utreexo.
    Peers(BridgePeers),
}

/// Bridge nodes, and how to connect to them.
#[derive(Debug, Clone)]
pub struct BridgePeers {
    /// Where they are; one at least.
    pub addresses: Vec<NodeAddress>,
    /// A SOCKS5 proxy to go through.
    pub proxy: Option<SocketAddr>,
    /// Which transports may be used.
    pub transport: TransportChoice,
    /// How long they may give nothing that was asked for.
    pub patience: Duration,
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
    /// The roots of the Utreexo forest.
    Utreexo,
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
    pub(crate) fn may_leave_index(&self) -> bool {
        matches!(self, Self::Files { use_index: UseIndex::IfPresent, .. })
    }
}

/// How blocks are done that no hints are about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Engine {
    /// One after the other, on coins that are looked up.
    #[default]
    Utxo,
    /// In any order: spends are joined with the coins that they take.
    MergeSync,
    /// Range by range in any order, by proofs of the coins that they spend. No set comes of it.
    Utreexo,
}

/// What to do.
pub struct Request<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Where blocks come from.
    pub source: Source<'a>,
    /// Which coins survive: up to where these stop, blocks are processed in any order.
    pub hints: Option<HintsInput>,
    /// What does blocks where there are no hints; if not given, mergesync does those of files, unless an
    /// earlier start began otherwise, and utxo those of peers.
    pub engine: Option<Engine>,
    /// Where proofs come from, for the engine that goes by them.
    pub proofs: Option<ProofsInput>,
    /// How that is proven.
    pub aggregate: AggregateKind,
    /// What becomes of hints that cover blocks which Core would check.
    pub hinted_validity: HintedValidity,
    /// How blocks above the hints are connected; needed wherever the run ends above them.
    pub connect: Option<ConnectOptions<'a>>,
    /// The block up to which witnesses are left alone, under Core's conditions for scripts that are taken for
    /// valid ([`BlockChecker::leave_witnesses`]); none where all are checked. They are all the same where blocks
    /// are handed on or proofs are made.
    ///
    /// [`BlockChecker::leave_witnesses`]: apus_chain::BlockChecker::leave_witnesses
    pub leave_witnesses: Option<BlockHash>,
    /// Where to stop.
    pub stop: Stop,
    /// Whether to stay at the tip until it is interrupted, with peers as the source.
    pub follow: bool,
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
    /// Files to write once the set is proven.
    pub outputs: &'a [Output],
    /// Folders to write once the set is proven.
    pub folders: &'a [FolderOutput],
    /// Whether the set's MuHash is wanted, which takes up to two microseconds a coin.
    pub muhash: bool,
    /// Proofs to make of what each block spends; for blocks of files, and the engine mergesync.
    pub bridge: Option<BridgeOptions<'a>>,
    /// Where segments are given to other machines; done by threads of this one where there is none.
    pub queue: Option<SharedQueue<'a>>,
    /// Told what happens.
    pub observer: &'a dyn Observer,
    /// Set from outside to stop the run.
    pub interrupt: &'a AtomicBool,
}

/// Does a job here, as a machine does it: what reads machines' answers lies below what does their jobs.
pub type DoJob = fn(&Request<'_>, &dyn Jobs, &dyn ChainSource) -> Result<(), SyncError>;

/// What a run needs to share its segments with other machines.
#[derive(Clone, Copy)]
pub struct SharedQueue<'a> {
    /// Where jobs go and answers come from.
    pub queue: &'a dyn JobQueue,
    /// Does a job that a machine refused: [`do_job`](crate::do_job).
    pub do_job: DoJob,
}

impl<'a> Request<'a> {
    /// The queue of a run that machines share.
    pub(crate) fn queue(&self) -> Option<&'a dyn JobQueue> {
        self.queue.map(|shared| shared.queue)
    }
}

impl Request<'_> {
    /// What a search on the run's threads goes by.
    pub(crate) fn search(&self) -> Search<'_> {
        Search { threads: self.threads, observer: self.observer, interrupt: self.interrupt }
    }

    /// Whether the leaves of the Utreexo forest must be told.
    pub(crate) fn wants_leaves(&self) -> bool {
        self.outputs.iter().any(|output| output.kind == OutputKind::Utreexo)
    }

    /// What is in the work folder is another run's, which says in which way.
    pub(crate) fn other_run(&self, what: impl Into<String>) -> SyncError {
        let (folder, what) = (self.workdir.describe(""), what.into());
        SyncError::Usage(UsageError::OtherRun { folder, what })
    }
}

/// Opens the coins of a run.
pub type OpenStore<'a> = dyn Fn() -> Result<Arc<dyn CoinsStore>, StoreError> + Sync + 'a;

/// Opens the forest of a run.
pub type OpenForest<'a> = dyn Fn() -> Result<Arc<dyn ForestStore>, StoreError> + Sync + 'a;

/// How proofs are made.
#[derive(Clone)]
pub struct BridgeOptions<'a> {
    /// The folder of their files.
    pub storage: Arc<dyn Storage>,
    /// The same as a path, to ask how much room is there; not asked where there is no such folder.
    pub folder: PathBuf,
    /// Files end at heights that are multiples of this.
    pub every: u32,
    /// Opens the forest, which stays when the progress goes.
    pub store: &'a OpenForest<'a>,
    /// Memory for the forest, in bytes.
    pub memory_bytes: u64,
}

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
