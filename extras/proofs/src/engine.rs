//! The work of the engine utreexo: every rule, range by range in any order, by proofs from files or peers.
//!
//! A segment is the range of one file, or one that the run cuts itself where peers tell of it. Ranges that are done are kept in the work folder, as by other
//! [passes](apus_sync::pass): what is kept of one is the roots with which it begins and ends, and numbers. No set comes of
//! it, so nothing can be written but the roots after the last block.

mod coins;
mod error;
mod files;
mod partial;
mod peers;
mod shared;
mod state;

pub use coins::{EntryError, LeafFault};
pub use error::{ByProofsError, ProvenError};
pub use files::{ProofRange, ProofReader, ProofSource};
pub use partial::{AmountSums, Partial, ProvenMergeError, RootsDiffer};
pub use shared::ProvenSegments;
pub use state::{Segment, Utreexo, Verdict};

use crate::error::ProofsError;
use apus_chain::{BlockHash, Height, HeightRange, KnownBlock};
use apus_engine::script::ScriptPool;
use apus_p2p::addresses::NodeAddress;
use apus_p2p::transport::TransportChoice;
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::CoinTotals;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::error::{InvalidBlock, IoError, NoWayOn, SyncError, UsageError};
use apus_sync::machines::{Elsewhere, Machines, SharedPass};
use apus_sync::pass::{self, PassJob, Threads, assumed_by, expect_same};
use apus_sync::request::{
    ChainEnd, ChainEngine, Engine, HintsProof, Outcome, Request, ScriptCounts, SetSummary,
    Validation, Written,
};
use apus_sync::source::ChainSource;
use apus_sync::workdir::plan::{Plan, RunIdentity};
use apus_sync::workdir::record::Record;
use apus_sync::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_sync::{Event, Phase};
use apus_utreexo::Roots;
use files::ProofFiles;
pub use files::ProofFolder;
pub use peers::{Asking, PeerProofs};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The engine's name.
pub const ENGINE: &str = "utreexo";

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

/// All blocks range by range in any order, by proofs of the coins that they spend. No set comes of it.
pub struct ByProofs {
    proofs: ProofsInput,
    /// The block up to which scripts are taken for valid, under Core's conditions; none where all are to be run.
    assume_valid: Option<BlockHash>,
    segments: ProvenSegments,
    roots: Mutex<Option<Roots>>,
}

impl ByProofs {
    /// By these proofs. Scripts are taken for valid up to a block, under Core's conditions; all are run where none is given.
    pub fn new(proofs: ProofsInput, assume_valid: Option<BlockHash>) -> Self {
        let segments = ProvenSegments { proofs: Some(proofs.clone()) };
        Self { proofs, assume_valid, segments, roots: Mutex::default() }
    }

    /// Where they come from.
    pub fn proofs(&self) -> &ProofsInput {
        &self.proofs
    }

    /// The roots after the last block of the run that ended well last.
    pub fn roots(&self) -> Option<Roots> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ChainEngine for ByProofs {
    fn run<'a>(
        &self,
        request: &'a Request<'a>,
        chain: Arc<dyn ChainSource + 'a>,
        machines: Option<&dyn Machines>,
    ) -> Result<Outcome, SyncError> {
        let Validated { stop, verdict, scripts } = self.validate(request, &*chain, machines)?;
        let AmountSums { coins, amount, bogosize } = verdict.coins;
        let totals = CoinTotals { coins, transactions: 0, amount, bogosize };
        *self.roots.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict.roots);
        Ok(Outcome {
            chain: ChainEnd::new(request.env.params, chain.chain(), stop),
            validation: Validation {
                engine: Engine::Outside(ENGINE),
                hints: HintsProof::default(),
                connected_from: Some(1),
                scripts,
                unseen_witnesses: 0,
            },
            counts: verdict.counts,
            set: SetSummary { totals, hashes: None, in_assumeutxo_table: false },
            written: Written::default(),
        })
    }

    fn shared(&self) -> Option<&dyn SharedPass> {
        Some(&self.segments)
    }
}

/// What a run of the engine comes to.
struct Validated {
    /// The last block.
    stop: KnownBlock,
    verdict: Verdict,
    scripts: ScriptCounts,
}

