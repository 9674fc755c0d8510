//! [`run`]: executes a run, from its settings to its report, for all commands that start one.
//!
//! Before the run starts, it estimates whether a disk may become full, and warns. An estimate never stops a run.

use crate::args::{
    AggregateArg, FileKind, HintsArg, SinkArg, SyncMethod, TaskParts, finish_sighints,
};
use crate::args::{expect_interpreter, verifier};
#[cfg(feature = "remote-coins")]
use crate::coins::SetOnServers;
use crate::failure::Failure;
use crate::files::{
    NewFolders, expect_apart, expect_hints, expect_new_file, expect_new_folder, expect_outside,
    expect_writable,
};
use crate::files::{bytes_in, expect_places, nearest, tell_aside};
use crate::machine::{clock, threads, watch_signals};
use crate::node::expect_first_blocks;
use crate::peers;
use crate::plan::{BlocksSize, Needs, SetSize, warn_of_low_space};
use crate::print;
use crate::render::{Renderer, RunDisplay, RunRecord};
use crate::report::{
    Circumstances, FailedReport, ForestReport, ProofsReport, RunReport, SignaturesReport,
    WrittenFile, is_failed_report, is_report, leave_failed, write_report,
};
use crate::sync::indexes::{IndexesOutput, expect_makeable};
use crate::sync::{JobSource, RunJob, writes};
use crate::utreexo_outputs::{UtreexoOutputs, roots_files};
use crate::workdir::{WorkFolder, default_path};
use apus_chain::{BlockHash, Height, Params, ScriptVerifier};
use apus_datadir::{BlockFiles, chain_folder, free_bytes};
use apus_engine::script::Signatures;
use apus_engine::utxo::store::{DiskOptions, DiskStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_storage::DirStorage;
use apus_sync::chain_index::ChainIndex;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::hints::{BitOrder, HintsOptions};
use apus_sync::peers::{BlocksFolderOptions, Peers};
use apus_sync::sink::SetOutput;
use apus_sync::{
    COINS, ConnectOptions, DatadirBlocks, DiskUse, Event, FolderKind, FolderOutput, HINTS,
    HintedTask, HintedValidity, HintsInput, INDEX, KEPT, MemoryParts, Observer, Outcome, Output,
    OutputKind, POSITIONS, Request, RunEnv, ScratchLimits, Source, Stop, SyncError, Task,
    UsageError, Warning, draft_of, parent,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Executes a run from start to end, including report and clean-up. Also writes a report for a failed run, unless the
/// command line was invalid.
pub(crate) fn run(job: &RunJob<'_>) -> Result<RunReport, Failure> {
    let work_path = work_path(job);
    let not_durable = expect_sensible(job, &work_path)?;
    let watch = RunDisplay::of(job.run, job.about(), job.expected())?;
    let shared = Arc::clone(&watch.shared);
    let mut record = None;
    let result = run_watched(job, (&work_path, not_durable), watch, &mut record);
    let report = match &result {
        Ok(report) => serde_json::to_value(report),
        Err(failure) => {
            let history = record.as_ref().map(|record| record.history.clone()).unwrap_or_default();
            let report = FailedReport::new(job.chain.name(), failure, history);
            leave_failed(job.run.report.as_deref(), &report);
            serde_json::to_value(report)
        }
    };
    if let Some(record) = &mut record {
        match &result {
            Ok(report) => record.note("done", format!("at block {}", report.stop_height).as_str()),
            Err(failure) => record.note("failed", &failure.message),
        }
    }
    shared.lock().report = report.ok();
    result
}

/// Returns the path of the work folder.
pub(crate) fn work_path(job: &RunJob<'_>) -> PathBuf {
    job.run.workdir.clone().unwrap_or_else(|| {
        let hints = job.hints.map(HintsArg::named);
        let proofs = job.bridge.map(|proofs| proofs.folder);
        let first = job.outputs.iter().find_map(SinkArg::path).or(proofs);
        default_path(job.chain, hints, first)
    })
}

fn run_watched(
    job: &RunJob<'_>,
    (work_path, not_durable): (&Path, Vec<PathBuf>),
    watch: RunDisplay,
    ended: &mut Option<RunRecord>,
) -> Result<RunReport, Failure> {
    let rules = RunRules::of(job)?;
    let interrupt = watch_signals()?;
    unpack_hints(job, work_path, &interrupt)?;
    let _made = make_folders(job, work_path)?;
    let signatures = job.run.signatures.learning(job.chain, sighints_path(job.outputs))?;
    let folder = WorkFolder::open(work_path)?;
    folder.begin(job.coins_place())?;
    let peers = start_peers(job, rules.params, &folder, work_path)?;
    let renderer = Renderer::new(watch, peers.as_ref());
    let scratch = look_at_room(job, work_path, &renderer);
    for folder in not_durable {
        let folder = folder.display().to_string();
        renderer.event(Event::Warning(Warning::NamesNotDurable { folder }));
    }
    let workdir = folder.storage();
    let setup = RunSetup {
        workdir,
        signatures: &signatures,
        scratch,
        peers: peers.as_ref(),
        renderer: &renderer,
        interrupt: &interrupt,
    };
    let computed = compute(job, &rules, &setup);
    let record = &*ended.insert(renderer.into_record());
    let (outcome, utreexo) = match computed {
        Ok(computed) => computed,
        Err(error) => return Err(give_up(job, folder, error)),
    };
    let finished = finish_sighints(&signatures, outcome.chain.stop);
    finished.map_err(|failure| folder.keep(failure))?;
    let around = circumstances(job, peers.as_ref(), utreexo, &signatures);
    let report = RunReport::new(&outcome, record.history.clone(), around);
    if let Some(path) = &job.run.report {
        write_report(path, &report).map_err(|failure| folder.keep(failure))?;
    }
    let folders = &outcome.written.folders;
    apus_sync::complete_folders(folders).map_err(|error| folder.keep(error.into()))?;
    leave_work_folder(job, folder, work_path, outcome.chain.stop.height)?;
    folders.iter().for_each(tell_aside);
    Ok(report)
}

/// The rules that a run validates blocks by, and its time.
struct RunRules {
    params: &'static Params,
    now: i64,
    verifier: Option<Box<dyn ScriptVerifier>>,
    assume_valid: Option<BlockHash>,
    skips_witnesses: bool,
}

impl RunRules {
    fn of(job: &RunJob<'_>) -> Result<Self, Failure> {
        let params = Params::of(job.chain);
        let now = clock(params)?;
        let verifier = verifier(params)?;
        let assume_valid = job.connect.and_then(|args| args.assume.block(params));
        expect_scripts(job, assume_valid)?;
        let skips_witnesses = job.connect.map(|args| job.skips_witnesses(args)).transpose()?;
        let skips_witnesses = skips_witnesses.unwrap_or_default();
        Ok(Self { params, now, verifier, assume_valid, skips_witnesses })
    }
}

/// The resources of a run.
struct RunSetup<'a> {
    workdir: &'a DirStorage,
    signatures: &'a Arc<Signatures>,
    /// Bytes that temporary files may take.
    scratch: u64,
    peers: Option<&'a Peers<'a>>,
    renderer: &'a Renderer<'a>,
    interrupt: &'a AtomicBool,
}

/// Creates the parent folders of everything that the run writes. Folders that are still empty at the end are removed.
fn make_folders(job: &RunJob<'_>, work_path: &Path) -> Result<NewFolders, Failure> {
    let written = job.outputs.iter().filter_map(SinkArg::path).chain(job.run.report.as_deref());
    let mut made = NewFolders::around(written.chain([work_path]))?;
    job.bridge.map_or(Ok(()), |proofs| made.make(proofs.folder))?;
    Ok(made)
}

/// Starts the search for peers, if they are the source of blocks.
fn start_peers<'a>(
    job: &RunJob<'_>,
    params: &Params,
    folder: &'a WorkFolder,
    work_path: &Path,
) -> Result<Option<Peers<'a>>, Failure> {
    let JobSource::Peers(args) = &job.source else { return Ok(None) };
    let keep = kept_folder(job, work_path);
    let peers = peers::start(args, params, job.run, folder.storage(), keep.as_ref());
    peers.inspect_err(|_| folder.leave()).map(Some)
}

