//! Runs SwiftSync: proves the set at the height where the hints stop, or below the last blocks.

pub mod aggregate;
mod coin_hashes;
mod copied_blocks;
mod error;
pub mod hints;
mod kept_undo;
mod partial;
mod segment;
mod segment_hints;
mod snapshot_hints;
mod spent_later;
mod state;
mod survivors;
mod tail;
mod undo_pass;

pub use crate::engines::bip30::CoinbaseId;
pub use crate::engines::pass::Counts;
pub use error::SwiftSyncError;
pub use partial::{CoinTotals, MergeError, Partial};
pub use segment::{Segment, SegmentOutput};
pub use segment_hints::{ByBlock, CoinHints, HintError, IndexHints, SegmentHints};
pub use spent_later::{SPENT_LATER_KEY, SpentByBlock, SpentLater, SpentLaterBuilder};
pub use state::{SwiftSync, Verdict};
pub use undo_pass::{
    ByUndoError, ConnectByUndo, UndoPass, UndoPassError, UndoPassSegment, UndoReader, UndoSource,
};

use crate::best_chain::{headers, longer_chain};
use crate::engines::in_order::datadir_writer::warn_of_missing;
use crate::engines::mergesync::sum_key;
use crate::engines::pass::Pass;
use crate::engines::swiftsync::aggregate::{AggregateKind, Aggregator};
use crate::engines::swiftsync::hints::HintsInfo;
use crate::error::{BlockUnavailable, InvalidBlock, InvalidError, SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::machines::{Machines, RemoteHintedPass};
use crate::pass::{self, PassJob, Threads, expect_same, last_assumed};
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::request::{
    HintedTask, HintedValidity, HintsInput, HintsProof, Request, ScriptCounts, Source, Stop,
};
use crate::sink::datadir::DraftWithBlocks;
use crate::source::ChainSource;
use crate::source::blocksdir::UseIndex;
use crate::supply::total;
use crate::warning::{UnanchoredBlocks, Warning};
use crate::workdir::plan::{NO_HINTS, Plan, RunIdentity};
use crate::workdir::record::Record;
use crate::workdir::{FinishedRange, SegmentsOf, Workdir};
use apus_chain::{BlockHash, HeaderChain, Height, HeightRange, KnownBlock, Params};
use apus_engine::script::{ScriptPoolError, script_verifier};
use snapshot_hints::{FileHints, HintsProvider};
use snapshot_hints::{SnapshotHints, SnapshotWanted, snapshot_header};
use std::path::PathBuf;
use std::sync::Arc;
use tail::expect_anchored;
use tail::{expect_scripts, last_under_hints, spent_later};

/// The segments of a sync with hints.
pub(crate) type Segments = SegmentsOf<SwiftSync>;

/// The result of a sync with hints.
pub(crate) enum HintsOutcome<'a> {
    /// The hints prove this set.
    Proven(Box<Proven<'a>>),
    /// All rules must be checked, but there is no undo data for that. Holds the height where the hints stop.
    NoUndo(Height),
    /// The chain is so short that all of it must be connected, for a node that must be able to disconnect
    /// blocks.
    NotNeeded(Arc<dyn ChainSource + 'a>, Option<HintsInfo>),
}

/// What SwiftSync proved, with everything needed to write the set out.
pub(crate) struct Proven<'a> {
    pub(crate) dir: Arc<dyn ChainSource + 'a>,
    pub(crate) workdir: Workdir<'a>,
    pub(crate) plan: Plan,
    /// The block after which the coins are unspent.
    pub(crate) at: KnownBlock,
    pub(crate) done: Segments,
    pub(crate) verdict: Verdict,
    pub(crate) hints: HintsProof,
    /// How many blocks had their scripts run; `None` without undo data.
    pub(crate) scripts: Option<ScriptCounts>,
    /// A data directory with these blocks, if the request wants one with all blocks.
    pub(crate) with_blocks: Option<DraftWithBlocks>,
}

impl Proven<'_> {
    /// Blocks whose witnesses were not read.
    pub(crate) fn unseen(&self) -> u64 {
        u64::from(self.plan.identity.unseen.min(self.at.height))
    }
}

