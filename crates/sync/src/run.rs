//! One run from blocks to a UTXO set: headers, hints, blocks, coins.

use crate::again::take_again;
use crate::anchor::{HintedValidity, Unanchored};
use crate::blocksdir::{BlocksDir, UseIndex};
use crate::coins;
use crate::connect::{self, ConnectOptions, Scripts};
use crate::error::{NoWayOn, SyncError};
use crate::folder::Mark;
use crate::hinted::{Hinted, Proven, prove};
use crate::invalid::{InvalidBlock, InvalidBlocks, chain_without};
use crate::memory::Memory;
use crate::peers::Peers;
use crate::progress::{ChainBy, Event, Observer, Phase};
use crate::read_back::{BlocksRead, complete};
use crate::source::ChainSource;
use crate::tail::end_of;
use crate::workdir::{Done, Workdir};
use apus_chain::{BlockHash, HeaderChain, Height, KnownBlock, Params, ScriptVerifier};
use apus_engine::storage::Storage;
use apus_engine::swiftsync::aggregate::AggregateKind;
use apus_engine::swiftsync::hints::{HintsInfo, HintsOptions};
use apus_engine::swiftsync::{CoinTotals, Counts};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where the hints come from.
#[derive(Debug, Clone)]
pub enum HintsInput {
    /// A BIP-456 hintsfile.
    File(PathBuf, HintsOptions),
    /// A UTXO snapshot as `dumptxoutset` writes it.
    Snapshot(PathBuf),
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

/// A folder to write.
#[derive(Debug, Clone)]
pub struct FolderOutput {
    /// What.
    pub kind: FolderKind,
    /// The folder, whose parent must exist.
    pub path: PathBuf,
    /// Whether a folder that is there already is moved aside at the end. Else the run fails.
    pub replace: bool,
}

impl FolderOutput {
    /// Whether it is a data directory for a node that prunes.
    pub(crate) fn is_pruned(&self) -> bool {
        self.kind == FolderKind::Datadir(Kept::Last)
    }
}

/// What a folder is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderKind {
    /// Bitcoin Core's coins: a `chainstate` folder.
    Chainstate,
    /// A data directory of Bitcoin Core's.
    Datadir(Kept),
}

/// What a data directory keeps of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// All blocks and undo data. For engines that know the coins that each block spends.
    Blocks,
    /// The last ones with undo data, and the index of all: what a pruned node has.
    Last,
}

/// A folder that was written.
#[derive(Debug, Clone)]
pub struct WrittenFolder {
    /// What.
    pub kind: FolderKind,
    /// Where.
    pub path: PathBuf,
    /// Bytes of the chainstate's tables.
    pub chainstate_bytes: u64,
    /// Coins that were read back from it, whose count and MuHash are the set's.
    pub coins_read_back: u64,
    /// Coins that it had when it was asked for them one by one.
    pub coins_looked_up: u64,
    /// What was read back of its blocks, if it has some or an index of them.
    pub blocks_read_back: BlocksRead,
    /// Where that went which was there before.
    pub moved_to: Option<PathBuf>,
    /// Keeps other runs out of it until this one is over.
    pub(crate) mark: Arc<Mark>,
}

/// Where blocks come from.
#[derive(Debug, Clone)]
pub enum Source<'a> {
    /// Core's block files.
    Files {
        /// Their folder.
        blocksdir: PathBuf,
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

/// What to do.
pub struct Request<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Where blocks come from.
    pub source: Source<'a>,
    /// Which coins survive: up to where these stop, blocks are processed in any order. Without
    /// them every block is connected in ascending height.
    pub hints: Option<HintsInput>,
    /// How that is proven.
    pub aggregate: AggregateKind,
    /// What becomes of hints that cover blocks which Core would check.
    pub hinted_validity: HintedValidity,
    /// How blocks above the hints are connected; needed wherever the run ends above them.
    pub connect: Option<ConnectOptions<'a>>,
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
    /// Told what happens.
    pub observer: &'a dyn Observer,
    /// Set from outside to stop the run.
    pub interrupt: &'a AtomicBool,
}

/// A finished run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The height whose UTXO set was computed.
    pub stop_height: Height,
    /// Its block.
    pub stop_hash: BlockHash,
    /// Height of the chain's tip; blocks above the stop height were not looked at.
    pub tip_height: Height,
    /// Whether the chain found has as much work as the real one is known to have at least.
    pub enough_work: bool,
    /// How much was processed.
    pub counts: Counts,
    /// The UTXO set's totals.
    pub coins: CoinTotals,
    /// MuHash of the set in internal order, as `gettxoutsetinfo muhash` shows it reversed.
    pub muhash: [u8; 32],
    /// `hash_serialized_3` in internal order.
    pub hash_serialized_3: [u8; 32],
    /// By what it was proven, for the blocks up to the hints' stop height, that each coin spent
    /// existed and was spent once; none where there were no hints.
    pub aggregate: Option<AggregateKind>,
    /// The first height that was connected, with every rule on amounts and order; none where the
    /// run ended with the hints.
    pub connected_from: Option<Height>,
    /// Which scripts of the connected blocks were run.
    pub scripts: Scripts,
    /// Whether Core's own table of snapshots has this very set. A run that leads to another one
    /// for a block of the table fails.
    pub in_assumeutxo_table: bool,
    /// What the hints were, if they came from a hintsfile.
    pub hints: Option<HintsInfo>,
    /// The blocks under hints that were taken for valid on the user's word alone.
    pub unanchored: Option<Unanchored>,
    /// The folders that were written.
    pub folders: Vec<WrittenFolder>,
}