/// A run's reports about the Utreexo forest and about proofs.
type UtreexoReports = (Option<ForestReport>, Option<ProofsReport>);

/// Computes the set, and writes the outputs of the job.
fn compute(
    job: &RunJob<'_>,
    rules: &RunRules,
    setup: &RunSetup<'_>,
) -> Result<(Outcome, UtreexoReports), SyncError> {
    let work_path = setup.workdir.folder();
    let (threads, budget) = (threads(job.run.par), job.run.dbcache << 20);
    let memory = match &job.source {
        JobSource::Files { .. } => MemoryParts::with_files(budget, threads),
        JobSource::Peers(_) => MemoryParts::with_peers(budget),
    };
    let options = || DiskOptions { cache_bytes: memory.store_bytes, ..DiskOptions::default() };
    let coins_path = work_path.join(COINS);
    let open_store = || -> Result<Arc<dyn CoinsStore>, StoreError> {
        match job.coins {
            Some(servers) => servers.open(job.chain, memory.answers_bytes()),
            None => Ok(Arc::new(DiskStore::open(&coins_path, job.chain, options())?)),
        }
    };
    let connect = job.connect.map(|args| ConnectOptions {
        assume_valid: rules.assume_valid,
        prevout_threads: args.prevout_threads.into(),
        cache_bytes: memory.coins_bytes,
        store: &open_store,
        beyond: job.coins.map(|servers| servers.place.clone()),
        hints_folder: work_path.join(HINTS),
        positions: work_path.join(POSITIONS),
    });
    let outputs: Vec<Output> = output_paths(job.outputs).into_iter().map(open_output).collect();
    let (folders, roots_files) = (folder_outputs(job), roots_files(job.outputs));
    #[cfg(feature = "remote-coins")]
    let on_servers: Vec<SetOnServers<'_>> = job.set_stores.iter().map(SetOnServers).collect();
    #[cfg(feature = "remote-coins")]
    for set in &on_servers {
        set.expect_ready(job.chain, WorkFolder::has_plan(work_path))?;
    }
    let indexes = IndexesOutput::of(job, &folders, work_path)?;
    let mut sets: Vec<&dyn SetOutput> = Vec::new();
    #[cfg(feature = "remote-coins")]
    sets.extend(on_servers.iter().map(|set| set as &dyn SetOutput));
    #[cfg(feature = "tables")]
    let tables = crate::tables::outputs(job.outputs, job.replace)?;
    #[cfg(feature = "tables")]
    sets.extend(tables.iter().map(|set| set as &dyn SetOutput));
    // The last one: it takes longest, and what comes before may fail.
    sets.extend(indexes.iter().map(|indexes| indexes as &dyn SetOutput));
    let index = (work_path.join(INDEX), memory.store_bytes);
    let making = UtreexoOutputs::new(job.chain, &roots_files, job.bridge, index, budget);
    // The Utreexo forest uses the other half of the memory.
    let memory_bytes = if making.index().is_some() { budget / 2 } else { budget };
    let request = Request {
        source: source(job, setup.peers),
        task: task(job, connect, making.index())?,
        leave_witnesses: rules.assume_valid.filter(|_| rules.skips_witnesses),
        stop: job.stop,
        follow: job.follows(),
        outputs: &outputs,
        commitment: making.commitment(),
        folders: &folders,
        sets: &sets,
        muhash: job.muhash,
        env: RunEnv {
            params: rules.params,
            threads,
            memory_bytes,
            segment_bytes: job.run.segment_bytes,
            scratch: Some(ScratchLimits { bytes: setup.scratch, segments: None }),
            checkpoint_interval: Duration::from_secs(job.run.checkpoint_seconds.into()),
            now: rules.now,
            signatures: setup.signatures,
            verifier: rules.verifier.as_deref(),
            workdir: setup.workdir,
            is_shared: false,
            given: None,
            observer: setup.renderer,
            interrupt: setup.interrupt,
        },
    };
    let outcome = setup.renderer.beside(|| match job.machines {
        Some(machines) => apus_sync::run_shared(&request, machines),
        None => apus_sync::run(&request),
    })?;
    let (forest, proofs) = making.reports();
    let forest = forest.or(job.outside.and_then(|outside| (outside.forest)()));
    Ok((outcome, (forest, proofs)))
}