/// Fails if hints cannot state the set at this height.
pub(crate) fn expect_counted(
    params: &Params,
    chain: &HeaderChain,
    height: Height,
) -> Result<(), SyncError> {
    match params.has_uncounted_coins(height, |height| chain.hash(height).copied()) {
        true => Err(SyncError::Usage(UsageError::Uncounted { height })),
        false => Ok(()),
    }
}

/// Proves the set at the height where `hints` stop, or at a lower one, below the last blocks that a node
/// starts with.
pub(crate) fn prove<'a>(
    request: &'a Request<'_>,
    task: &'a HintedTask<'_>,
    machines: Option<&dyn Machines>,
) -> Result<HintsOutcome<'a>, SyncError> {
    copied_blocks::expect_proof(request, task)?;
    let (dir, hints) = chain_and_hints(request, task)?;
    let (stop, at) = (hints.stop, hints.last);
    let above = HeightRange::new(at.height + 1, stop.height + 1);
    if request.env.is_shared && !above.is_empty() {
        let what = "a folder with the last blocks, which hints do not cover,";
        return Err(SyncError::Usage(UsageError::NotOnCluster { what }));
    }
    if !above.is_empty() {
        expect_scripts(request, &*dir, at.height, request.stop.end(stop.height, dir.chain()))?;
    }
    if at.height == 0 {
        request.env.observer.event(Event::Ended { phase: Phase::Hints, bytes: 0 });
        return Ok(HintsOutcome::NotNeeded(dir, hints.info()));
    }
    if task.validity == HintedValidity::Checked && hints.undo.is_none() {
        request.env.observer.event(Event::Ended { phase: Phase::Hints, bytes: 0 });
        return Ok(HintsOutcome::NoUndo(at.height));
    }
    expect_counted(request.env.params, dir.chain(), at.height)?;
    let (workdir, plan, mut done, provider) = hints.plan(request, task, &*dir)?;
    // The blocks of peers are kept without undo data.
    let keeps_undo = task.spent.is_some() && dir.archive().is_some();
    if keeps_undo {
        kept_undo::expect_kept(&*dir, &mut done);
    }
    let identity = &plan.identity;
    warn_of_missing(&request.env, &*dir, HeightRange::new(1, at.height + 1));
    if let Some(unanchored) = hints.unanchored {
        request.env.observer.event(Event::Warning(Warning::Unanchored(unanchored)));
    }
    let aggregator =
        Aggregator::new(identity.aggregate, &plan.secret, identity.stop_hash, identity.hints);
    let mut engine = SwiftSync::new(request.env.params, dir.chain(), aggregator)
        .with_hashes(request.hasher().filter(|_| identity.numbered))
        .with_muhash(identity.muhash);
    let under_hints = |error: SyncError| {
        let is_invalid = InvalidBlock::of(&error).is_some();
        let why = BlockUnavailable::UnderHints { stop: identity.stop };
        if is_invalid { error.without_way(why) } else { error }
    };
    if !above.is_empty() && done.len() < plan.segments.len() {
        engine = engine.below_hints(spent_later(request, &*dir, above).map_err(under_hints)?);
    }
    let end = request.stop.end(stop.height, dir.chain());
    if request.connect().is_some() && end > at.height {
        let ahead = total(&*dir, at.height + 1..=end);
        request.env.observer.event(Event::Ahead(Phase::Connect, ahead));
    }
    request.env.observer.event(Event::Started(Phase::Blocks));
    let before: u64 = done.iter().map(|done| done.partial.counts.bytes).sum();
    let taking = HintedSync {
        request,
        dir: &*dir,
        workdir: &workdir,
        plan: &plan,
        provider: &*provider,
        machines,
    };
    let (done, verdict, by_undo) = match hints.undo.as_deref() {
        Some(undo) => {
            let undo = (undo, keeps_undo);
            taking.fully(engine, undo, done, at.height).map_err(under_hints)?
        }
        None => {
            let done = taking.segments(&engine, done).map_err(under_hints)?;
            let verdict = conclude(&engine, &workdir, &done, at.height)?;
            (done, verdict, None)
        }
    };
    let bytes = verdict.counts.bytes - before;
    let coins = Progress { coins_total: verdict.coins.coins, ..Progress::default() };
    request.env.observer.event(Event::Ahead(Phase::Coins, coins));
    request.env.observer.event(Event::Ended { phase: Phase::Blocks, bytes });
    if keeps_undo {
        taking.keep_undo(&done)?;
    }
    let copy = |pass| taking.copy_blocks(pass, &done).map_err(under_hints);
    let with_blocks = by_undo.map(copy).transpose()?.flatten();
    drop(provider);
    let assumed = u64::from(identity.assumed);
    let run = u64::from(at.height) - assumed;
    let scripts = hints.undo.is_some().then_some(ScriptCounts { run, assumed });
    let aggregate = Some(verdict.aggregate);
    let hints = HintsProof { info: hints.info(), aggregate, unanchored: hints.unanchored };
    let proven = Proven { dir, workdir, plan, at, done, verdict, hints, scripts, with_blocks };
    Ok(HintsOutcome::Proven(Box::new(proven)))
}