impl ByProofs {
    /// Validates all blocks up to where the run ends, and writes the roots.
    fn validate(
        &self,
        request: &Request<'_>,
        dir: &dyn ChainSource,
        machines: Option<&dyn Machines>,
    ) -> Result<Validated, SyncError> {
        expect_no_set(request)?;
        let height = request.stop.end_in(dir)?;
        if height == 0 {
            return Err(SyncError::Usage(UsageError::NothingToDo));
        }
        request.env.observer.event(Event::Started(Phase::Hints));
        let told = ProofInput::open(request, &self.proofs, dir, height)?;
        let (workdir, plan, done) = self.begin(request, dir, &told, height)?;
        request.env.observer.event(Event::Ended { phase: Phase::Hints, bytes: told.bytes });
        let assumed = plan.identity.assumed;
        // Each thread runs the scripts of the block that it takes; where machines share the run, they do.
        let runs_scripts = assumed < height && !request.env.is_shared;
        let scripts = runs_scripts.then(|| ScriptPool::new(0)).transpose()?;
        request.env.observer.event(Event::Started(Phase::Blocks));
        let before: u64 = done.iter().map(|done| done.partial.counts.bytes).sum();
        let pass = Utreexo::new(request.env.params, dir.chain(), assumed, scripts);
        let input = |range| told.from.range(range).map_err(|what| no_roots(range, &what));
        let job = PassJob { request, source: dir, pass: &pass, input: &input, unseen: 0 };
        let done = match machines {
            None => pass::run(&job, &Threads, &workdir, &plan.segments, done),
            Some(machines) => {
                let roots = |range| Ok(shared::write(told.from.roots(range)));
                let elsewhere = Elsewhere { machines, plan: &plan, name: ENGINE, told: &roots };
                pass::run(&job, &elsewhere, &workdir, &plan.segments, done)
            }
        };
        let done = done.map_err(|error| with_reason(request, error, height))?;
        let verdict = conclude(&pass, &workdir, &done, height)?;
        let bytes = verdict.counts.bytes - before;
        request.env.observer.event(Event::Ended { phase: Phase::Blocks, bytes });
        write_roots(request, &verdict)?;
        let stop = KnownBlock { height, hash: plan.identity.stop_hash };
        let (run, assumed) = (u64::from(height - assumed), u64::from(assumed));
        Ok(Validated { stop, verdict, scripts: ScriptCounts { run, assumed } })
    }

    /// Goes on with the plan in the work folder, or makes one.
    fn begin<'a>(
        &self,
        request: &Request<'a>,
        dir: &dyn ChainSource,
        told: &ProofInput<'_>,
        stop: Height,
    ) -> Result<Planned<'a>, SyncError> {
        let earlier = Workdir::read_plan(request.env.workdir)?;
        if earlier.is_none() && Record::read(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("by another engine"));
        }
        let now = assumed_by(request, dir, self.assume_valid).min(stop);
        let identity = RunIdentity {
            network: request.env.params.network,
            stop,
            stop_hash: dir.chain().hash(stop).copied().unwrap_or_default(),
            hints: told.id,
            aggregate: AggregateKind::None,
            // As the earlier start took it, if that was fewer.
            assumed: earlier.as_ref().map_or(now, |plan| plan.identity.assumed.min(now)),
            // Coins are made up of them.
            unseen: 0,
            numbered: false,
            muhash: false,
        };
        if earlier.as_ref().is_some_and(|plan| plan.identity.hints != identity.hints) {
            return Err(request.env.other_run("by other ranges of proofs, or by another engine"));
        }
        expect_same(request, earlier.as_ref(), &identity)?;
        Workdir::clear_scratch(request.env.workdir)?;
        pass::begin_or_go_on::<Utreexo<'a>>(request, earlier, identity, told.ranges.clone())
    }
}

/// Where ranges are told of, and which ones these are.
struct ProofInput<'a> {
    from: Teller<'a>,
    /// Ascending.
    ranges: Vec<HeightRange>,
    /// By what a later start knows that they are the same.
    id: [u8; 32],
    /// Bytes of proofs, where that is known before.
    bytes: u64,
}

/// Who tells of them.
enum Teller<'a> {
    Files(ProofFiles),
    Peers(Box<PeerProofs<'a>>),
    /// Peers that other machines ask, each its own.
    Elsewhere,
}