/// Returns the source of blocks. If it is peers, they have already been started.
fn source<'a>(job: &RunJob<'_>, peers: Option<&'a Peers<'a>>) -> Source<'a> {
    match (&job.source, peers) {
        (JobSource::Files { blocksdir, use_index }, _) => {
            Source::Files { blocksdir: blocksdir.clone(), use_index: *use_index }
        }
        (JobSource::Peers(_), peers) => Source::Peers(peers.expect("they were started")),
    }
}

/// Ends a failed run. Prefixes an error about hints with their file's name.
fn give_up(job: &RunJob<'_>, folder: WorkFolder, error: SyncError) -> Failure {
    let about_hints = job.hints.filter(|_| error.is_about_hints());
    let mut failure = folder.give_up(error);
    if let Some(hints) = about_hints {
        failure.message = format!("{}: {}", hints.named().display(), failure.message);
    }
    failure
}

/// Collects the run's circumstances for its report.
fn circumstances(
    job: &RunJob<'_>,
    peers: Option<&Peers<'_>>,
    (utreexo, proofs): UtreexoReports,
    signatures: &Signatures,
) -> Circumstances {
    Circumstances {
        network: job.chain,
        threads: threads(job.run.par),
        dbcache_mib: job.run.dbcache,
        peers: peers.map(|peers| peers::report(&peers.status())),
        files: WrittenFile::all(job.outputs),
        utreexo,
        proofs,
        signatures: SignaturesReport::of(signatures),
    }
}

