//! One sync from blocks to a UTXO set: finds the chain, processes the blocks with hints, connects the blocks
//! above, and writes the coins.

mod hints_of_set;

use crate::best_chain::{CHAINS_LEFT_MAX, chain_anew, headers};
use crate::commitment::{HashParts, StoredHashes};
use crate::engines::in_order;
use crate::engines::in_order::chains::begin_anew;
use crate::engines::mergesync::{self, MergeOutcome, MergedSet};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::engines::swiftsync::{CoinTotals, Counts, SwiftSync};
use crate::engines::swiftsync::{HintsOutcome, Proven, expect_counted, prove};
use crate::error::{InvalidError, SyncError, UsageError};
use crate::folder::FolderOutput;
use crate::machines::Machines;
use crate::request::{
    ChainEnd, Engine, EngineTask, HintedTask, HintsProof, MergeSyncTask, Outcome, OutputKind,
    Request, RunEnv, SetSummary, Source, Stop, Task, Validation,
};
use crate::sink::SetInfo;
use crate::sink::put::{Put, forget_damaged, write_out};
use crate::sink::read_back::complete;
use crate::source::{ChainSource, not_kept};
use crate::supply::ranges::take_missing;
use crate::workdir::record::Record;
use crate::workdir::{Workdir, runs_of};
use apus_chain::{Height, KnownBlock};
use apus_storage::Storage;
use std::sync::Arc;

/// Computes the UTXO set that `request` asks for.
///
/// The progress stays in the work folder: call [`discard_progress`] once the outcome is reported.
pub fn run<'a>(request: &'a Request<'a>) -> Result<Outcome, SyncError> {
    run_by(request, None)
}

/// Like [`run`], but other machines process the segments.
pub fn run_shared(request: &Request<'_>, machines: &dyn Machines) -> Result<Outcome, SyncError> {
    let env = RunEnv { is_shared: true, given: machines.given(), ..request.env };
    let request = Request { env, ..request.clone() };
    let outcome = run_by(&request, Some(machines));
    // If the sync was interrupted, its next start removes the data left on the machines.
    if !matches!(outcome, Err(SyncError::Interrupted)) {
        let ends = |error: &SyncError| {
            let plan = Workdir::read_plan(request.env.workdir);
            error.spoils_progress() || plan.is_ok_and(|plan| plan.is_none())
        };
        machines.end(&request, outcome.as_ref().err().is_none_or(ends));
    }
    outcome
}

fn run_by<'a>(
    request: &'a Request<'a>,
    machines: Option<&dyn Machines>,
) -> Result<Outcome, SyncError> {
    if let Source::Peers(peers) = &request.source
        && request.folders.iter().any(FolderOutput::is_pruned)
    {
        peers.keep_counts()?;
    }
    let outcome = compute(request, machines);
    if let (Err(_), Source::Peers(peers)) = (&outcome, &request.source) {
        peers.store_counts();
    }
    outcome
}

fn compute<'a>(
    request: &'a Request<'a>,
    machines: Option<&dyn Machines>,
) -> Result<Outcome, SyncError> {
    let task = match &request.task {
        Task::Hinted(task) => task,
        Task::By(EngineTask { engine, .. }) => {
            if engine.shared().is_none() {
                expect_one_machine(request, "a sync with this engine")?;
            }
            return engine.run(request, headers(request, None)?, machines);
        }
        Task::MergeSync(_) => return merge(request, headers(request, None)?, machines),
        Task::InOrder(_) => {
            expect_one_machine(
                request,
                "a sync with the engine utxo, which connects blocks in order,",
            )?;
            return connect_on(request, headers(request, None)?, None);
        }
        Task::Unhinted(_) => {
            let dir = headers(request, None)?;
            return match joins(request)? {
                true => merge(request, dir, machines),
                false => connect_on(request, dir, None),
            };
        }
    };
    let writes =
        !(request.outputs.is_empty() && request.folders.is_empty() && request.sets.is_empty())
            || request.wants_commitment();
    if task.aggregate == AggregateKind::None && writes {
        return Err(SyncError::Usage(UsageError::Unproven));
    }
    let proven = match prove(request, task, machines)? {
        HintsOutcome::Proven(proven) => *proven,
        HintsOutcome::NoUndo(height) => return without(request, task, height, machines),
        HintsOutcome::NotNeeded(dir, hints) => {
            let hints = HintsProof { info: hints, ..HintsProof::default() };
            return Ok(connect_on(request, dir, None)?.with_hints(hints));
        }
    };
    let end = request.stop.end(proven.plan.identity.stop, proven.dir.chain());
    if end == proven.at.height && !request.follow {
        return write_proven(request, proven);
    }
    let unseen = proven.unseen();
    let Proven { dir, at, done, verdict, hints, scripts, with_blocks, .. } = proven;
    // Connecting blocks opens the directory again.
    drop(with_blocks);
    if verdict.aggregate == AggregateKind::None {
        return Err(SyncError::Usage(UsageError::Unproven));
    }
    let runs = in_order::BaseRuns::Set(runs_of(&done, SwiftSync::COINS));
    // Connecting takes hours, and does not need the segments' results in memory.
    drop(done);
    let (coins, counts) = (verdict.coins.coins, verdict.counts);
    // With undo data, nothing rests on the aggregate alone.
    let aggregate = hints.aggregate.filter(|_| scripts.is_none());
    let scripts = scripts.unwrap_or_default().run;
    let base = in_order::BaseCoins { at, runs, coins, counts, aggregate, scripts, unseen };
    Ok(connect_on(request, dir, Some(base))?.with_hints(hints))
}

