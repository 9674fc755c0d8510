//! `apus sync`, and the run that `hints check` and `snapshot verify` share with it.

mod ahead;
mod outputs;
pub(crate) mod proofs;
mod room;

use crate::args::{
    AggregateArg, BlocksArg, ConnectArgs, EngineArg, HintsArg, PeerArgs, RunArgs, SinkArg,
    SourceArgs, SyncArgs,
};
use crate::aside;
use crate::coins::Beyond;
use crate::failure::Failure;
use crate::files::{
    MadeFolders, expect_apart, expect_hints, expect_new_folder, expect_outside, expect_writable,
};
use crate::interrupt::watch_signals;
use crate::machine::{clock, threads};
use crate::node::{expect_first_blocks, start_command};
use crate::options::{expect_engine_takes, expect_undo_data};
use crate::peers;
use crate::places::expect_places;
use crate::print;
use crate::render::{Record, Renderer, Watch};
use crate::report::{
    Circumstances, FailedReport, Report, WrittenFile, is_failed_report, is_report, leave_failed,
    write_report,
};
use crate::scripts::{expect_interpreter, verifier};
use crate::watched::lock;
use crate::witnesses::leave_witnesses;
use crate::workdir::{WorkFolder, default_path};
use apus_chain::{BlockHash, Network, Params};
use apus_datadir::BlocksFolder;
use apus_engine::utxo::forest::{DiskForest, ForestStore};
use apus_engine::utxo::store::{DiskOptions, DiskStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_storage::DirStorage;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::engines::swiftsync::hints::{BitOrder, HintsOptions};
use apus_sync::{
    BridgeOptions, COINS, ConnectOptions, DatadirBlocks, Event, FOREST, HINTS, HintedValidity,
    HintsInput, JobQueue, Memory, Observer, Output, OutputKind, POSITIONS, ProofsInput, Request,
    SharedQueue, Source, Stop, UseIndex, Warning,
};
use outputs::{folder_outputs, kept_folder, open_output, output_paths};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs `apus sync`.
pub(crate) fn command(args: &SyncArgs) -> Result<(), Failure> {
    command_on(args, None)
}

/// The same with segments that other machines do, where there is a queue.
pub(crate) fn command_on(args: &SyncArgs, queue: Option<&dyn JobQueue>) -> Result<(), Failure> {
    let (hints, engine) = (args.hints.as_ref(), args.engine());
    expect_purpose(args)?;
    expect_engine_takes(engine, hints)?;
    let keeps = args.blocksdir.is_some() || args.peers.blocks == BlocksArg::Keep;
    if engine == Some(EngineArg::Mergesync) && !keeps {
        return Err(Failure::usage(
            "the engine mergesync goes over the blocks twice: name their folder by --blocksdir DIR, or have \
             those of peers kept, by --blocks keep with --out chainstate:DIR",
        ));
    }
    let proofs = proofs::input(args)?;
    expect_folder_options(args, hints.is_some())?;
    #[cfg(feature = "remote-coins")]
    let beyond = args.coins.beyond(engine == Some(EngineArg::Utxo))?;
    #[cfg(not(feature = "remote-coins"))]
    let beyond = None;
    let report = run(&Job {
        chain: args.chain,
        source: match &args.blocksdir {
            Some(blocksdir) => {
                JobSource::Files { blocksdir: blocksdir.into(), use_index: UseIndex::IfPresent }
            }
            None => JobSource::Peers(&args.peers),
        },
        hints,
        engine: match engine {
            Some(EngineArg::Mergesync) => Some(apus_sync::Engine::MergeSync),
            Some(EngineArg::Utxo) => Some(apus_sync::Engine::Utxo),
            Some(EngineArg::Utreexo) => Some(apus_sync::Engine::Utreexo),
            Some(EngineArg::Swiftsync) | None => None,
        },
        proofs: proofs.as_ref(),
        hints_order: args.hints_order,
        aggregate: args.proof.aggregate,
        run: &args.run,
        connect: Some(&args.connect),
        coins: beyond.as_ref(),
        outputs: &args.out,
        replace: args.replace,
        muhash: args.muhash,
        kept: if args.prune { DatadirBlocks::Last } else { DatadirBlocks::All },
        stop: args.stopatheight.map_or(Stop::AtTip, Stop::At),
        bridge: None,
        queue,
    })?;
    let next = args.out.iter().find_map(|sink| match sink {
        SinkArg::Datadir(path) => {
            Some(format!("start a node on it:\n  {}", start_command(path, args.chain, args.prune)))
        }
        SinkArg::Chainstate(path) if args.peers.blocks == BlocksArg::Keep => {
            // It was asked for before the run.
            let datadir = datadir_around(path, args.chain).ok()?;
            let command = start_command(&datadir, args.chain, false);
            Some(format!("start a node on the data directory:\n  {command}"))
        }
        _ => None,
    });
    tell(&report, next)
}

/// Tells what came of a run, what is to be done next, and last what it takes on trust.
pub(crate) fn tell(report: &Report, next: Option<String>) -> Result<(), Failure> {
    print::result(report)?;
    if let Some(next) = next {
        print::result(format_args!("\nNext: {next}{}", believed(report)))?;
    }
    match &report.assume_hinted_valid {
        Some(assumed) => print::result(format_args!("\n{assumed}.")),
        None => Ok(()),
    }
}

/// What to know before a node goes on from a set that hints led to, where nothing worse is to be told.
fn believed(report: &Report) -> &'static str {
    let told = report.assume_hinted_valid.is_some();
    if told || report.verified.amounts || report.in_assumeutxo_table {
        return "";
    }
    "\n  A node takes all this for validated by itself: it never looks again at what is assumed above."
}

