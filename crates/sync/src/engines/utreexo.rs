//! The work of the engine utreexo: every rule, range by range in any order, by proofs from files or peers.
//!
//! A segment is the range of one file, or one that the run cuts itself where peers tell of it. Ranges that are done are kept in the work folder, as by other
//! [passes](crate::pass): what is kept of one is the roots with which it begins and ends, and numbers. No set comes of
//! it, so nothing can be written but the roots after the last block.

mod block;
mod coins;
mod error;
mod files;
mod partial;
mod peers;
mod state;

pub use coins::{EntryError, LeafFault};
pub use error::{ByProofsError, ProvenError};
pub use files::{ProofRange, ProofReader, ProofSource};
pub use partial::{AmountSums, Partial, ProvenMergeError, RootsDiffer};
use state::known;
pub use state::{Segment, Utreexo, Verdict};

use crate::engines::pass::{PartialResult, Pass};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{IoError, NoWayOn, SyncError, UsageError};
use crate::machines::{Machines, ProvenElsewhere};
use crate::pass::{self, PassJob, Threads, expect_same, last_assumed};
use crate::progress::{Event, Phase};
use crate::request::{OutputKind, ProofsInput, ProvenTask, Request, ScriptCounts};
use crate::sink::forest::draft_roots;
use crate::source::ChainSource;
use crate::workdir::plan::{Plan, RunIdentity};
use crate::workdir::record::Record;
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{Height, HeightRange, KnownBlock};
use apus_engine::script::ScriptPool;
use apus_utreexo::Roots;
use files::ProofFiles;
pub use files::ProofFolder;
pub use peers::{Asking, PeerProofs};
use std::sync::atomic::Ordering;

/// What a run of the engine comes to.
pub(crate) struct Validated {
    /// The last block.
    pub(crate) stop: KnownBlock,
    pub(crate) verdict: Verdict,
    pub(crate) scripts: ScriptCounts,
}

/// Validates all blocks up to where the run ends, and writes the roots.
pub(crate) fn run(
    request: &Request<'_>,
    task: &ProvenTask,
    dir: &dyn ChainSource,
    machines: Option<&dyn Machines>,
) -> Result<Validated, SyncError> {
    expect_no_set(request)?;
    let height = request.stop.end_in(dir)?;
    if height == 0 {
        return Err(SyncError::Usage(UsageError::NothingToDo));
    }
    request.env.observer.event(Event::Started(Phase::Hints));
    let told = ProofInput::open(request, &task.proofs, dir, height)?;
    let (workdir, plan, done) = begin(request, dir, &told, height)?;
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
            let roots = |range| told.from.roots(range);
            let elsewhere = ProvenElsewhere { machines, plan: &plan, roots: &roots };
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
pub fn no_roots(range: HeightRange, what: &str) -> SyncError {
    IoError::Proofs { what: format!("there are no roots around blocks {range}: {what}") }.into()
}

/// Fails where a set of coins is to be written.
fn expect_no_set(request: &Request<'_>) -> Result<(), SyncError> {
    let are_roots = request.outputs.iter().all(|output| output.kind == OutputKind::Utreexo);
    match are_roots && request.folders.is_empty() {
        true => Ok(()),
        false => Err(SyncError::Usage(UsageError::NoSetKept)),
    }
}

type Planned<'a> = (Workdir<'a>, Plan, SegmentsOf<Utreexo<'a>>);

/// Goes on with the plan in the work folder, or makes one.
fn begin<'a>(
    request: &Request<'a>,
    dir: &dyn ChainSource,
    told: &ProofInput<'_>,
    stop: Height,
) -> Result<Planned<'a>, SyncError> {
    let earlier = Workdir::read_plan(request.env.workdir)?;
    if earlier.is_none() && Record::read(request.env.workdir)?.is_some() {
        return Err(request.env.other_run("by another engine"));
    }
    let now = last_assumed(request, dir, stop);
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
        leaves: false,
        muhash: false,
    };
    if earlier.as_ref().is_some_and(|plan| plan.identity.hints != identity.hints) {
        return Err(request.env.other_run("by other ranges of proofs, or by another engine"));
    }
    expect_same(request, earlier.as_ref(), &identity)?;
    Workdir::clear_scratch(request.env.workdir)?;
    pass::begin_or_go_on::<Utreexo<'a>>(request, earlier, identity, told.ranges.clone())
}

/// A block that breaks a rule by itself ends the run: the proofs reach over it. A wait for a peer that was interrupted
/// is no failure.
fn with_reason(request: &Request<'_>, error: SyncError, stop: Height) -> SyncError {
    let interrupted = request.env.interrupt.load(Ordering::Relaxed);
    if interrupted && matches!(error, SyncError::Io(IoError::Proofs { .. })) {
        return SyncError::Interrupted;
    }
    match crate::error::InvalidBlock::of(&error) {
        Some(_) => error.without_way(NoWayOn::UnderProofs { stop }),
        None => error,
    }
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

/// Writes the roots wherever they are wanted.
fn write_roots(request: &Request<'_>, verdict: &Verdict) -> Result<(), SyncError> {
    let roots = Some(verdict.roots.clone());
    let mut drafts = Vec::new();
    for output in request.outputs {
        drafts.push(draft_roots(&*output.storage, &output.name, &roots)?);
    }
    drafts.into_iter().try_for_each(|(draft, file)| draft.publish(file))
}
