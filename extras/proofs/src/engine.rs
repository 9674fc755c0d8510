//! The engine utreexo: validates blocks by all rules, range by range in any order, with proofs from files or
//! peers.
//!
//! A segment is the range of one file, or a range that the job chooses if proofs come from peers. Finished
//! ranges are kept in the work folder, as in other [passes](apus_sync::pass): for each, the roots at which it
//! begins and ends, and totals. The engine produces no UTXO set, so it can write only the roots after the
//! last block. A later job can begin with these ([`ForestStart`]).

mod coins;
mod error;
mod files;
mod input;
mod partial;
mod peers;
mod shared;
mod start;
mod state;

pub use coins::{EntryError, LeafFault};
pub use error::{ByProofsError, ProvenError};
pub use files::{ProofRange, ProofReader, ProofSource, Retry};
pub use partial::{AmountSums, Partial, ProvenMergeError, RootsDiffer};
pub use shared::ProvenSegments;
pub use start::{ForestStart, RootsBlock, TrustedRoots};
pub use state::{Segment, Utreexo, Verdict};

use crate::error::ProofsError;
use apus_chain::{BlockHash, HeaderChain, Height, HeightRange, KnownBlock};
use apus_p2p::addresses::NodeAddress;
use apus_p2p::transport::TransportChoice;
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::CoinTotals;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::error::{BlockUnavailable, InvalidBlock, SyncError, UsageError};
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
pub use files::ProofFolder;
use input::ProofInput;
use parking_lot::Mutex;
pub(crate) use peers::{BridgeFailure, connect, leave_out};
pub use peers::{PeerProofs, ProofRequester};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Their addresses. If empty, bridges are found among the peers that give the blocks, by their services.
    pub addresses: Vec<NodeAddress>,
    /// A SOCKS5 proxy to connect through.
    pub proxy: Option<SocketAddr>,
    /// Which transports may be used.
    pub transport: TransportChoice,
    /// How long to wait for a requested answer.
    pub patience: Duration,
}

/// The engine utreexo: validates all blocks, or those above a block whose roots the user trusts, range by range in
/// any order, with proofs of the coins that they spend. Produces no UTXO set.
pub struct ByProofs {
    proofs: ProofsInput,
    /// The roots to begin with, instead of those of an empty forest before block 1.
    trusted: Option<TrustedRoots>,
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
        Self { proofs, trusted: None, assume_valid, segments, roots: Mutex::default() }
    }

    /// Lets the job begin above a block with its roots, which it takes on trust.
    #[must_use]
    pub fn starting_with(self, trusted: Option<TrustedRoots>) -> Self {
        Self { trusted, ..self }
    }

    /// The source of the proofs.
    pub fn proofs(&self) -> &ProofsInput {
        &self.proofs
    }

    /// The roots after the last block of the last successful job.
    pub fn roots(&self) -> Option<Roots> {
        self.roots.lock().clone()
    }
}

impl ChainEngine for ByProofs {
    fn run<'a>(
        &self,
        request: &'a Request<'a>,
        chain: Arc<dyn ChainSource + 'a>,
        machines: Option<&dyn Machines>,
    ) -> Result<Outcome, SyncError> {
        let ProofsVerdict { start, stop, verdict, scripts } =
            self.validate(request, &*chain, machines)?;
        let totals = verdict.coins.map(|AmountSums { coins, amount, bogosize }| CoinTotals {
            coins,
            transactions: 0,
            amount,
            bogosize,
        });
        *self.roots.lock() = Some(verdict.roots);
        Ok(Outcome {
            chain: ChainEnd::new(request.env.params, chain.chain(), stop),
            validation: Validation {
                engine: Engine::Outside(ENGINE),
                hints: HintsProof::default(),
                connected_from: Some(start.first()),
                trusted: start.trusted(),
                scripts,
                unseen_witnesses: 0,
            },
            counts: verdict.counts,
            set: SetSummary {
                totals: totals.unwrap_or_default(),
                hashes: None,
                in_assumeutxo_table: false,
            },
            written: Written::default(),
        })
    }

    fn shared(&self) -> Option<&dyn SharedPass> {
        Some(&self.segments)
    }
}

/// The result of a job with this engine.
struct ProofsVerdict {
    start: ForestStart,
    /// The last block.
    stop: KnownBlock,
    verdict: Verdict,
    scripts: ScriptCounts,
}