/// The data directory of which a chainstate with blocks beside it is part. A node looks for both in
/// places of their own (Core `chainparamsbase.cpp`, and `node/chainstate.cpp`): elsewhere it would not find
/// them, and begin anew.
fn datadir_around(chainstate: &Path, chain: Network) -> Result<PathBuf, Failure> {
    let layout = chain.data_folder().map_or_else(PathBuf::new, PathBuf::from).join("chainstate");
    let around = std::path::absolute(chainstate).map_err(|error| Failure::io(chainstate, error))?;
    match around.ends_with(&layout) {
        true => Ok(around.ancestors().nth(layout.iter().count()).unwrap_or(&around).to_owned()),
        false => Err(Failure::usage(format!(
            "--blocks keep puts the blocks beside the coins for a node to start on, and on the chain \
             {chain} a node looks for its coins in DIR/{layout} alone: name such a folder, as in --out \
             chainstate:node/{layout}",
            layout = layout.display()
        ))),
    }
}

/// Whether anything but the proof is asked for.
fn writes(outputs: &[SinkArg]) -> bool {
    outputs.iter().any(|sink| sink.path().is_some())
}

/// A line that was sent too early must not find peers and download a chain.
fn expect_purpose(args: &SyncArgs) -> Result<(), Failure> {
    if args.blocksdir.is_some() || !args.peers.connect.is_empty() || writes(&args.out) {
        return Ok(());
    }
    Err(Failure::usage(
        "say where blocks come from, by --blocksdir DIR or --connect NODE; or what to write, by --out: \
         then peers are found (see `apus sync --help`)",
    ))
}

/// What a data directory can come from, and options that would do nothing.
fn expect_folder_options(args: &SyncArgs, hints: bool) -> Result<(), Failure> {
    let has = |kind: fn(&SinkArg) -> bool| args.out.iter().filter(|sink| kind(sink)).count();
    let chainstates = has(|sink| matches!(sink, SinkArg::Chainstate(_)));
    let datadirs = has(|sink| matches!(sink, SinkArg::Datadir(_)));
    if datadirs > 1 {
        return Err(Failure::usage("one data directory at a time: name one --out datadir:DIR"));
    }
    if args.prune && datadirs == 0 {
        return Err(Failure::usage("--prune is about --out datadir:DIR, which is not given"));
    }
    if args.replace && chainstates == 0 {
        return Err(Failure::usage("--replace is about --out chainstate:DIR, which is not given"));
    }
    if args.peers.blocks == BlocksArg::Keep && args.blocksdir.is_some() {
        return Err(Failure::usage(
            "--blocks keep is about blocks from peers: those of --blocksdir stay where they are",
        ));
    }
    let keeps_there = hints && !args.prune && datadirs > 0;
    if args.peers.blocks == BlocksArg::Keep && chainstates == 0 && !keeps_there {
        return Err(Failure::usage(
            "--blocks keep puts the blocks beside the folder of --out chainstate:DIR, which is not \
             given",
        ));
    }
    if args.peers.blocks == BlocksArg::Keep && !keeps_there {
        for sink in &args.out {
            if let SinkArg::Chainstate(path) = sink {
                datadir_around(path, args.chain)?;
            }
        }
    }
    expect_undo_data(&args.out, hints && args.blocksdir.is_some(), args.prune)
}