/// Ends a run that succeeded at a height. Keeps progress in the work folder if a later run can continue from it.
fn leave_work_folder(
    job: &RunJob<'_>,
    folder: WorkFolder,
    work_path: &Path,
    height: Height,
) -> Result<(), Failure> {
    let place = work_path.display();
    // A data directory already has the blocks, and Apus never extends a complete one.
    let has_blocks = |output: &SinkArg| matches!(output, SinkArg::Datadir(_));
    if job.follows() && !job.outputs.iter().any(has_blocks) {
        folder.leave_ended()?;
        print::aside(format_args!(
            "progress is kept in {place}: {}rerun the command to continue from block {height}",
            if writes(job.outputs) { "rename the written output, then " } else { "" },
        ));
    } else if let Some(coins) = job.coins_place() {
        folder.leave_coins(coins)?;
        print::aside(format_args!(
            "the coins stay at {coins}, and their state in {place}. Once there are more blocks, rerun the command \
             to continue from block {height}"
        ));
    } else {
        folder.discard()?;
    }
    if job.bridge.is_some() {
        print::aside(format_args!(
            "the forest stays in {}: a later sync with the same --out and --workdir continues there",
            work_path.join(INDEX).display()
        ));
    }
    Ok(())
}

/// Fails early, before requesting headers, if all scripts must run but the build cannot run any. With hints or an
/// assumed-valid block, whether scripts run depends on the chain's end.
fn expect_scripts(job: &RunJob<'_>, assume_valid: Option<BlockHash>) -> Result<(), Failure> {
    if job.connect.is_none() || job.hints.is_some() || assume_valid.is_some() {
        return Ok(());
    }
    expect_interpreter()
}

/// Returns the task for the blocks of a job.
fn task<'a>(
    job: &RunJob<'a>,
    connect: Option<ConnectOptions<'a>>,
    index: Option<&'a dyn ChainIndex>,
) -> Result<Task<'a>, SyncError> {
    if let Some(hints) = job.hints {
        return Ok(Task::Hinted(HintedTask {
            hints: hints_input(hints, job.hints_order),
            aggregate: match job.aggregate {
                AggregateArg::Sha256 => AggregateKind::Sha256,
                AggregateArg::Muhash => AggregateKind::MuHash,
                AggregateArg::None => AggregateKind::None,
            },
            validity: hinted_validity(job),
            spent: job.spent,
            connect,
        }));
    }
    let connect = connect.ok_or(SyncError::Usage(UsageError::NothingToConnect))?;
    let Some(engine) = job.engine else { return Ok(Task::Unhinted(connect)) };
    let outside = job.outside.map(|outside| outside.engine);
    let task = (engine.facts().task)(TaskParts { connect, index, outside });
    task.ok_or(SyncError::Usage(UsageError::NothingToConnect))
}

/// Returns how to treat the validity of blocks under hints. Commands without options about rules only check hints
/// against blocks, not the blocks' validity.
fn hinted_validity(job: &RunJob<'_>) -> HintedValidity {
    match job.connect {
        None => HintedValidity::NotAsked,
        // Hints under examination prove nothing about the blocks.
        Some(_) if job.stop == Stop::AtHints => HintedValidity::Checked,
        Some(args) if args.assume.hinted() => HintedValidity::Assumed,
        Some(_) => HintedValidity::Anchored,
    }
}

/// Unpacks piped or compressed hints into the run's work folder.
fn unpack_hints(job: &RunJob<'_>, work_path: &Path, interrupt: &AtomicBool) -> Result<(), Failure> {
    match job.hints {
        Some(hints) if !hints.input().is_plain()? => {
            hints.input().make_plain(work_path, interrupt)?;
            expect_hints(hints)
        }
        _ => Ok(()),
    }
}