impl ByProofs {
    /// The forest before the first block of a job that ends at the block `end`.
    fn start(
        &self,
        request: &Request<'_>,
        chain: &HeaderChain,
        end: Height,
    ) -> Result<ForestStart, SyncError> {
        let Some(trusted) = &self.trusted else { return Ok(ForestStart::genesis(chain)) };
        if request.env.is_shared {
            let what = "a sync that begins with roots";
            return Err(SyncError::Usage(UsageError::NotOnCluster { what }));
        }
        Ok(ForestStart::of_trusted(trusted, request.env.params, chain, end)?)
    }

    /// Validates all blocks up to the stop height, and writes the roots.
    fn validate(
        &self,
        request: &Request<'_>,
        dir: &dyn ChainSource,
        machines: Option<&dyn Machines>,
    ) -> Result<ProofsVerdict, SyncError> {
        expect_no_set(request)?;
        let end = request.stop.end_in(dir)?;
        if end == 0 {
            return Err(SyncError::Usage(UsageError::NothingToDo));
        }
        let start = self.start(request, dir.chain(), end)?;
        request.env.observer.event(Event::Started(Phase::Hints));
        let earlier = Workdir::read_plan(request.env.workdir)?;
        let proofs = ProofInput::open(request, &self.proofs, dir, &start, (end, earlier.as_ref()))?;
        let height = proofs.stop;
        let (workdir, plan, mut done) = self.begin(request, dir, &proofs, earlier)?;
        request.env.observer.event(Event::Ended { phase: Phase::Hints, bytes: proofs.bytes });
        let assumed = plan.identity.assumed;
        // Each thread runs the scripts of its own block; in a shared job the other machines do.
        let runs_scripts = assumed < height && !request.env.is_shared;
        let scripts = runs_scripts.then(|| request.env.signatures.pool(0)).transpose()?;
        request.env.observer.event(Event::Started(Phase::Blocks));
        let before: u64 = done.iter().map(|done| done.partial.counts.bytes).sum();
        let pass = Utreexo::new(request.env.params, dir.chain(), assumed, scripts)
            .starting_with(start.clone());
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
        let ended_by = |error| with_reason(request, &start, error, height);
        let verdict = loop {
            let can_retry = proofs.from.retry();
            let ran = match machines {
                None => pass::run(&job, &Threads, &workdir, &plan.segments, done),
                Some(machines) => {
                    let roots = |range| Ok(shared::write(proofs.from.roots(range)));
                    let remote =
                        RemotePass { machines, plan: &plan, name: ENGINE, payload: &roots };
                    pass::run(&job, &remote, &workdir, &plan.segments, done)
                }
            };
            let finished = match ran {
                Ok(finished) => finished,
                Err(error) if can_retry(&error) => {
                    done = Workdir::resume::<Utreexo<'_>>(request.env.workdir, &plan)?.1;
                    continue;
                }
                Err(error) => return Err(ended_by(error)),
            };
            match conclude(&pass, &workdir, &finished, height) {
                Ok(verdict) => break verdict,
                Err(error) => {
                    let right = proofs.from.without_wrong(&error, finished);
                    done = right.ok_or_else(|| ended_by(error.into()))?;
                    Workdir::change(request.env.workdir, &plan, &done)?;
                }
            }
        };
        let bytes = verdict.counts.bytes - before;
        request.env.observer.event(Event::Ended { phase: Phase::Blocks, bytes });
        write_roots(request, &verdict)?;
        let stop = KnownBlock { height, hash: plan.identity.stop_hash };
        let (below, assumed) = (start.block.height, assumed.max(start.block.height));
        let (run, assumed) = (u64::from(height - assumed), u64::from(assumed - below));
        Ok(ProofsVerdict { start, stop, verdict, scripts: ScriptCounts { run, assumed } })
    }