/// Fails if other machines should take part.
fn expect_one_machine(request: &Request<'_>, what: &'static str) -> Result<(), SyncError> {
    match request.env.is_shared {
        true => Err(SyncError::Usage(UsageError::NotOnCluster { what })),
        false => Ok(()),
    }
}

/// Computes the set at a height under every rule, without the request's hints.
fn without(
    request: &Request<'_>,
    task: &HintedTask<'_>,
    height: Height,
    machines: Option<&dyn Machines>,
) -> Result<Outcome, SyncError> {
    let connect = task.connect.clone().ok_or(SyncError::Usage(UsageError::NothingToConnect))?;
    let task = Task::MergeSync(MergeSyncTask { connect, index: None });
    let request = Request { task, stop: Stop::At(height), ..request.clone() };
    let dir = headers(&request, None)?;
    merge(&request, dir, machines)
}

/// Whether to use mergesync if the user did not choose an engine. An earlier start's choice stays.
pub(crate) fn joins(request: &Request<'_>) -> Result<bool, SyncError> {
    if request.env.is_shared {
        return Ok(true);
    }
    if mergesync::has_begun(request.env.workdir)? {
        return Ok(true);
    }
    Ok(Record::read(request.env.workdir)?.is_none())
}

/// Writes out the set where the hints stop.
fn write_proven(request: &Request<'_>, proven: Proven<'_>) -> Result<Outcome, SyncError> {
    let unseen_witnesses = proven.unseen();
    let Proven { dir, workdir, at, done, verdict, hints, scripts, with_blocks, .. } = proven;
    let runs = [SwiftSync::COINS, SwiftSync::HINTS].map(|kind| runs_of(&done, kind));
    let hashes = request.wants_commitment().then(|| StoredHashes::of(&workdir, &done));
    let hashes = hashes.as_ref().map(|hashes| hashes as &dyn HashParts);
    // Results too recent to be durable: storing them now costs less than computing them again.
    let mut held: Vec<_> = done.into_iter().filter(|done| !done.stored).collect();
    let proven = (at, &verdict);
    let written = write_out(request, &*dir, &workdir, proven, runs, hashes, with_blocks);
    let (set, put) = written.inspect_err(|error| {
        if !matches!(error, SyncError::Invalid(InvalidError::AssumeUtxo { .. })) {
            // Report the first error, whether or not this succeeds.
            let _ = workdir.store(&mut held);
        }
    })?;
    let validation = Validation {
        engine: Engine::Utxo,
        hints,
        connected_from: scripts.map(|_| 1),
        trusted: None,
        scripts: scripts.unwrap_or_default(),
        unseen_witnesses,
    };
    let (counts, totals) = (verdict.counts, verdict.coins);
    end(request, &*dir, PutSet { set, put, validation, counts, totals })
}

/// Fails if the request wants hints for a set that hints cannot state.
fn expect_hints_possible(request: &Request<'_>, dir: &dyn ChainSource) -> Result<(), SyncError> {
    match request.outputs.iter().any(|output| output.kind == OutputKind::Hints) {
        true => expect_counted(request.env.params, dir.chain(), request.stop.end_in(dir)?),
        false => Ok(()),
    }
}