/// Where a run's blocks come from.
pub(crate) enum JobSource<'a> {
    /// Core's block files.
    Files { blocksdir: BlocksFolder, use_index: UseIndex },
    /// Peers.
    Peers(&'a PeerArgs),
}

/// A run, whichever command asks for it.
pub(crate) struct Job<'a> {
    pub(crate) chain: Network,
    pub(crate) source: JobSource<'a>,
    /// None where every block is connected in order.
    pub(crate) hints: Option<&'a HintsArg>,
    /// Where proofs come from, for the engine that goes by them.
    pub(crate) proofs: Option<&'a ProofsInput>,
    /// What does blocks without hints, where the user says so.
    pub(crate) engine: Option<apus_sync::Engine>,
    /// As the user says; the file itself may settle it.
    pub(crate) hints_order: Option<BitOrder>,
    pub(crate) aggregate: AggregateArg,
    pub(crate) run: &'a RunArgs,
    /// None where the run ends with the hints, and only whether they fit the blocks is asked.
    pub(crate) connect: Option<&'a ConnectArgs>,
    /// Where the coins of blocks that are connected go, if not into the work folder.
    pub(crate) coins: Option<&'a Beyond>,
    pub(crate) outputs: &'a [SinkArg],
    /// Whether a chainstate that is there is moved aside.
    pub(crate) replace: bool,
    /// Whether the set's MuHash is wanted.
    pub(crate) muhash: bool,
    /// What a data directory keeps of the blocks.
    pub(crate) kept: DatadirBlocks,
    pub(crate) stop: Stop,
    /// Proofs to make.
    pub(crate) bridge: Option<BridgeJob<'a>>,
    /// Where segments are given to other machines.
    pub(crate) queue: Option<&'a dyn JobQueue>,
}

/// Where proofs go, and how many blocks a file has.
#[derive(Clone, Copy)]
pub(crate) struct BridgeJob<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) every: u32,
}

impl<'a> Job<'a> {
    /// A run under hints that writes nothing, and asks only whether they fit the blocks.
    pub(crate) fn proof(
        source: &'a SourceArgs,
        hints: &'a HintsArg,
        hints_order: Option<BitOrder>,
        aggregate: AggregateArg,
        run: &'a RunArgs,
    ) -> Self {
        Self {
            chain: source.chain,
            source: JobSource::Files {
                blocksdir: (&source.blocksdir).into(),
                use_index: UseIndex::IfPresent,
            },
            hints: Some(hints),
            proofs: None,
            engine: None,
            hints_order,
            aggregate,
            run,
            connect: None,
            coins: None,
            outputs: &[],
            replace: false,
            muhash: false,
            kept: DatadirBlocks::All,
            stop: Stop::AtHints,
            bridge: None,
            queue: None,
        }
    }
}

impl Job<'_> {
    /// Whether blocks from peers are kept.
    fn keeps_blocks(&self) -> bool {
        matches!(&self.source, JobSource::Peers(args) if args.blocks == BlocksArg::Keep)
    }

    /// Whether they are those of a data directory, which [`SyncArgs::keep_for_datadir`] wants.
    fn keeps_for_datadir(&self) -> bool {
        let prunes = self.kept == DatadirBlocks::Last;
        self.keeps_blocks() && self.hints.is_some() && !prunes
    }

    /// Whether the witnesses of blocks whose scripts are taken for valid are left alone.
    fn leaves_witnesses(&self, args: &ConnectArgs) -> Result<bool, Failure> {
        let peers = match &self.source {
            JobSource::Peers(args) => Some(*args),
            JobSource::Files { .. } => None,
        };
        let makes = match self.engine {
            _ if self.bridge.is_some() => Some("`apus utreexo prove`"),
            Some(apus_sync::Engine::Utreexo) => Some("--proofs"),
            _ => None,
        };
        leave_witnesses(args, self.outputs, peers, makes)
    }
}