/// A sync of blocks with hints.
struct HintedSync<'a, 'w> {
    request: &'a Request<'a>,
    dir: &'a dyn ChainSource,
    workdir: &'a Workdir<'w>,
    plan: &'a Plan,
    provider: &'a dyn HintsProvider,
    machines: Option<&'a dyn Machines>,
}

impl HintedSync<'_, '_> {
    /// Processes the remaining segments.
    fn segments<P>(&self, pass: &P, done: Segments) -> Result<Segments, SyncError>
    where
        P: Pass<Input = SegmentHints, Partial = Partial>,
        SyncError: From<P::Error>,
    {
        let Self { request, dir, workdir, plan, provider, .. } = *self;
        let input = |range| provider.segment(range);
        let unseen = plan.identity.unseen;
        let job =
            PassJob { request, source: dir, pass, input: &input, unseen, below: None, limit: None };
        match self.machines {
            Some(machines) => {
                let remote = RemoteHintedPass { machines, plan };
                pass::run(&job, &remote, workdir, &plan.segments, done)
            }
            None => pass::run(&job, &Threads, workdir, &plan.segments, done),
        }
    }

    /// Processes them under every rule, with the coins from undo data. Also returns the pass.
    fn fully<'u>(
        &'u self,
        swiftsync: SwiftSync,
        (undo, keeps): (&'u dyn UndoSource, bool),
        done: Segments,
        last: Height,
    ) -> Result<(Segments, Verdict, Option<UndoPass<'u>>), SyncError> {
        let Self { dir, workdir, .. } = *self;
        let assumed = self.plan.identity.assumed;
        // Each thread runs the scripts of its own block.
        let scripts = (assumed < last).then(|| self.request.env.signatures.pool(0)).transpose()?;
        let (params, chain) = (self.request.env.params, dir.chain());
        let sum_key = keeps.then(|| sum_key(self.plan));
        let connector = ConnectByUndo { params, chain, assumed, scripts, sum_key };
        let pass = UndoPass { swiftsync, connector, undo, keeps };
        let done = self.segments(&pass, done)?;
        let verdict = conclude(&pass.swiftsync, workdir, &done, last)?;
        Ok((done, verdict, Some(pass)))
    }
}

