//! The engine utreexo: validates blocks by all rules, range by range in any order, with proofs from files or
//! peers.
//!
//! A segment is the range of one file, or a range that the job chooses if proofs come from peers. Finished
//! ranges are kept in the work folder, as in other [passes](apus_sync::pass): for each, the roots at which it
//! begins and ends, and totals. The engine produces no UTXO set, so it can write only the roots after the
//! last block.

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
use apus_p2p::addresses::NodeAddress;
use apus_p2p::transport::TransportChoice;
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::CoinTotals;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::error::{BlockUnavailable, InvalidBlock, IoError, SyncError, UsageError};
use apus_sync::machines::{Machines, RemotePass, SharedPass};
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
pub use peers::{PeerProofs, ProofRequester};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The engine's name.
pub const ENGINE: &str = "utreexo";

/// The source of proofs.
#[derive(Debug, Clone)]
pub enum ProofsInput {
    /// A folder with proof files.
    Folder(PathBuf),
    /// Utreexo bridge nodes.
    Peers(BridgePeers),
}

/// Bridge nodes, and how to connect to them.
#[derive(Debug, Clone)]
pub struct BridgePeers {
    /// Their addresses, at least one.
    pub addresses: Vec<NodeAddress>,
    /// A SOCKS5 proxy to connect through.
    pub proxy: Option<SocketAddr>,
    /// Which transports may be used.
    pub transport: TransportChoice,
    /// How long to wait for a requested answer.
    pub patience: Duration,
}

/// The engine utreexo: validates all blocks, range by range in any order, with proofs of the coins that they
/// spend. Produces no UTXO set.
pub struct ByProofs {
    proofs: ProofsInput,
    /// The block up to which scripts are assumed valid, under Core's conditions; `None` to run all scripts.
    assume_valid: Option<BlockHash>,
    segments: ProvenSegments,
    roots: Mutex<Option<Roots>>,
}

impl ByProofs {
    /// Creates the engine with these proofs. Scripts are assumed valid up to `assume_valid`, under Core's
    /// conditions; `None` runs all scripts.
    pub fn new(proofs: ProofsInput, assume_valid: Option<BlockHash>) -> Self {
        let segments = ProvenSegments { proofs: Some(proofs.clone()) };
        Self { proofs, assume_valid, segments, roots: Mutex::default() }
    }

    /// The source of the proofs.
    pub fn proofs(&self) -> &ProofsInput {
        &self.proofs
    }

    /// The roots after the last block of the last successful job.
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
        let ProofsVerdict { stop, verdict, scripts } = self.validate(request, &*chain, machines)?;
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

/// The result of a job with this engine.
struct ProofsVerdict {
    /// The last block.
    stop: KnownBlock,
    verdict: Verdict,
    scripts: ScriptCounts,
}

impl ByProofs {
    /// Validates all blocks up to the stop height, and writes the roots.
    fn validate(
        &self,
        request: &Request<'_>,
        dir: &dyn ChainSource,
        machines: Option<&dyn Machines>,
    ) -> Result<ProofsVerdict, SyncError> {
        expect_no_set(request)?;
        let height = request.stop.end_in(dir)?;
        if height == 0 {
            return Err(SyncError::Usage(UsageError::NothingToDo));
        }
        request.env.observer.event(Event::Started(Phase::Hints));
        let proofs = ProofInput::open(request, &self.proofs, dir, height)?;
        let (workdir, plan, done) = self.begin(request, dir, &proofs, height)?;
        request.env.observer.event(Event::Ended { phase: Phase::Hints, bytes: proofs.bytes });
        let assumed = plan.identity.assumed;
        // Each thread runs the scripts of its own block; in a shared job the other machines do.
        let runs_scripts = assumed < height && !request.env.is_shared;
        let scripts = runs_scripts.then(|| request.env.signatures.pool(0)).transpose()?;
        request.env.observer.event(Event::Started(Phase::Blocks));
        let before: u64 = done.iter().map(|done| done.partial.counts.bytes).sum();
        let pass = Utreexo::new(request.env.params, dir.chain(), assumed, scripts);
        let input = |range| proofs.from.range(range).map_err(|what| no_roots(range, &what));
        let job = PassJob {
            request,
            source: dir,
            pass: &pass,
            input: &input,
            unseen: 0,
            below: None,
            limit: None,
        };
        let done = match machines {
            None => pass::run(&job, &Threads, &workdir, &plan.segments, done),
            Some(machines) => {
                let roots = |range| Ok(shared::write(proofs.from.roots(range)));
                let remote = RemotePass { machines, plan: &plan, name: ENGINE, payload: &roots };
                pass::run(&job, &remote, &workdir, &plan.segments, done)
            }
        };
        let done = done.map_err(|error| with_reason(request, error, height))?;
        let verdict = conclude(&pass, &workdir, &done, height)?;
        let bytes = verdict.counts.bytes - before;
        request.env.observer.event(Event::Ended { phase: Phase::Blocks, bytes });
        write_roots(request, &verdict)?;
        let stop = KnownBlock { height, hash: plan.identity.stop_hash };
        let (run, assumed) = (u64::from(height - assumed), u64::from(assumed));
        Ok(ProofsVerdict { stop, verdict, scripts: ScriptCounts { run, assumed } })
    }

