//! One run from blocks to a UTXO set: headers, hints, blocks, coins.

use crate::blocks::Blocks;
use crate::blocksdir::{BlocksDir, UseIndex};
use crate::coins;
use crate::error::SyncError;
use crate::hints::{FileHints, HintsProvider, SnapshotHints, snapshot_header};
use crate::plan::{Plan, RunIdentity, divide};
use crate::progress::{Event, Observer, Phase, Progress};
use crate::source::BlockSource;
use crate::workdir::{Done, Workdir};
use apus_chain::{BlockHash, HeaderChain, Height, HeightRange, Params, ScriptVerifier};
use apus_engine::storage::Storage;
use apus_engine::swiftsync::aggregate::{AggregateKind, Aggregator, Secret};
use apus_engine::swiftsync::hints::{HintsInfo, HintsOptions};
use apus_engine::swiftsync::{SwiftSync, SwiftSyncError, Verdict};
use std::path::PathBuf;
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
pub struct Output {
    /// What.
    pub kind: OutputKind,
    /// The folder.
    pub storage: Box<dyn Storage>,
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

/// What to do.
pub struct Request<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Core's folder of block files.
    pub blocksdir: PathBuf,
    /// Which coins survive.
    pub hints: HintsInput,
    /// How that is proven.
    pub aggregate: AggregateKind,
    /// Where to stop, if the caller wants to be sure that it is where the hints stop.
    pub stop_height: Option<Height>,
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
    /// The set and what it took.
    pub verdict: Verdict,
    /// `hash_serialized_3` in internal order.
    pub hash_serialized_3: [u8; 32],
    /// Whether Core's own table of snapshots has this very set. A run that leads to another one
    /// for a block of the table fails.
    pub in_assumeutxo_table: bool,
    /// What the hints were, if they came from a hintsfile.
    pub hints: Option<HintsInfo>,
}

/// Computes the UTXO set that `request` asks for.
///
/// The progress stays in the work folder: once the outcome is told, call [`discard_progress`].
pub fn run(request: &Request<'_>) -> Result<Outcome, SyncError> {
    if request.aggregate == AggregateKind::None && !request.outputs.is_empty() {
        return Err(SyncError::Unproven);
    }
    let (dir, hints) = chain_and_hints(request)?;
    let (workdir, plan, done, provider) = hints.plan(request, &dir)?;
    let chain = dir.chain();
    let identity = &plan.identity;
    let aggregator =
        Aggregator::new(identity.aggregate, &plan.secret, identity.stop_hash, identity.hints);
    let engine = SwiftSync::new(request.params, chain, aggregator);
    let blocks = Blocks {
        params: request.params,
        chain,
        verifier: request.verifier,
        source: &dir,
        hints: &*provider,
        engine: &engine,
        observer: request.observer,
        interrupt: request.interrupt,
        threads: request.threads,
        checkpoint_interval: request.checkpoint_interval,
        held_bytes_max: request.memory_bytes / 4,
    };
    request.observer.event(Event::Started(Phase::Blocks));
    let done = blocks.run(&workdir, &plan.segments, done)?;
    let verdict = conclude(&engine, &workdir, &done, identity.stop)?;
    request.observer.event(Event::Ended { phase: Phase::Blocks, bytes: verdict.counts.bytes });
    let hash_serialized_3 = coins::write_out(request, &workdir, &plan, done, &verdict)?;
    Ok(Outcome {
        stop_height: identity.stop,
        stop_hash: identity.stop_hash,
        tip_height: chain.tip_height(),
        enough_work: chain.chain_work() >= request.params.minimum_chain_work,
        verdict,
        hash_serialized_3,
        in_assumeutxo_table: request.params.assumeutxo_for(&identity.stop_hash).is_some(),
        hints: hints.info(),
    })
}

/// Gives up the progress of a finished run. The plan goes last: killed in the middle, the same
/// command computes the same again instead of finding its own output in the way.
pub fn discard_progress(workdir: &dyn Storage) -> Result<(), SyncError> {
    Workdir::discard(workdir)
}