/// What a [`Job::proof`] leaves open.
pub(crate) const NOT_ASKED: &str = "Whether these blocks are valid is another question, which `apus \
                                    sync --assumevalid 0` answers without hints.";

/// A run whose whole purpose is the proof.
pub(crate) fn prove(job: &Job<'_>) -> Result<Report, Failure> {
    match job.aggregate {
        AggregateArg::None => Err(Failure::usage("--aggregate none proves nothing")),
        _ => run(job),
    }
}

/// Does a run from start to end, report and clean-up included. One that fails leaves a report, too, unless the command
/// line itself was at fault.
pub(crate) fn run(job: &Job<'_>) -> Result<Report, Failure> {
    let work_path = work_path(job);
    let unsure = expect_sensible(job, &output_paths(job.outputs), &work_path)?;
    let watch = Watch::of(job.run, job.about(), job.expected())?;
    let shared = Arc::clone(&watch.shared);
    let mut record = None;
    let result = run_watched(job, (&work_path, unsure), watch, &mut record);
    let report = match &result {
        Ok(report) => serde_json::to_value(report),
        Err(failure) => {
            let reached = record.as_ref().map(Record::reached).unwrap_or_default();
            let report = FailedReport::new(job.chain.name(), failure, reached);
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
    lock(&shared).report = report.ok();
    result
}

/// Where progress is kept.
pub(crate) fn work_path(job: &Job<'_>) -> PathBuf {
    job.run.workdir.clone().unwrap_or_else(|| {
        let hints = job.hints.map(HintsArg::named);
        let proofs = job.bridge.map(|proofs| proofs.folder);
        let first = job.outputs.iter().find_map(SinkArg::path).or(proofs);
        default_path(job.chain, hints, first)
    })
}

fn run_watched(
    job: &Job<'_>,
    (work_path, unsure): (&Path, Vec<PathBuf>),
    watch: Watch,
    ended: &mut Option<Record>,
) -> Result<Report, Failure> {
    let params = Params::of(job.chain);
    let now = clock(params)?;
    let verifier = verifier(params)?;
    let paths = output_paths(job.outputs);
    let assume_valid = job.connect.and_then(|args| args.assume.block(params));
    expect_scripts(job, assume_valid)?;
    let leave_witnesses = job.connect.map(|args| job.leaves_witnesses(args)).transpose()?;
    let leave_witnesses = leave_witnesses.unwrap_or_default();
    let interrupt = watch_signals()?;
    unpack_hints(job, work_path, &interrupt)?;
    let folders = folder_outputs(job);
    let written = job.outputs.iter().filter_map(SinkArg::path).chain(job.run.report.as_deref());
    let mut made = MadeFolders::around(written.chain([work_path]))?;
    job.bridge.map_or(Ok(()), |proofs| made.make(proofs.folder))?;
    let folder = WorkFolder::open(work_path)?;
    let coins = job.coins.map(|beyond| beyond.place.as_str());
    folder.begin(coins)?;
    let outputs: Vec<Output> = paths.into_iter().map(open_output).collect();
    let peers = match &job.source {
        JobSource::Peers(args) => {
            let keep = kept_folder(job, work_path);
            let peers = peers::start(args, params, job.run, folder.storage(), keep.as_ref());
            Some(peers.inspect_err(|_| folder.leave())?)
        }
        JobSource::Files { .. } => None,
    };
    let renderer = Renderer::new(watch, peers.as_ref());
    room::warn(job, work_path, &renderer);
    for folder in unsure {
        let folder = folder.display().to_string();
        renderer.event(Event::Warning(Warning::NamesNotDurable { folder }));
    }
    let aggregate = match job.aggregate {
        AggregateArg::Sha256 => AggregateKind::Sha256,
        AggregateArg::Muhash => AggregateKind::MuHash,
        AggregateArg::None => AggregateKind::None,
    };
    let threads = threads(job.run.par);
    let memory = match &job.source {
        JobSource::Files { .. } => Memory::with_files(job.run.dbcache << 20, threads),
        JobSource::Peers(_) => Memory::with_peers(job.run.dbcache << 20),
    };
    let coins_path = work_path.join(COINS);
    let open_store = || -> Result<Arc<dyn CoinsStore>, StoreError> {
        if let Some(beyond) = job.coins {
            return beyond.open(job.chain, memory.answers_bytes());
        }
        let options = DiskOptions { cache_bytes: memory.store_bytes, ..DiskOptions::default() };
        Ok(Arc::new(DiskStore::open(&coins_path, job.chain, options)?))
    };
    let connect = job.connect.map(|args| ConnectOptions {
        assume_valid,
        prevout_threads: args.prevout_threads.into(),
        cache_bytes: memory.coins_bytes,
        store: &open_store,
        beyond: job.coins.map(|beyond| beyond.place.clone()),
        hints_folder: work_path.join(HINTS),
        positions: work_path.join(POSITIONS),
    });
    let (forest_path, budget) = (work_path.join(FOREST), job.run.dbcache << 20);
    let open_forest = || -> Result<Arc<dyn ForestStore>, StoreError> {
        let options = DiskOptions { cache_bytes: memory.store_bytes, ..DiskOptions::default() };
        Ok(Arc::new(DiskForest::open(&forest_path, job.chain, options)?))
    };
    let bridge = job.bridge.map(|proofs| BridgeOptions {
        storage: Arc::new(DirStorage::new(proofs.folder)),
        folder: proofs.folder.to_owned(),
        every: proofs.every,
        store: &open_forest,
        // Half as much again is taken by changed pages, and by those of a block at hand.
        memory_bytes: budget / 3,
    });
    // Beside the forest a run has the other half.
    let memory_bytes = if bridge.is_some() { budget / 2 } else { budget };
    let request = Request {
        params,
        source: match (&job.source, &peers) {
            (_, Some(peers)) => Source::Peers(peers),
            (JobSource::Files { blocksdir, use_index }, _) => {
                Source::Files { blocksdir: blocksdir.clone(), use_index: *use_index }
            }
            (JobSource::Peers(_), None) => return Err(Failure::usage("no peers")),
        },
        hints: job.hints.map(|hints| hints_input(hints, job.hints_order)),
        proofs: job.proofs.cloned(),
        engine: job.engine,
        aggregate,
        hinted_validity: hinted_validity(job),
        leave_witnesses: assume_valid.filter(|_| leave_witnesses),
        connect,
        stop: job.stop,
        follow: matches!(&job.source, JobSource::Peers(args) if args.follow),
        threads,
        memory_bytes,
        segment_bytes: job.run.segment_bytes,
        checkpoint_interval: Duration::from_secs(job.run.checkpoint_seconds.into()),
        now,
        verifier: verifier.as_deref(),
        workdir: folder.storage(),
        outputs: &outputs,
        folders: &folders,
        muhash: job.muhash,
        bridge,
        queue: job.queue.map(|queue| SharedQueue { queue, do_job: apus_sync::do_job }),
        observer: &renderer,
        interrupt: &interrupt,
    };
    let outcome = renderer.beside(|| apus_sync::run(&request));
    drop(request);
    let record = &*ended.insert(renderer.into_record());
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            let about_hints = error.is_about_hints();
            let mut failure = folder.give_up(error);
            if let Some(hints) = job.hints.filter(|_| about_hints) {
                failure.message = format!("{}: {}", hints.named().display(), failure.message);
            }
            return Err(failure);
        }
    };
    let report = Report::new(
        &outcome,
        Circumstances {
            network: job.chain,
            threads,
            dbcache_mib: job.run.dbcache,
            wall_seconds: record.wall_seconds,
            segments_resumed: record.segments_resumed,
            phases: record.phases.clone(),
            series: record.series.clone(),
            warnings: record.warnings.clone(),
            lasting: record.lasting.clone(),
            workers: record.workers.clone(),
            files: WrittenFile::all(job.outputs),
            peers: peers.as_ref().map(|peers| peers::report(&peers.status())),
        },
    );
    if let Some(path) = &job.run.report {
        write_report(path, &report).map_err(|failure| folder.keep(failure))?;
    }
    apus_sync::complete_folders(&outcome.folders).map_err(|error| folder.keep(error.into()))?;
    let follows = matches!(&job.source, JobSource::Peers(args) if args.follow);
    // A data directory has the blocks in it, and nothing is added to one that is complete.
    let has_blocks = |output: &SinkArg| matches!(output, SinkArg::Datadir(_));
    if follows && !job.outputs.iter().any(has_blocks) {
        folder.leave_ended()?;
        print::aside(format_args!(
            "progress is kept in {}: {}the same command goes on from block {}",
            work_path.display(),
            if writes(job.outputs) { "when what was written has other names, " } else { "" },
            outcome.stop_height
        ));
    } else if let Some(place) = coins {
        folder.leave_coins(place)?;
        print::aside(format_args!(
            "the coins stay at {place}, and what is known of them in {}: once there are more blocks, the same command goes \
             on from block {}",
            work_path.display(),
            outcome.stop_height
        ));
    } else {
        folder.discard()?;
    }
    if job.bridge.is_some() {
        print::aside(format_args!(
            "the forest stays in {}: a later run with the same --out and --workdir goes on from it",
            forest_path.display()
        ));
    }
    outcome.folders.iter().for_each(aside::tell);
    Ok(report)
}