    /// Resumes the plan in the work folder, or makes one.
    fn begin<'a>(
        &self,
        request: &Request<'a>,
        dir: &dyn ChainSource,
        proofs: &ProofInput<'_>,
        stop: Height,
    ) -> Result<ProofPlan<'a>, SyncError> {
        let earlier = Workdir::read_plan(request.env.workdir)?;
        if earlier.is_none() && Record::read(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("with another engine"));
        }
        let now = assumed_by(request, dir, self.assume_valid).min(stop);
        let identity = RunIdentity {
            network: request.env.params.network,
            stop,
            stop_hash: dir.chain().hash(stop).copied().unwrap_or_default(),
            hints: proofs.id,
            aggregate: AggregateKind::None,
            // Use the lower of the earlier start's height and this one's.
            assumed: earlier.as_ref().map_or(now, |plan| plan.identity.assumed.min(now)),
            // This engine counts no unseen witnesses.
            unseen: 0,
            numbered: false,
            muhash: false,
        };
        if earlier.as_ref().is_some_and(|plan| plan.identity.hints != identity.hints) {
            return Err(request.env.other_run("with other proof ranges, or with another engine"));
        }
        expect_same(request, earlier.as_ref(), &identity)?;
        Workdir::clear_scratch(request.env.workdir)?;
        pass::begin_or_resume::<Utreexo<'a>>(request, earlier, identity, proofs.ranges.clone(), 0)
    }
}

/// The source of proofs, and the ranges that it covers.
struct ProofInput<'a> {
    from: RangeSource<'a>,
    /// The ranges, by ascending height.
    ranges: Vec<HeightRange>,
    /// Identifies the ranges, so that a later start recognizes them.
    id: [u8; 32],
    /// Bytes of proofs, if known in advance; otherwise 0.
    bytes: u64,
}

/// The source of the data of a range.
enum RangeSource<'a> {
    Files(ProofFiles),
    Peers(Box<PeerProofs<'a>>),
    /// The peers of other machines: each machine connects to its own.
    Remote,
}

impl RangeSource<'_> {
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        match self {
            Self::Files(files) => files.range(heights),
            Self::Peers(peers) => peers.range(heights),
            Self::Remote => Err("other machines request them".to_owned()),
        }
    }

    /// The roots before and after a range, if known here.
    fn roots(&self, heights: HeightRange) -> Option<(&Roots, &Roots)> {
        match self {
            Self::Files(files) => files.roots(heights),
            Self::Peers(_) | Self::Remote => None,
        }
    }
}

impl<'a> ProofInput<'a> {
    /// Opens the files, or connects to the peers, for the blocks from 1 to `stop`.
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
                Ok(Self { from: RangeSource::Files(files), ranges, id, bytes })
            }
            ProofsInput::Peers(peers) => {
                let asking = ProofRequester {
                    network,
                    observer: request.env.observer,
                    interrupt: request.env.interrupt,
                };
                let from = match request.env.is_shared {
                    false => {
                        RangeSource::Peers(Box::new(PeerProofs::connect(peers, asking, chain)?))
                    }
                    true => RangeSource::Remote,
                };
                let blocks = HeightRange::new(1, stop + 1);
                let ranges = pass::divided(request, dir, blocks, request.env.threads);
                Ok(Self { from, ranges, id: PeerProofs::id(), bytes: 0 })
            }
        }
    }
}

/// The error for a range without roots.
fn no_roots(range: HeightRange, what: &str) -> SyncError {
    ProofsError::NotThere { what: format!("cannot get the roots for blocks {range}: {what}") }
        .into()
}

/// Fails if the caller wants a UTXO set written.
fn expect_no_set(request: &Request<'_>) -> Result<(), SyncError> {
    match request.outputs.is_empty() && request.folders.is_empty() {
        true => Ok(()),
        false => Err(ProofsError::NoSetKept.into()),
    }
}

type ProofPlan<'a> = (Workdir<'a>, Plan, SegmentsOf<Utreexo<'a>>);

/// Adds the reason why an invalid block ends the job: the proofs cover it. A wait for a peer that was
/// interrupted is not a failure.
fn with_reason(request: &Request<'_>, error: SyncError, stop: Height) -> SyncError {
    if was_waiting(&error, request.env.interrupt) {
        return SyncError::Interrupted;
    }
    match InvalidBlock::of(&error) {
        Some(_) => error.without_way(BlockUnavailable::Engine(format!(
            "The proofs cover this block (they reach block {stop}), so the given blocks are not a valid chain for \
             these proofs. Stop below this block (--stopatheight), or validate without proofs (--engine \
             mergesync), which marks the block as failed and continues on the best remaining chain"
        ))),
        None => error,
    }
}

/// Whether an error means that a wait for proofs was interrupted.
fn was_waiting(error: &SyncError, interrupt: &AtomicBool) -> bool {
    let is_missing = matches!(error.downcast(), Some(ProofsError::NotThere { .. }));
    is_missing && interrupt.load(Ordering::Relaxed)
}

/// Checks that all ranges fit together.
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

/// Writes the roots, if requested.
fn write_roots(request: &Request<'_>, verdict: &Verdict) -> Result<(), SyncError> {
    let Some(commitment) = request.commitment.filter(|it| it.is_wanted()) else { return Ok(()) };
    let mut roots = Vec::new();
    verdict.roots.write(&mut roots);
    commitment.take_made(&roots)?;
    commitment.publish()
}