/// Whether undo data is read, if the source has it: then every rule can be checked. It is not if all blocks are assumed
/// valid.
fn takes_undo(task: &HintedTask<'_>) -> bool {
    task.connect.is_some()
        && matches!(task.validity, HintedValidity::Anchored | HintedValidity::Checked)
        && task.aggregate == AggregateKind::Sha256
}

/// Returns the undo data of the blocks up to a height, if it is read and the source has it. If an earlier start began
/// without undo data, this one continues without it.
fn undo_of(
    request: &Request<'_>,
    task: &HintedTask<'_>,
    dir: &dyn ChainSource,
    last: Height,
) -> Result<Option<Box<dyn UndoSource + 'static>>, SyncError> {
    let earlier = Workdir::read_plan(request.env.workdir)?.map(|plan| plan.identity.aggregate);
    let is_other = earlier.is_some_and(|earlier| earlier != AggregateKind::Coins);
    if !takes_undo(task) || task.spent.is_some() || is_other || last == 0 {
        return Ok(None);
    }
    let undo = dir.undo(last, &request.env.search())?;
    if undo.is_none() && request.folders.iter().any(FolderOutput::has_all_undo) {
        return Err(SyncError::Usage(UsageError::NoUndo));
    }
    if undo.is_some() && last_assumed(request, dir, last) < last {
        // Without scripts, as without undo data, nothing would prove the blocks valid.
        script_verifier().map_err(ScriptPoolError::from)?;
    }
    Ok(undo)
}

/// Finds the chain and opens the hints for it, which must be anchored in it. If the chain of Core's index is
/// too short for the hints, the index may be older than the files: then the files are scanned.
fn chain_and_hints<'a>(
    request: &'a Request<'_>,
    task: &'a HintedTask<'_>,
) -> Result<(Arc<dyn ChainSource + 'a>, PlacedHints<'a>), SyncError> {
    // Check the hints before looking for peers: they may be unusable.
    let first = matches!(request.source, Source::Peers(_));
    let early = first.then(|| ReadHints::open(request, &task.hints)).transpose()?;
    let mut dir = headers(request, None)?;
    request.env.observer.event(Event::Started(Phase::Hints));
    let read = early.map_or_else(|| ReadHints::open(request, &task.hints), Ok)?;
    let is_short = |error: &SyncError| match error {
        SyncError::Invalid(InvalidError::ChainTooShort { .. })
        | SyncError::Invalid(InvalidError::BaseNotOnChain { .. })
        | SyncError::Invalid(InvalidError::StopAboveTip { .. }) => true,
        SyncError::Usage(UsageError::NotAnchored(refused)) => refused.depends_on_chain(),
        _ => false,
    };
    let place = |dir: &dyn ChainSource| {
        let stop = read.stop_on(request, dir)?;
        let height = last_under_hints(request, dir, stop)?;
        let hash = dir.chain().hash(height).copied().unwrap_or_default();
        let last = KnownBlock { height, hash };
        let undo = undo_of(request, task, dir, height)?;
        let unanchored = match undo.is_some() || task.spent.is_some() {
            true => None,
            false => expect_anchored(request.env.params, task, dir.chain(), last)?,
        };
        Ok((stop, last, unanchored, undo))
    };
    let mut placed = place(&*dir);
    if placed.as_ref().is_err_and(is_short) {
        if dir.is_by_index() && request.source.may_leave_index() {
            dir = headers(request, Some(UseIndex::Never))?;
            placed = place(&*dir);
        } else {
            // Another peer may know a longer chain.
            while placed.as_ref().is_err_and(is_short)
                && let Some(longer) = longer_chain(request, dir.chain())?
            {
                dir = longer;
                placed = place(&*dir);
            }
        }
        request.env.observer.event(Event::Started(Phase::Hints));
    }
    let (stop, last, unanchored, mut undo) = placed?;
    if let Some(spent) = task.spent.filter(|_| last.height > 0) {
        copied_blocks::expect_kept(request, &*dir)?;
        undo = Some(spent.open(request, Arc::clone(&dir))?);
    }
    Ok((dir, PlacedHints { read, stop, last, unanchored, undo }))
}