    /// Resumes the plan in the work folder, or makes one. If the chain has grown since, the plan continues above.
    fn begin<'a>(
        &self,
        request: &Request<'a>,
        dir: &dyn ChainSource,
        proofs: &ProofInput<'_>,
        earlier: Option<Plan>,
    ) -> Result<ProofPlan<'a>, SyncError> {
        let stop = proofs.stop;
        if earlier.is_none() && Record::read(request.env.workdir)?.is_some() {
            return Err(request.env.other_run("with another engine"));
        }
        let now = assumed_by(request, dir, self.assume_valid).min(stop);
        let identity = RunIdentity {
            network: request.env.params.network,
            first: proofs.start.first(),
            stop,
            stop_hash: dir.chain().hash(stop).copied().unwrap_or_default(),
            hints: proofs.id(stop),
            aggregate: AggregateKind::None,
            // Use the lower of the earlier start's height and this one's.
            assumed: earlier.as_ref().map_or(now, |plan| plan.identity.assumed.min(now)),
            // This engine counts no unseen witnesses.
            unseen: 0,
            numbered: false,
            muhash: false,
        };
        let grown = earlier.as_ref().map(|plan| &plan.identity).filter(|earlier| {
            earlier.stop < stop && dir.chain().hash(earlier.stop) == Some(&earlier.stop_hash)
        });
        let of_then = grown.map(|earlier| {
            let RunIdentity { stop, stop_hash, .. } = *earlier;
            RunIdentity { stop, stop_hash, hints: proofs.id(stop), ..identity.clone() }
        });
        let expected = of_then.as_ref().unwrap_or(&identity);
        let is_other =
            |then: &RunIdentity| then.first == expected.first && then.hints != expected.hints;
        if earlier.as_ref().is_some_and(|plan| is_other(&plan.identity)) {
            return Err(request.env.other_run(match proofs.start.trusted() {
                None => "with other proof ranges, or with another engine",
                Some(_) => "with other roots, or with other proof ranges",
            }));
        }
        expect_same(request, earlier.as_ref(), expected)?;
        Workdir::clear_scratch(request.env.workdir)?;
        let below = of_then.map_or(0, |then| then.stop);
        match earlier {
            Some(Plan { identity: then, secret, mut segments }) if below > 0 => {
                let plan =
                    Plan { identity: then, secret: secret.clone(), segments: segments.clone() };
                let done = Workdir::resume::<Utreexo<'a>>(request.env.workdir, &plan)?.1;
                segments.extend(proofs.above(request, dir, below));
                let plan = Plan { identity, secret, segments };
                let workdir = Workdir::change(request.env.workdir, &plan, &done)?;
                pass::report_resumed(request, &plan, &done, 0);
                Ok((workdir, plan, done))
            }
            earlier => {
                let segments = proofs.above(request, dir, proofs.start.block.height);
                pass::begin_or_resume::<Utreexo<'a>>(request, earlier, identity, segments, 0)
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

/// Adds the reason why an invalid block ends the job: the proofs cover it. Adds to other errors that the roots which
/// the user trusts may be the cause. A wait for a peer that was interrupted is not a failure.
fn with_reason(
    request: &Request<'_>,
    start: &ForestStart,
    error: SyncError,
    stop: Height,
) -> SyncError {
    if was_waiting(&error, request.env.interrupt) {
        return SyncError::Interrupted;
    }
    match InvalidBlock::of(&error) {
        Some(_) => error.without_way(BlockUnavailable::Engine(format!(
            "The proofs cover this block (they reach block {stop}), so the given blocks are not a valid chain for \
             these proofs. Stop below this block (--stopatheight), or validate without proofs (--engine \
             mergesync), which marks the block as failed and continues on the best remaining chain"
        ))),
        None => start.blamed_for(error),
    }
}

/// Whether an error means that a wait for proofs was interrupted.
fn was_waiting(error: &SyncError, interrupt: &AtomicBool) -> bool {
    let is_missing = matches!(error.downcast(), Some(ProofsError::NotThere { .. }));
    is_missing && interrupt.load(Ordering::Relaxed)
}

/// Checks that all ranges, which ascend, fit together.
fn conclude(
    pass: &Utreexo<'_>,
    workdir: &Workdir<'_>,
    done: &[FinishedRange<Partial>],
    stop: Height,
) -> Result<Verdict, ProvenError> {
    let mut whole = pass.nothing();
    for done in done {
        whole.merge(&done.partial).map_err(|error| match error {
            ProvenMergeError::Overlap(_) => ProvenError::Damaged(workdir.describe(done)),
            differ @ ProvenMergeError::Roots { .. } => ProvenError::from(differ),
        })?;
    }
    pass.conclude(&whole, stop)
}

/// Writes the roots, if requested.
fn write_roots(request: &Request<'_>, verdict: &Verdict) -> Result<(), SyncError> {
    let Some(commitment) = request.commitment.filter(|it| it.is_wanted()) else { return Ok(()) };
    let mut roots = Vec::new();
    verdict.roots.write(&mut roots);
    commitment.take_made(&roots)?;
    commitment.publish()
}