impl Teller<'_> {
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        match self {
            Self::Files(files) => files.range(heights),
            Self::Peers(peers) => peers.range(heights),
            Self::Elsewhere => Err("other machines ask for them".to_owned()),
        }
    }

    /// The roots around a range, as far as they are known here.
    fn roots(&self, heights: HeightRange) -> Option<(&Roots, &Roots)> {
        match self {
            Self::Files(files) => files.roots(heights),
            Self::Peers(_) | Self::Elsewhere => None,
        }
    }
}

impl<'a> ProofInput<'a> {
    /// Files, or peers, that tell of the blocks from 1 to `stop`.
    fn open(
        request: &Request<'a>,
        proofs: &'a ProofsInput,
        dir: &'a dyn ChainSource,
        stop: Height,
    ) -> Result<Self, SyncError> {
        let (network, chain) = (request.env.params.network, dir.chain());
        match proofs {
            ProofsInput::Folder(folder) => {
                let files = ProofFiles::open(folder, network, chain, stop)?;
                let (ranges, id, bytes) = (files.heights(), files.id(), files.bytes());
                Ok(Self { from: Teller::Files(files), ranges, id, bytes })
            }
            ProofsInput::Peers(peers) => {
                let asking = Asking {
                    network,
                    observer: request.env.observer,
                    interrupt: request.env.interrupt,
                };
                let from = match request.env.is_shared {
                    false => Teller::Peers(Box::new(PeerProofs::connect(peers, asking, chain)?)),
                    true => Teller::Elsewhere,
                };
                let blocks = HeightRange::new(1, stop + 1);
                let ranges = pass::divided(request, dir, blocks, request.env.threads);
                Ok(Self { from, ranges, id: PeerProofs::id(), bytes: 0 })
            }
        }
    }
}

/// The roots of a range cannot be had.
fn no_roots(range: HeightRange, what: &str) -> SyncError {
    ProofsError::NotThere { what: format!("there are no roots around blocks {range}: {what}") }
        .into()
}

/// Fails where a set of coins is to be written.
fn expect_no_set(request: &Request<'_>) -> Result<(), SyncError> {
    match request.outputs.is_empty() && request.folders.is_empty() {
        true => Ok(()),
        false => Err(ProofsError::NoSetKept.into()),
    }
}

type Planned<'a> = (Workdir<'a>, Plan, SegmentsOf<Utreexo<'a>>);

/// A block that breaks a rule by itself ends the run: the proofs reach over it. A wait for a peer that was interrupted
/// is no failure.
fn with_reason(request: &Request<'_>, error: SyncError, stop: Height) -> SyncError {
    if was_waiting(&error, request.env.interrupt) {
        return SyncError::Interrupted;
    }
    match InvalidBlock::of(&error) {
        Some(_) => error.without_way(NoWayOn::Engine(format!(
            "The proofs reach over it, up to block {stop}, so the blocks given are no valid chain for them: end \
             the run below it, or do without proofs (--engine mergesync): such a run puts the block aside and goes \
             on along the best chain that is left"
        ))),
        None => error,
    }
}

/// Whether an error is a wait for proofs that was interrupted.
fn was_waiting(error: &SyncError, interrupt: &AtomicBool) -> bool {
    let is_missing = matches!(error.downcast(), Some(ProofsError::NotThere { .. }));
    is_missing && interrupt.load(Ordering::Relaxed)
}

/// Whether all ranges fit together.
fn conclude(
    pass: &Utreexo<'_>,
    workdir: &Workdir<'_>,
    done: &[FinishedRange<Partial>],
    stop: Height,
) -> Result<Verdict, SyncError> {
    let mut whole = pass.nothing();
    for done in done {
        whole.merge(&done.partial).map_err(|error| match error {
            ProvenMergeError::Overlap(_) => {
                SyncError::Io(IoError::WorkdirDamaged { file: workdir.describe(done) })
            }
            differ @ ProvenMergeError::Roots { .. } => ProvenError::from(differ).into(),
        })?;
    }
    Ok(pass.conclude(&whole, stop)?)
}

/// Writes the roots where they are wanted.
fn write_roots(request: &Request<'_>, verdict: &Verdict) -> Result<(), SyncError> {
    let Some(commitment) = request.commitment.filter(|it| it.is_wanted()) else { return Ok(()) };
    let mut roots = Vec::new();
    verdict.roots.write(&mut roots);
    commitment.take_made(&roots)?;
    commitment.publish()
}