/// Hints that can be read and do not name another network.
enum ReadHints {
    File(FileHints),
    /// A snapshot, with its block.
    Snapshot(PathBuf, BlockHash),
}

impl ReadHints {
    fn open(request: &Request<'_>, input: &HintsInput) -> Result<Self, SyncError> {
        Ok(match input {
            HintsInput::File(path, options) => Self::File(FileHints::open(path, options)?),
            HintsInput::Snapshot(path) => {
                let header = snapshot_header(path, request.env.params.network)?;
                Self::Snapshot(path.clone(), header.base_hash)
            }
        })
    }

    /// Returns the block where the hints stop on this chain.
    fn stop_on(
        &self,
        request: &Request<'_>,
        dir: &dyn ChainSource,
    ) -> Result<KnownBlock, SyncError> {
        let height = match self {
            Self::File(file) => file.file().info().stop_height,
            Self::Snapshot(_, base) => {
                let height = dir.chain().height_of(base);
                height.ok_or(SyncError::Invalid(InvalidError::BaseNotOnChain { base: *base }))?
            }
        };
        stop_at(height, dir, request.stop)
    }
}

/// The hints, before it is known how the chain is divided.
struct PlacedHints<'u> {
    read: ReadHints,
    /// Returns the block where the hints stop on this chain.
    stop: KnownBlock,
    /// The last block processed with them.
    last: KnownBlock,
    unanchored: Option<UnanchoredBlocks>,
    /// Undo data for checking every rule.
    undo: Option<Box<dyn UndoSource + 'u>>,
}

/// Hints opened for the segments.
struct OpenedHints<'a> {
    provider: Box<dyn HintsProvider + 'a>,
    sha256: [u8; 32],
    bytes: u64,
}

type HintedPlan<'a, 'r> = (Workdir<'r>, Plan, Segments, Box<dyn HintsProvider + 'a>);