/// Finds the chain, and opens the hints for it. If the chain of Core's index does not reach as far
/// as the hints do, the index may be older than the files: then these are gone through.
fn chain_and_hints(request: &Request<'_>) -> Result<(BlocksDir, Hints), SyncError> {
    let dir = headers(request, UseIndex::IfPresent)?;
    match Hints::open(request, &dir) {
        Ok(hints) => Ok((dir, hints)),
        Err(SyncError::ChainTooShort { .. } | SyncError::BaseNotOnChain { .. })
            if dir.from_index() =>
        {
            let dir = headers(request, UseIndex::Never)?;
            let hints = Hints::open(request, &dir)?;
            Ok((dir, hints))
        }
        Err(error) => Err(error),
    }
}

/// Finds the chain.
fn headers(request: &Request<'_>, use_index: UseIndex) -> Result<BlocksDir, SyncError> {
    request.observer.event(Event::Started(Phase::Headers));
    let mut dir = BlocksDir::open(
        &request.blocksdir,
        request.params,
        request.now,
        use_index,
        request.observer,
        request.interrupt,
    )?;
    let buffer = request.memory_bytes / (4 * request.threads as u64);
    dir.set_buffer_bytes(buffer.clamp(256 << 10, 4 << 20) as usize);
    let chain = dir.chain();
    request.observer.event(Event::Ended { phase: Phase::Headers, bytes: dir.bytes_total() });
    request.observer.event(Event::ChainFound {
        tip: *chain.tip_hash(),
        height: chain.tip_height(),
        files: dir.file_count(),
        from_index: dir.from_index(),
    });
    Ok(dir)
}

/// The hints, opened, before it is known how the run is divided.
enum Hints {
    File(FileHints, Stop),
    Snapshot(PathBuf, Stop),
}

/// Hints ready to be asked for segments.
struct Opened<'a> {
    provider: Box<dyn HintsProvider + 'a>,
    sha256: [u8; 32],
    bytes: u64,
}

/// Where the hints end on this chain.
#[derive(Clone, Copy)]
struct Stop {
    height: Height,
    hash: BlockHash,
}

type Planned<'a> = (Workdir<'a>, Plan, Vec<Done>, Box<dyn HintsProvider + 'a>);

impl Hints {
    fn open(request: &Request<'_>, dir: &BlocksDir) -> Result<Self, SyncError> {
        request.observer.event(Event::Started(Phase::Hints));
        match &request.hints {
            HintsInput::File(path, options) => {
                let file = FileHints::open(path, options)?;
                let height = file.file().info().stop_height;
                let stop = stop_at(height, dir, request.stop_height)?;
                Ok(Self::File(file, stop))
            }
            HintsInput::Snapshot(path) => {
                let header = snapshot_header(path, request.params.network)?;
                let height = dir
                    .chain()
                    .height_of(&header.base_hash)
                    .ok_or(SyncError::BaseNotOnChain { base: header.base_hash })?;
                let stop = stop_at(height, dir, request.stop_height)?;
                Ok(Self::Snapshot(path.clone(), stop))
            }
        }
    }

    fn stop(&self) -> Stop {
        match self {
            Self::File(_, stop) | Self::Snapshot(_, stop) => *stop,
        }
    }

    fn info(&self) -> Option<HintsInfo> {
        match self {
            Self::File(file, _) => Some(file.file().info().clone()),
            Self::Snapshot(..) => None,
        }
    }