/// Where all scripts are to be run, a build that runs none says so before it asks for headers. With
/// hints, or an assumed-valid block, it depends on where the chain ends.
fn expect_scripts(job: &Job<'_>, assume_valid: Option<BlockHash>) -> Result<(), Failure> {
    if job.connect.is_none() || job.hints.is_some() || assume_valid.is_some() {
        return Ok(());
    }
    expect_interpreter()
}

/// Commands that say nothing of rules ask whether hints fit blocks, and not whether these are valid.
fn hinted_validity(job: &Job<'_>) -> HintedValidity {
    match job.connect {
        None => HintedValidity::NotAsked,
        // Hints that are themselves the question stand for nothing.
        Some(_) if job.stop == Stop::AtHints => HintedValidity::Checked,
        Some(args) if args.assume.hinted() => HintedValidity::Assumed,
        Some(_) => HintedValidity::Anchored,
    }
}

/// Hints that come through a pipe, or are compressed, are unpacked where the run has its progress.
fn unpack_hints(job: &Job<'_>, work_path: &Path, interrupt: &AtomicBool) -> Result<(), Failure> {
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

/// Says at once what would otherwise fail hours later. Gives the folders whose names cannot be made durable.
fn expect_sensible(
    job: &Job<'_>,
    outputs: &[(OutputKind, PathBuf)],
    work_path: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    // Others are looked at once they are unpacked.
    if let Some(hints) = job.hints.filter(|hints| hints.input().is_plain().unwrap_or(true)) {
        expect_hints(hints)?;
    }
    if let JobSource::Files { blocksdir, .. } = &job.source {
        expect_first_blocks(blocksdir)?;
    }
    let report = job.run.report.as_deref();
    let mut paths: Vec<&Path> = job.outputs.iter().filter_map(SinkArg::path).collect();
    paths.extend(report);
    let written = paths.clone();
    if let (Some(proofs), JobSource::Files { blocksdir, .. }) = (job.bridge, &job.source) {
        expect_apart(&[proofs.folder, &blocksdir.files, work_path])?;
        paths.push(proofs.folder);
    }
    paths.push(work_path);
    expect_apart(&paths)?;
    // Files that an earlier start finished before it was killed are not in the way.
    let resuming = WorkFolder::was_broken_off(work_path);
    paths.extend(job.hints.map(HintsArg::named));
    if let Some(ProofsInput::Folder(folder)) = job.proofs {
        paths.push(folder);
    }
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
    for (_, path) in outputs {
        expect_writable(path, |_| resuming)?;
    }
    let may_be_there = |path: &Path| is_failed_report(path) || resuming && is_report(path);
    report.map_or(Ok(()), |path| expect_writable(path, may_be_there))?;
    expect_places(&written, &folders)
}