impl PlacedHints<'_> {
    fn info(&self) -> Option<HintsInfo> {
        match &self.read {
            ReadHints::File(file) => Some(file.file().info().clone()),
            ReadHints::Snapshot(..) => None,
        }
    }

    /// Continues the plan in the work folder, or makes one.
    fn plan<'a, 'r: 'a>(
        &'a self,
        request: &'r Request<'_>,
        task: &HintedTask<'_>,
        dir: &dyn ChainSource,
    ) -> Result<HintedPlan<'a, 'r>, SyncError> {
        let (stop, last) = (self.stop, self.last.height);
        let earlier = Workdir::read_plan(request.env.workdir)?;
        let connects = earlier.is_none() && Record::read(request.env.workdir)?.is_some();
        if connects || earlier.as_ref().is_some_and(|plan| plan.identity.hints == NO_HINTS) {
            return Err(request.env.other_run("without hints"));
        }
        let mut identity = RunIdentity {
            network: request.env.params.network,
            first: 1,
            stop: stop.height,
            stop_hash: stop.hash,
            hints: earlier.as_ref().map_or([0; 32], |plan| plan.identity.hints),
            aggregate: match self.undo {
                Some(_) => AggregateKind::Coins,
                None => task.aggregate,
            },
            assumed: self.undo.as_ref().map_or(0, |_| self.assumed(request, dir, earlier.as_ref())),
            unseen: pass::leave_witnesses(
                request,
                dir,
                earlier.as_ref().map(|plan| plan.identity.unseen),
            ),
            // An earlier start's choice to number coins holds until the end.
            numbered: request.wants_commitment()
                || request.hasher().is_some()
                    && earlier.as_ref().is_some_and(|plan| plan.identity.numbered),
            muhash: request.muhash || earlier.as_ref().is_some_and(|plan| plan.identity.muhash),
        };
        // Everything but the hints can be compared before they are read.
        expect_same(request, earlier.as_ref(), &identity)?;
        Workdir::clear_scratch(request.env.workdir)?;
        let segments = pass::segments(request, dir, earlier.as_ref(), last, request.env.threads);
        let OpenedHints { provider, sha256, bytes } = self.provider(request, &segments)?;
        identity.hints = sha256;
        expect_same(request, earlier.as_ref(), &identity).or_else(|other| {
            // The work folder belongs to another sync, which has no use for these files.
            Workdir::clear_scratch(request.env.workdir)?;
            Err(other)
        })?;
        request.env.observer.event(Event::Ended { phase: Phase::Hints, bytes });
        let (workdir, plan, done) =
            pass::begin_or_resume::<SwiftSync>(request, earlier, identity, segments, 0)?;
        Ok((workdir, plan, done, provider))
    }

    /// The last block whose scripts are assumed valid: the earlier start's, if that was lower.
    fn assumed(
        &self,
        request: &Request<'_>,
        dir: &dyn ChainSource,
        earlier: Option<&Plan>,
    ) -> Height {
        let now = last_assumed(request, dir, self.last.height);
        earlier.map_or(now, |plan| plan.identity.assumed.min(now))
    }

    fn provider<'a>(
        &'a self,
        request: &'a Request<'_>,
        segments: &[HeightRange],
    ) -> Result<OpenedHints<'a>, SyncError> {
        match &self.read {
            ReadHints::File(file) => {
                let info = file.file().info();
                Ok(OpenedHints { provider: Box::new(file), sha256: info.sha256, bytes: info.bytes })
            }
            ReadHints::Snapshot(path, base) => {
                let wanted = SnapshotWanted {
                    base: KnownBlock { height: self.stop.height, hash: *base },
                    segments,
                    memory_bytes: request.env.memory_bytes / 4,
                    threads: request.env.threads,
                };
                let pass = SnapshotHints::read(path, &wanted, request.env.workdir, &mut |coins| {
                    let progress = Progress { coins, ..Progress::default() };
                    request.env.observer.event(Event::Progress(Phase::Hints, progress));
                    stop_if_interrupted(request.env.interrupt)
                })?;
                let provider = Box::new(pass.hints);
                Ok(OpenedHints { provider, sha256: pass.sha256, bytes: pass.bytes })
            }
        }
    }
}

fn stop_at(height: Height, dir: &dyn ChainSource, wanted: Stop) -> Result<KnownBlock, SyncError> {
    let chain: &HeaderChain = dir.chain();
    match wanted {
        Stop::At(wanted) if wanted < height => {
            return Err(SyncError::Usage(UsageError::StopHeight { wanted, hints: height }));
        }
        _ if height == 0 => return Err(SyncError::Usage(UsageError::NothingToDo)),
        // Fail now, hours before the blocks above the hints are needed.
        _ => wanted.expect_in(dir)?,
    }
    match chain.hash(height) {
        Some(&hash) => Ok(KnownBlock { height, hash }),
        None => Err(SyncError::Invalid(InvalidError::ChainTooShort {
            stop: height,
            tip: chain.tip_height(),
            gap: dir.gap().clone(),
        })),
    }
}

/// Decides whether the hints are right. Each key serves for one decision: if the hints are wrong, the work
/// folder is deleted.
fn conclude(
    engine: &SwiftSync,
    workdir: &Workdir<'_>,
    done: &[FinishedRange<Partial>],
    stop: Height,
) -> Result<Verdict, SyncError> {
    let whole = pass::whole(engine, workdir, None, done)?;
    engine.conclude(&whole, stop).map_err(|error| {
        if !matches!(error, SwiftSyncError::Incomplete { .. }) {
            // The verdict is the error to report, even if the folder cannot be deleted.
            let _ = workdir.wipe();
        }
        error.into()
    })
}