    /// Goes on with the plan in the work folder, or makes one.
    fn plan<'a>(
        &'a self,
        request: &'a Request<'_>,
        dir: &BlocksDir,
    ) -> Result<Planned<'a>, SyncError> {
        let stop = self.stop();
        let earlier = Workdir::read_plan(request.workdir)?;
        let mut identity = RunIdentity {
            network: request.params.network,
            stop: stop.height,
            stop_hash: stop.hash,
            hints: earlier.as_ref().map_or([0; 32], |plan| plan.identity.hints),
            aggregate: request.aggregate,
        };
        // All but the hints can be compared before they are read.
        expect_same(request, earlier.as_ref(), &identity)?;
        Workdir::clear_scratch(request.workdir)?;
        let segments = match &earlier {
            Some(plan) => plan.segments.clone(),
            None => {
                let bytes_total = (1..=stop.height).map(|height| dir.block_bytes(height)).sum();
                let bytes_target = segment_bytes(request, bytes_total);
                divide(stop.height, bytes_target, |height| dir.block_bytes(height))
            }
        };
        let Opened { provider, sha256, bytes } = self.provider(request, &segments)?;
        identity.hints = sha256;
        expect_same(request, earlier.as_ref(), &identity).or_else(|other| {
            // What these hints put into the folder is of no use to its run.
            Workdir::clear_scratch(request.workdir)?;
            Err(other)
        })?;
        request.observer.event(Event::Ended { phase: Phase::Hints, bytes });
        let Some(plan) = earlier else {
            let plan = Plan { identity, secret: new_secret()?, segments };
            let workdir = Workdir::start(request.workdir, &plan)?;
            return Ok((workdir, plan, Vec::new(), provider));
        };
        let (workdir, done) = Workdir::resume(request.workdir, &plan)?;
        let (segments, of) = (done.len(), plan.segments.len());
        request.observer.event(Event::Resumed { segments, of });
        Ok((workdir, plan, done, provider))
    }

    fn provider<'a>(
        &'a self,
        request: &'a Request<'_>,
        segments: &[HeightRange],
    ) -> Result<Opened<'a>, SyncError> {
        match self {
            Self::File(file, _) => {
                let info = file.file().info();
                Ok(Opened { provider: Box::new(file), sha256: info.sha256, bytes: info.bytes })
            }
            Self::Snapshot(path, _) => {
                let pass = SnapshotHints::read(
                    path,
                    segments,
                    request.workdir,
                    request.memory_bytes / 4,
                    &mut |coins| {
                        let progress = Progress { coins, ..Progress::default() };
                        request.observer.event(Event::Progress(Phase::Hints, progress));
                        stop_if_interrupted(request.interrupt)
                    },
                )?;
                let provider = Box::new(pass.hints);
                Ok(Opened { provider, sha256: pass.sha256, bytes: pass.bytes })
            }
        }
    }
}

fn expect_same(
    request: &Request<'_>,
    earlier: Option<&Plan>,
    identity: &RunIdentity,
) -> Result<(), SyncError> {
    match earlier.and_then(|plan| plan.identity.difference(identity)) {
        Some(what) => Err(SyncError::OtherRun { folder: request.workdir.describe(""), what }),
        None => Ok(()),
    }
}

fn stop_at(height: Height, dir: &BlocksDir, wanted: Option<Height>) -> Result<Stop, SyncError> {
    let chain: &HeaderChain = dir.chain();
    match wanted {
        Some(wanted) if wanted != height => {
            return Err(SyncError::StopHeight { wanted, hints: height });
        }
        _ if height == 0 => return Err(SyncError::NothingToDo),
        _ => {}
    }
    match chain.hash(height) {
        Some(&hash) => Ok(Stop { height, hash }),
        None => Err(SyncError::ChainTooShort {
            stop: height,
            tip: chain.tip_height(),
            gap: dir.gap().clone(),
        }),
    }
}

/// Small enough that a few of them are under way at once in the memory allowed, and that no thread
/// waits long for the others at the end; large enough that the whole main chain is some ten
/// thousand of them.
fn segment_bytes(request: &Request<'_>, bytes_total: u64) -> u64 {
    /// Segments for each thread, where the chain is long enough.
    const EACH: u64 = 24;
    let threads = request.threads as u64;
    let share = (request.memory_bytes / (4 * threads)).clamp(16 << 20, 128 << 20);
    let even = (bytes_total / (EACH * threads)).max(4 << 20);
    request.segment_bytes.unwrap_or(share.min(even))
}

fn new_secret() -> Result<Secret, SyncError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| SyncError::Random(error.to_string()))?;
    Ok(Secret(bytes))
}

pub(crate) fn stop_if_interrupted(interrupt: &AtomicBool) -> Result<(), SyncError> {
    if interrupt.load(Ordering::Relaxed) { Err(SyncError::Interrupted) } else { Ok(()) }
}

/// Decides. A key is good for one decision: when it is against the hints, the work folder goes.
fn conclude(
    engine: &SwiftSync,
    workdir: &Workdir<'_>,
    done: &[Done],
    stop: Height,
) -> Result<Verdict, SyncError> {
    let mut whole = engine.nothing();
    for done in done {
        whole.merge(&done.partial).map_err(|_| SyncError::WorkdirDamaged {
            file: done.run.name.replace(".run", ".part"),
        })?;
    }
    engine.conclude(&whole, stop).map_err(|error| {
        if !matches!(error, SwiftSyncError::Incomplete { .. }) {
            // The error to tell is the verdict, whatever becomes of the folder.
            let _ = workdir.wipe();
        }
        error.into()
    })
}