/// Computes the UTXO set that `request` asks for.
///
/// The progress stays in the work folder: once the outcome is told, call [`discard_progress`].
pub fn run<'a>(request: &'a Request<'a>) -> Result<Outcome, SyncError> {
    if let Source::Peers(peers) = &request.source
        && request.folders.iter().any(FolderOutput::is_pruned)
    {
        peers.keep_counts()?;
    }
    let outcome = compute(request);
    if let (Err(_), Source::Peers(peers)) = (&outcome, &request.source) {
        peers.store_counts();
    }
    outcome
}

fn compute<'a>(request: &'a Request<'a>) -> Result<Outcome, SyncError> {
    let writes = !(request.outputs.is_empty() && request.folders.is_empty());
    if request.aggregate == AggregateKind::None && writes {
        return Err(SyncError::Unproven);
    }
    let Some(hints) = &request.hints else {
        let dir = headers(request, None)?;
        return connect::run(request, dir, None);
    };
    let proven = match prove(request, hints)? {
        Hinted::Proven(proven) => *proven,
        Hinted::NotNeeded(dir, hints) => {
            return Ok(Outcome { hints, ..connect::run(request, dir, None)? });
        }
    };
    let end = end_of(request.stop, proven.plan.identity.stop, &*proven.dir);
    if end == proven.at.height && !request.follow {
        write_proven(request, proven)
    } else {
        connect_on(request, proven)
    }
}

/// Writes out the set where the hints stop.
fn write_proven(request: &Request<'_>, proven: Proven<'_>) -> Result<Outcome, SyncError> {
    let Proven { dir, workdir, plan, done, verdict, hints, unanchored, .. } = proven;
    // What was too young to be made durable: now that costs less than doing it again.
    let held: Vec<Done> = done.iter().filter(|done| done.run.held.is_some()).cloned().collect();
    let written = coins::write_out(request, &*dir, &workdir, &plan, done, &verdict);
    let (set, mut put) = written.inspect_err(|error| {
        if !matches!(error, SyncError::AssumeUtxo { .. }) {
            // Whether or not this works, the error to tell is the first.
            let _ = held.into_iter().try_for_each(|mut done| workdir.store(&mut done));
        }
    })?;
    let identity = &plan.identity;
    take_again(request, &*dir, &dir.not_kept(identity.stop))?;
    complete(request, &*dir, set, &mut put.folders)?;
    Ok(Outcome {
        stop_height: identity.stop,
        stop_hash: identity.stop_hash,
        tip_height: dir.chain().tip_height(),
        enough_work: dir.chain().chain_work() >= request.params.minimum_chain_work,
        counts: verdict.counts,
        coins: verdict.coins,
        muhash: verdict.muhash,
        hash_serialized_3: put.hash_serialized_3,
        aggregate: Some(verdict.aggregate),
        connected_from: None,
        scripts: Scripts::default(),
        in_assumeutxo_table: request.params.assumeutxo_for(&identity.stop_hash).is_some(),
        hints,
        unanchored,
        folders: put.folders,
    })
}

/// Connects the blocks above the hints on the coins that were proven.
fn connect_on<'a>(request: &'a Request<'a>, proven: Proven<'a>) -> Result<Outcome, SyncError> {
    let Proven { dir, at, done, verdict, hints, unanchored, .. } = proven;
    if verdict.aggregate == AggregateKind::None {
        return Err(SyncError::Unproven);
    }
    let base = connect::Base { at, done, verdict };
    Ok(Outcome { hints, unanchored, ..connect::run(request, dir, Some(base))? })
}

/// Gives up the progress of a finished run. The plan goes last: killed in the middle, the same
/// command computes the same again instead of finding its own output in the way.
pub fn discard_progress(workdir: &dyn Storage) -> Result<(), SyncError> {
    Workdir::discard(workdir)
}

/// Gives up the progress of a run that failed, but for what was downloaded; tells whether there is
/// any of that.
pub fn give_up_progress(workdir: &dyn Storage) -> Result<bool, SyncError> {
    Workdir::give_up(workdir)
}

/// Fails unless `workdir` is empty or a work folder: nothing may be written or removed there before.
pub fn expect_work_folder(workdir: &dyn Storage) -> Result<(), SyncError> {
    Workdir::read_plan(workdir).map(|_| ())
}

/// Whether a later start goes on from something in the work folder.
pub fn has_progress(workdir: &dyn Storage) -> bool {
    Workdir::has_progress(workdir)
}

