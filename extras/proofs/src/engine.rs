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
use apus_sync::error::{BlockUnavailable, InvalidBlock, SyncError, UsageError};
use apus_sync::machines::{Machines, RemotePass, SharedPass};
use apus_sync::pass::{self, PassJob, Threads, assumed_by, expect_same};
use apus_sync::request::{
    ChainEnd, ChainEngine, Engine, HintsProof, Outcome, Request, ScriptCounts, SetSummary, Stop,
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
pub(crate) use peers::{connect, leave_out};
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
    /// Their addresses. If empty, bridges are found among the peers that give the blocks, by their services.
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
        let end = request.stop.end_in(dir)?;
        if end == 0 {
            return Err(SyncError::Usage(UsageError::NothingToDo));
        }
        request.env.observer.event(Event::Started(Phase::Hints));
        let earlier = Workdir::read_plan(request.env.workdir)?;
        let proofs = ProofInput::open(request, &self.proofs, dir, (end, earlier.as_ref()))?;
        let height = proofs.stop;
        let (workdir, plan, mut done) = self.begin(request, dir, &proofs, earlier)?;
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
        let mut tries = 0;
        let verdict = loop {
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
                Err(error) if proofs.from.has_another(&error, &mut tries) => {
                    done = Workdir::resume::<Utreexo<'_>>(request.env.workdir, &plan)?.1;
                    continue;
                }
                Err(error) => return Err(with_reason(request, error, height)),
            };
            match conclude(&pass, &workdir, &finished, height) {
                Ok(verdict) => break verdict,
                Err(error) => {
                    let right = proofs.from.without_wrong(&error, finished);
                    done = right.ok_or_else(|| with_reason(request, error.into(), height))?;
                    Workdir::change(request.env.workdir, &plan, &done)?;
                }
            }
        };
        let bytes = verdict.counts.bytes - before;
        request.env.observer.event(Event::Ended { phase: Phase::Blocks, bytes });
        write_roots(request, &verdict)?;
        let stop = KnownBlock { height, hash: plan.identity.stop_hash };
        let (run, assumed) = (u64::from(height - assumed), u64::from(assumed));
        Ok(ProofsVerdict { stop, verdict, scripts: ScriptCounts { run, assumed } })
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
        if earlier.as_ref().is_some_and(|plan| plan.identity.hints != expected.hints) {
            return Err(request.env.other_run("with other proof ranges, or with another engine"));
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
                let segments = proofs.above(request, dir, 0);
                pass::begin_or_resume::<Utreexo<'a>>(request, earlier, identity, segments, 0)
            }
        }
    }
}

/// The source of proofs.
struct ProofInput<'a> {
    from: RangeSource<'a>,
    /// The last block.
    stop: Height,
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

    /// Whether the job can continue after an error: a bridge sent something wrong, and there is another.
    fn has_another(&self, error: &SyncError, tries: &mut u32) -> bool {
        let Self::Peers(peers) = self else { return false };
        let Some(ByProofsError(wrong)) = error.downcast() else { return peers.has_left_out() };
        let (ProvenError::Entry { origin, .. }
        | ProvenError::After { origin, .. }
        | ProvenError::Refused { origin, .. }) = wrong
        else {
            return false;
        };
        if peers.leave_out(origin, &wrong.to_string()) {
            return true;
        }
        // If several gave the data of a range, the next try shows which of them is to blame.
        *tries += 1;
        *tries <= TRIES_UNBLAMED && peers.is_of_several(origin)
    }

    /// The finished ranges without the lowest one that begins with wrong roots, if it can be done again. All ranges
    /// below it fit together from block 1 on, so they prove with which roots it must begin.
    fn without_wrong(
        &self,
        error: &ProvenError,
        mut done: Vec<FinishedRange<Partial>>,
    ) -> Option<Vec<FinishedRange<Partial>>> {
        let (Self::Peers(peers), ProvenError::Merge(ProvenMergeError::Roots { height, .. })) =
            (self, error)
        else {
            return None;
        };
        let below = done.iter().find(|done| done.range.end == *height)?;
        let (_, proven) = below.partial.ends()?;
        if !peers.are_several() {
            return None;
        }
        peers.prove(*height, proven);
        done.retain(|done| done.range.start != *height);
        Some(done)
    }

    /// The roots before and after a range, if known here.
    fn roots(&self, heights: HeightRange) -> Option<(&Roots, &Roots)> {
        match self {
            Self::Files(files) => files.roots(heights),
            Self::Peers(_) | Self::Remote => None,
        }
    }
}

/// How often to repeat ranges whose wrong data came from several bridges.
const TRIES_UNBLAMED: u32 = 3;

impl<'a> ProofInput<'a> {
    /// Opens the files, or connects to the peers, for the blocks from 1 to `end`. A job without a height to stop at
    /// ends where bridges do, if they are a few blocks behind, but not below an earlier plan's end.
    fn open(
        request: &Request<'a>,
        proofs: &'a ProofsInput,
        dir: &'a dyn ChainSource,
        (end, earlier): (Height, Option<&Plan>),
    ) -> Result<Self, SyncError> {
        let (network, chain) = (request.env.params.network, dir.chain());
        match proofs {
            ProofsInput::Folder(folder) => {
                let files = ProofFiles::open(folder, network, chain, end)?;
                let bytes = files.bytes();
                Ok(Self { from: RangeSource::Files(files), stop: end, bytes })
            }
            ProofsInput::Peers(_) if request.env.is_shared => {
                Ok(Self { from: RangeSource::Remote, stop: end, bytes: 0 })
            }
            ProofsInput::Peers(peers) => {
                let asking = ProofRequester {
                    network,
                    observer: request.env.observer,
                    interrupt: request.env.interrupt,
                };
                let peers = PeerProofs::connect(peers, asking, dir)?;
                let least = earlier.map_or(0, |plan| plan.identity.stop).min(end);
                let stop = match request.stop {
                    Stop::At(_) => end,
                    _ => peers.reached(end)?.max(least),
                };
                Ok(Self { from: RangeSource::Peers(Box::new(peers)), stop, bytes: 0 })
            }
        }
    }

    /// Identifies the ranges up to a height, so that a later start recognizes them.
    fn id(&self, last: Height) -> [u8; 32] {
        match &self.from {
            RangeSource::Files(files) => files.id(last),
            RangeSource::Peers(_) | RangeSource::Remote => PeerProofs::id(),
        }
    }

    /// The ranges above a height, ascending.
    fn above(
        &self,
        request: &Request<'_>,
        dir: &dyn ChainSource,
        below: Height,
    ) -> Vec<HeightRange> {
        match &self.from {
            RangeSource::Files(files) => files.heights().filter(|it| it.start > below).collect(),
            RangeSource::Peers(_) | RangeSource::Remote => {
                let blocks = HeightRange::new(below + 1, self.stop + 1);
                pass::divided(request, dir, blocks, request.env.threads)
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