/// Connects the blocks above `base`, or all of them, and writes out the set.
fn connect_on<'a>(
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    base: Option<in_order::BaseCoins>,
) -> Result<Outcome, SyncError> {
    expect_hints_possible(request, &*dir)?;
    let connected = in_order::run(request, dir, base);
    // The base may be damaged.
    let mut connected =
        connected.inspect_err(|error| forget_damaged(request.env.workdir, error))?;
    let (put, totals) = connected.write_set(request)?;
    hints_of_set::write(request, connected.set, &put, |each| connected.records(each))?;
    let in_order::ConnectedSet { dir, set, counts, validation, .. } = connected;
    end(request, &*dir, PutSet { set, put, validation, counts, totals })
}

/// Walks the blocks twice, connects those above, if there are any, and writes out the set.
fn merge<'a>(
    request: &'a Request<'a>,
    dir: Arc<dyn ChainSource + 'a>,
    machines: Option<&dyn Machines>,
) -> Result<Outcome, SyncError> {
    expect_hints_possible(request, &*dir)?;
    let (mut dir, mut left) = (dir, 0);
    let mut merged = loop {
        match mergesync::run(request, dir, machines)? {
            MergeOutcome::Below(dir, None) => return connect_on(request, dir, None),
            MergeOutcome::Below(joined, base) => match connect_on(request, joined, base) {
                // No chain that can be followed contains the joined blocks.
                Err(error) if error.is_below_joined() && left < CHAINS_LEFT_MAX => {
                    begin_anew(request)?;
                    dir = chain_anew(request, &error)?;
                    left += 1;
                }
                outcome => return Ok(outcome?.by(Engine::MergeSync)),
            },
            MergeOutcome::Whole(merged) => break *merged,
        }
    };
    let written = merged.write_out(request);
    let (put, totals) = written.inspect_err(|error| forget_damaged(request.env.workdir, error))?;
    let MergedSet { dir, set, counts, validated, unseen: unseen_witnesses, .. } = merged;
    let validation = Validation {
        engine: Engine::MergeSync,
        hints: HintsProof::default(),
        connected_from: Some(1),
        trusted: None,
        scripts: validated.scripts,
        unseen_witnesses,
    };
    end(request, &*dir, PutSet { set, put, validation, counts, totals })
}

/// A set that an engine computed and wrote out ([`put_set`](crate::sink::put::put_set)).
pub struct PutSet {
    /// The set.
    pub set: SetInfo,
    /// The result of writing it out.
    pub put: Put,
    /// How its blocks were validated.
    pub validation: Validation,
    /// Counts over all blocks.
    pub counts: Counts,
    /// Totals of its coins.
    pub totals: CoinTotals,
}

/// Ends a sync that wrote out a set; every engine that keeps one calls this. Fetches the blocks that the
/// source must keep and lacks, and finishes the source's folder.
pub fn end(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    done: PutSet,
) -> Result<Outcome, SyncError> {
    let PutSet { set, mut put, validation, counts, totals } = done;
    take_missing(&request.env, dir, &not_kept(dir, set.height))?;
    complete(request, dir, set, &mut put.written.folders)?;
    let params = request.env.params;
    let in_assumeutxo_table = params.assumeutxo_for(&set.base).is_some();
    Ok(Outcome {
        chain: ChainEnd::new(
            params,
            dir.chain(),
            KnownBlock { height: set.height, hash: set.base },
        ),
        validation,
        counts,
        set: SetSummary { totals, hashes: Some(put.hashes), in_assumeutxo_table },
        written: put.written,
    })
}

/// Discards the progress of a finished sync. The plan goes last: after a kill in the middle, the same command
/// computes the same result again instead of failing because its own output exists.
pub fn discard_progress(workdir: &dyn Storage) -> Result<(), SyncError> {
    Workdir::discard(workdir)
}

/// Discards the progress of a finished sync, except for the record that it wrote the coins that stay on
/// servers.
pub fn keep_record(workdir: &dyn Storage) -> Result<(), SyncError> {
    Workdir::leave_record(workdir)
}

/// Discards the progress of a failed sync, except for downloaded blocks; returns whether there are any.
pub fn give_up_progress(workdir: &dyn Storage) -> Result<bool, SyncError> {
    Workdir::give_up(workdir)
}

/// Fails unless `workdir` is empty or a work folder. Call it before writing or removing anything there.
pub fn expect_work_folder(workdir: &dyn Storage) -> Result<(), SyncError> {
    Workdir::read_plan(workdir).map(|_| ())
}

/// Whether the work folder has progress that a later start can resume.
pub fn has_progress(workdir: &dyn Storage) -> bool {
    Workdir::has_progress(workdir)
}