fn hints_input(hints: &HintsArg, order: Option<BitOrder>) -> HintsInput {
    match hints {
        HintsArg::File(input) => {
            let options = HintsOptions { order, ..HintsOptions::default() };
            HintsInput::File(input.path().to_owned(), options)
        }
        HintsArg::Snapshot(input) => HintsInput::Snapshot(input.path().to_owned()),
    }
}

/// Fails early for problems that would otherwise appear hours later. Returns the folders whose names cannot be made
/// durable.
fn expect_sensible(job: &RunJob<'_>, work_path: &Path) -> Result<Vec<PathBuf>, Failure> {
    expect_sighints_made(job)?;
    // Piped or compressed hints are checked later, once unpacked.
    if let Some(hints) = job.hints.filter(|hints| hints.input().is_plain().unwrap_or(true)) {
        expect_hints(hints)?;
    }
    if let JobSource::Files { blocksdir, .. } = &job.source {
        expect_first_blocks(blocksdir)?;
    }
    let report = job.run.report.as_deref();
    let beside: Vec<PathBuf> = job.outputs.iter().filter_map(SinkArg::beside).collect();
    let mut paths: Vec<&Path> = job.outputs.iter().filter_map(SinkArg::path).collect();
    paths.extend(beside.iter().map(PathBuf::as_path));
    paths.extend(report);
    let written = paths.clone();
    if let Some(proofs) = job.bridge {
        if let JobSource::Files { blocksdir, .. } = &job.source {
            expect_apart(&[proofs.folder, &blocksdir.files])?;
        }
        paths.push(proofs.folder);
    }
    paths.push(work_path);
    expect_apart(&paths)?;
    // Accept files that an earlier start finished before it was killed.
    let resuming = WorkFolder::was_broken_off(work_path);
    paths.extend(job.hints.map(HintsArg::named));
    paths.extend(job.run.signatures.sighints.as_deref());
    paths.extend(job.outside.and_then(|outside| outside.folder));
    let blocksdir = match &job.source {
        JobSource::Files { blocksdir, .. } => Some(blocksdir.files.as_path()),
        JobSource::Peers(_) => None,
    };
    paths.extend(blocksdir);
    let folders = folder_outputs(job);
    for folder in &folders {
        if let Some(blocksdir) = blocksdir {
            expect_apart(&[&folder.path, blocksdir])?;
        }
        expect_outside(&folder.path, &paths)?;
        expect_new_folder(folder, resuming)?;
    }
    for sink in job.outputs {
        let beside = sink.beside();
        for path in sink.file().into_iter().chain(beside.as_deref()) {
            match sink.is_replaced() && !resuming {
                true => expect_new_file(path, job.replace)?,
                false => expect_writable(path, |_| resuming)?,
            }
        }
    }
    let may_be_there = |path: &Path| is_failed_report(path) || resuming && is_report(path);
    report.map_or(Ok(()), |path| expect_writable(path, may_be_there))?;
    // The last check, because it takes longest.
    expect_makeable(job, &folders)?;
    expect_places(&written, &folders)
}

/// Refuses a file of signature hints where this run does not learn them.
fn expect_sighints_made(job: &RunJob<'_>) -> Result<(), Failure> {
    let file = sighints_path(job.outputs);
    job.run.signatures.expect_hints_wanted(file)?;
    if file.is_some() && job.machines.is_some() {
        return Err(Failure::usage(
            "other machines run the scripts, so this one learns no hints: leave out --out sighints:FILE",
        ));
    }
    Ok(())
}

pub(super) fn output_paths(sinks: &[SinkArg]) -> Vec<(OutputKind, PathBuf)> {
    sinks
        .iter()
        .filter_map(|sink| match sink {
            SinkArg::File(form, path) => match form.kind {
                FileKind::Output(kind) => Some((kind, path.clone())),
                #[cfg(feature = "tables")]
                FileKind::Table(_) => None,
            },
            _ => None,
        })
        .collect()
}

/// Returns the file for signature hints.
fn sighints_path(sinks: &[SinkArg]) -> Option<&Path> {
    sinks.iter().find_map(|sink| match sink {
        SinkArg::SignatureHints(path) => Some(path.as_path()),
        _ => None,
    })
}