/// Finds the chain. Block files may be looked at in another way than asked for.
pub(crate) fn headers<'a>(
    request: &'a Request<'_>,
    use_index: Option<UseIndex>,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    request.observer.event(Event::Started(Phase::Headers));
    match &request.source {
        Source::Files { blocksdir, use_index: asked } => {
            Ok(Arc::new(files(request, blocksdir, use_index.unwrap_or(*asked))?))
        }
        Source::Peers(peers) => {
            let found = peers.settle(request.observer, request.interrupt)?;
            let chain = found.chain();
            let (bytes, height) = (found.headers_bytes(), chain.tip_height());
            request.observer.event(Event::Ended { phase: Phase::Headers, bytes });
            let tip = *chain.tip_hash();
            request.observer.event(Event::ChainFound { tip, height, by: ChainBy::Peers });
            Ok(Arc::new(found))
        }
    }
}

/// A chain that has more work than the one that was connected, if the run is to go on with one.
pub(crate) fn better_chain<'a>(
    request: &'a Request<'_>,
    than: &HeaderChain,
) -> Result<Option<Arc<dyn ChainSource + 'a>>, SyncError> {
    match (&request.source, request.stop) {
        (Source::Peers(peers), Stop::AtTip) => {
            let waiting = Event::Waiting { height: than.tip_height(), tip: *than.tip_hash() };
            let wait = || request.observer.event(waiting.clone());
            let found = peers.better_chain(than, request.follow, &wait, request.interrupt)?;
            Ok(found.map(|chain| Arc::new(chain) as Arc<dyn ChainSource + 'a>))
        }
        _ => Ok(None),
    }
}

/// A chain to go on with where `than` fails with `error`: one without the block that is invalid or
/// cannot be had. `base` is a block that the chain must have.
///
/// # Errors
/// `error`, perhaps with the reason why there is no such chain, where there is none.
pub(crate) fn other_chain<'a>(
    request: &'a Request<'_>,
    than: &dyn ChainSource,
    base: KnownBlock,
    error: SyncError,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    let peers = match &request.source {
        Source::Peers(peers) => peers,
        Source::Files { blocksdir, use_index } => {
            return chain_without(request, (blocksdir, *use_index), than, base, error);
        }
    };
    let found = peers.other_chain(than.chain(), &error, request.follow, request.interrupt)?;
    match found {
        Some(chain) if chain.chain().hash(base.height) != Some(&base.hash) => {
            Err(error.without_way(NoWayOn::BelowHints { stop: base.height }))
        }
        Some(chain) => Ok(Arc::new(chain)),
        None if InvalidBlock::of(&error).is_some() => Err(error.without_way(NoWayOn::Peers)),
        None => Err(error),
    }
}

/// A chain of more work than one that is too short, where the source may yet learn of one.
pub(crate) fn longer_chain<'a>(
    request: &'a Request<'_>,
    than: &HeaderChain,
) -> Result<Option<Arc<dyn ChainSource + 'a>>, SyncError> {
    match &request.source {
        Source::Peers(peers) => {
            let found = peers.longer_chain(than, request.interrupt)?;
            Ok(found.map(|chain| Arc::new(chain) as Arc<dyn ChainSource + 'a>))
        }
        Source::Files { .. } => Ok(None),
    }
}

/// The chain of Core's block files, without the blocks that proved invalid in an earlier start.
fn files(
    request: &Request<'_>,
    blocksdir: &Path,
    use_index: UseIndex,
) -> Result<BlocksDir, SyncError> {
    let invalid = match use_index {
        UseIndex::Connected => InvalidBlocks::default(),
        _ => InvalidBlocks::read(request.workdir, request.params.network)?,
    };
    let dir = open_files(request, blocksdir, use_index, invalid.all(), request.observer)?;
    for block in &dir.gap().invalid {
        request.observer.event(Event::RunWarning(format!(
            "{block}. An earlier start put it aside, with what descends from it"
        )));
    }
    let chain = dir.chain();
    // By the index, the files themselves are not gone through.
    let bytes = if dir.is_by_index() { 0 } else { dir.bytes_total() };
    request.observer.event(Event::Ended { phase: Phase::Headers, bytes });
    request.observer.event(Event::ChainFound {
        tip: *chain.tip_hash(),
        height: chain.tip_height(),
        by: ChainBy::Files { files: dir.file_count(), index: dir.is_by_index() },
    });
    Ok(dir)
}

/// The chain of Core's block files without some blocks.
pub(crate) fn open_files(
    request: &Request<'_>,
    blocksdir: &Path,
    use_index: UseIndex,
    invalid: &[InvalidBlock],
    observer: &dyn Observer,
) -> Result<BlocksDir, SyncError> {
    let (params, now, interrupt) = (request.params, request.now, request.interrupt);
    let mut dir =
        BlocksDir::open_without(blocksdir, params, now, use_index, invalid, observer, interrupt)?;
    dir.set_buffer_bytes(Memory::reader_bytes(request.memory_bytes, request.threads) as usize);
    Ok(dir)
}

pub(crate) fn stop_if_interrupted(interrupt: &AtomicBool) -> Result<(), SyncError> {
    if interrupt.load(Ordering::Relaxed) { Err(SyncError::Interrupted) } else { Ok(()) }
}