pub(super) fn folder_outputs(job: &RunJob<'_>) -> Vec<FolderOutput> {
    let output = |sink: &SinkArg| {
        let (kind, path, replace) = match sink {
            SinkArg::Chainstate(path) => (FolderKind::Chainstate, path, job.replace),
            SinkArg::Datadir(path) if job.keeps_for_datadir() => {
                (FolderKind::KeptDatadir, path, false)
            }
            SinkArg::Datadir(path) => (FolderKind::Datadir(job.kept), path, false),
            SinkArg::File(..)
            | SinkArg::Utreexo(_)
            | SinkArg::SignatureHints(_)
            | SinkArg::Stats(_)
            | SinkArg::Coins(_)
            | SinkArg::Null => return None,
        };
        Some(FolderOutput { kind, path: path.clone(), replace })
    };
    job.outputs.iter().filter_map(output).collect()
}

/// Returns the folder for blocks from peers: in the data directory that is built around them, or next to the
/// chainstate, as in a node's data directory.
pub(super) fn kept_folder(job: &RunJob<'_>, work_path: &Path) -> Option<BlocksFolderOptions> {
    let log = work_path.join(KEPT);
    let datadir = folder_outputs(job).into_iter().find(|it| it.kind == FolderKind::KeptDatadir);
    if let Some(datadir) = datadir {
        let folder = chain_folder(&draft_of(&datadir.path), job.chain).join("blocks");
        return Some(BlocksFolderOptions { folder, log, datadir: Some(datadir) });
    }
    let chainstate = job.outputs.iter().find_map(|sink| match sink {
        SinkArg::Chainstate(path) => Some(path),
        _ => None,
    });
    let next_to = |path: &PathBuf| parent(path).join("blocks");
    chainstate.filter(|_| job.keeps_blocks()).map(|path| BlocksFolderOptions {
        folder: next_to(path),
        log,
        datadir: None,
    })
}

pub(super) fn open_output((kind, path): (OutputKind, PathBuf)) -> Output {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Output { kind, storage: Arc::new(DirStorage::new(parent(&path))), name }
}

/// Warns of each disk with less free space than the run may need, and returns how much its temporary files may take.
/// Ignores errors in blocks or hints, which the run itself reports.
pub(super) fn look_at_room(job: &RunJob<'_>, work_path: &Path, observer: &dyn Observer) -> u64 {
    let method = SyncMethod::of(job.engine, job.hints.is_some(), job.coins.is_some());
    let known = match &job.source {
        JobSource::Files { blocksdir, .. } => {
            BlockFiles::open(blocksdir, job.chain.magic()).ok().map(|files| files.bytes_total())
        }
        JobSource::Peers(_) => None,
    };
    let old = job.outputs.iter().find_map(|sink| match sink {
        SinkArg::Chainstate(path) if path.is_dir() => Some(bytes_in(path)),
        _ => None,
    });
    let set = match job.hints {
        Some(hints) => SetSize::of_hints(hints, job.chain).unwrap_or_default(),
        None => SetSize::of_chainstate(old.unwrap_or_default()),
    };
    let needs = Needs {
        blocks: known.map_or_else(|| BlocksSize::of_peers(job.chain), BlocksSize::of_size),
        method: method.unwrap_or(SyncMethod::Joins),
        set,
        outputs: job.outputs,
        prune: matches!(job.kept, DatadirBlocks::Last),
        indexes: job.indexes,
        workdir: work_path,
        scratch: job.run.scratch,
        memory_bytes: job.run.dbcache << 20,
        threads: crate::machine::threads(job.run.par),
    };
    let begins = job.bridge.is_none() && !WorkFolder::has_plan(work_path);
    if begins && known.is_some() && method.is_ok() {
        let _ = warn_of_low_space(&needs, &mut |warning| observer.event(Event::Warning(warning)));
    }
    let scratch = needs.scratch();
    if begins && method == Ok(SyncMethod::Joins) {
        report_scratch(&needs, scratch, work_path, observer);
    }
    scratch
}

/// Reports how much disk space the run's temporary files may take.
fn report_scratch(needs: &Needs<'_>, scratch: u64, work_path: &Path, observer: &dyn Observer) {
    let bytes = if needs.blocks.bytes > 0 { needs.joined().0.min(scratch) } else { scratch };
    let free = free_bytes(&nearest(work_path)).unwrap_or_default();
    observer.event(Event::DiskNeeded { what: DiskUse::Progress, bytes, free });
}
