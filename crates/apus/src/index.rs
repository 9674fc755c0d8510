//! `apus index`: makes the optional indexes of a stopped node from its own blocks and undo data.

mod expected;
mod numbers;
mod standing;

pub(crate) use expected::expect_indexes;
pub(crate) use numbers::{numbers_bytes, numbers_place};
pub(crate) use standing::standing_lines;

use crate::args::{IndexArgs, ProgressArg};
use crate::estimate::ExpectedPhase;
use crate::failure::{Failure, INTERRUPTED, IO};
use crate::files::{
    FileDrafts, expect_apart, expect_new_file, expect_outside, expect_to_move, expect_writable,
    nearest,
};
use crate::machine::{Machine, clock, cpu_seconds, rss_peak_bytes, threads, watch_signals};
use crate::node::{NodeFolders, expect_folders, expect_whole};
use crate::print;
use crate::render::{Renderer, RunDisplay, RunRecord};
use crate::report::{
    FailedReport, PhaseReport, bytes, grouped, is_failed_report, leave_failed, write_report,
};
use crate::status::RunFacts;
use crate::workdir::WorkFolder;
use apus_chain::{BlockHash, Params};
use apus_datadir::chainstate::node_best_block;
use apus_datadir::{BlockFiles, DATADIR_LOCK, DatadirLock, free_bytes};
use apus_indexes::{
    INDEX_BLOCKS, INDEX_TABLES, IndexForm, IndexKind, IndexMade, IndexesDisk, IndexesMade,
    IndexesRequest, NodeVersion, NumbersDraft, NumbersPlace, discard_attempt, expect_undo_data,
    index_folder, is_scratch_file, make_indexes,
};
use apus_sync::{DiskUse, Event, LOCK, Observer, SourceError, SyncError, UseIndex};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Version of the JSON form.
const VERSION: u32 = 1;

/// Disk space that is left free beyond what the indexes take, in bytes.
const ROOM_LEAST: u64 = 16 << 20;

/// Runs `apus index`.
pub(crate) fn command(args: &IndexArgs) -> Result<(), Failure> {
    let forms = args.forms()?;
    let node = args.node.folders()?;
    expect_folders(&node)?;
    // If the block files are in a separate folder, a node locks both.
    let _locks = [
        DatadirLock::take(&node.folder, DATADIR_LOCK)?,
        DatadirLock::take(&node.blocks.files, DATADIR_LOCK)?,
    ];
    expect_whole(&node.folder, &node.blocks)?;
    let numbers = args.numbers.as_deref().map(|path| numbers_place(path, args.replace));
    let numbers = numbers.transpose()?;
    let job = IndexJob {
        command: "index",
        node: &node,
        forms: &forms,
        numbers: numbers.as_ref(),
        replace: args.replace,
        workdir: args.workdir.as_deref(),
        threads: threads(args.par),
        dbcache_mib: args.dbcache,
        progress: args.progress,
    };
    let outputs = [&args.numbers, &args.report, &args.workdir];
    let outputs: Vec<&Path> = outputs.into_iter().flatten().map(PathBuf::as_path).collect();
    expect_outside(&node.folder.join("indexes"), &outputs)?;
    if let Some(report) = &args.report {
        expect_apart(&[report, &job.work()])?;
        expect_writable(report, is_failed_report)?;
    }
    if let Some(numbers) = &args.numbers {
        let others = [Some(job.work()), args.report.clone()];
        let files = others.iter().flatten().map(PathBuf::as_path);
        expect_apart(&files.chain([numbers.as_path()]).collect::<Vec<_>>())?;
        expect_new_file(numbers, args.replace)?;
    }
    let room = job.expect_possible()?;
    let _drafts = FileDrafts(args.numbers.as_slice());
    let (made, record) = job.run(room)?;
    let published = made.and_then(|mut made| {
        made.numbers.take().map_or(Ok(()), NumbersDraft::publish)?;
        Ok(made)
    });
    let made = published.inspect_err(|failure| {
        let report = FailedReport::new(args.node.chain.name(), failure, record.history.clone());
        leave_failed(args.report.as_deref(), &report);
    })?;
    if let Some(path) = &args.report {
        write_report(path, &IndexReport::new(args, &made, record, job.threads))?;
    }
    if let Some(numbers) = &args.numbers {
        let (height, file) = (made.tip.height, numbers.display());
        print::result(format_args!("The numbers of the blocks 0 to {height} are in {file}."))?;
    }
    if forms.is_empty() {
        return Ok(());
    }
    tell(&made)?;
    print::result(format_args!(
        "\nStart the node; it continues from there:\n  {}{}",
        node.start_command(),
        options(&forms, args.index_for)
    ))
}

/// A node whose indexes are made.
pub(crate) struct IndexJob<'a> {
    /// The name of the command, for messages.
    pub(crate) command: &'static str,
    pub(crate) node: &'a NodeFolders,
    pub(crate) forms: &'a [IndexForm],
    /// A file for the chain in numbers.
    pub(crate) numbers: Option<&'a NumbersPlace>,
    /// Whether to move existing indexes aside.
    pub(crate) replace: bool,
    /// The folder for temporary files, if the user chose one.
    pub(crate) workdir: Option<&'a Path>,
    pub(crate) threads: usize,
    pub(crate) dbcache_mib: u64,
    pub(crate) progress: ProgressArg,
}

impl IndexJob<'_> {
    fn work(&self) -> PathBuf {
        self.workdir.map_or_else(|| self.node.folder.join("indexes.work"), Path::to_owned)
    }

    /// Removes what an interrupted attempt left, and fails if an index exists or there is not enough disk space. Returns the
    /// events to report. The caller has locked the node.
    pub(crate) fn expect_possible(&self) -> Result<Vec<Event>, Failure> {
        let NodeFolders { folder, blocks, chain, .. } = self.node;
        expect_new(folder, self.forms, self.replace)?;
        // Its files would take the space that this attempt needs.
        let locked = open_work_folder(&self.work())?;
        let discarded = discard_attempt(folder, locked.storage());
        locked.leave();
        discarded?;
        // Errors in the files are reported when they are read.
        let files = BlockFiles::open(blocks, chain.magic());
        let block_bytes = files.map_or(0, |files| files.bytes_total());
        let mut disk = IndexesDisk::of(self.forms, block_bytes);
        if self.numbers.is_some() {
            disk.scratch += numbers_bytes(block_bytes);
        }
        expect_room(folder, &self.work(), disk)
    }

    /// Fails without the undo data that the indexes are made from. `use_index` decides about the chain.
    pub(crate) fn expect_undo(&self, use_index: UseIndex) -> Result<(), Failure> {
        let NodeFolders { blocks, chain, .. } = self.node;
        let Some(form) = self.forms.iter().find(|form| form.kind().needs_undo()) else {
            return Ok(());
        };
        let (params, what) = (Params::of(*chain), form.kind().name());
        Ok(expect_undo_data(params, what, blocks, (use_index, None), clock(params)?)?)
    }

    /// Makes the indexes up to the block of the node's coins, and shows the progress. The caller has locked the node.
    pub(crate) fn run(
        &self,
        room: Vec<Event>,
    ) -> Result<(Result<IndexesMade, Failure>, RunRecord), Failure> {
        let NodeFolders { folder, blocks, chain, .. } = self.node;
        let params = Params::of(*chain);
        let now = clock(params)?;
        let tip = best_block(&folder.join("chainstate"))?;
        let interrupt = watch_signals()?;
        let locked = open_work_folder(&self.work())?;
        let expected = [INDEX_BLOCKS, INDEX_TABLES].map(ExpectedPhase::of).to_vec();
        let (command, threads) = (self.command, self.threads);
        let about = RunFacts { command, chain: chain.name(), threads, on_servers: false };
        let renderer = Renderer::new(RunDisplay::plain(self.progress, about, expected), None);
        room.into_iter().for_each(|event| renderer.event(event));
        let made = renderer.beside(|| {
            make_indexes(&IndexesRequest {
                params,
                folder,
                blocks: blocks.clone(),
                tip,
                coins: None,
                forms: self.forms,
                numbers: self.numbers,
                replace: self.replace,
                scratch: locked.storage(),
                threads,
                memory_bytes: self.dbcache_mib << 20,
                now,
                observer: &renderer,
                interrupt: &interrupt,
            })
        });
        let record = renderer.into_record();
        locked.leave();
        Ok((made.map_err(failed), record))
    }
}

/// Creates the failure for an error: no progress is kept.
fn failed(error: SyncError) -> Failure {
    let is_block = matches!(error, SyncError::Source(SourceError::Damaged { .. }));
    let mut failure = Failure::from(error);
    if failure.code == INTERRUPTED {
        let message = "interrupted: the node is as it was before. Rerun the command to start again";
        failure.message = message.to_owned();
    } else if is_block {
        failure.message.push_str(": `bitcoind -reindex` finds what is damaged, and gets it again");
    }
    failure
}

/// Returns the block that the node's coins are at.
fn best_block(chainstate: &Path) -> Result<BlockHash, Failure> {
    let best = node_best_block(chainstate).map_err(|error| {
        Failure::wrong(format!("{error}. `apus reindex --replace` makes a new chainstate"))
    })?;
    best.ok_or_else(|| {
        Failure::usage(format!(
            "the node was stopped while it wrote its coins to {}: start it, and stop it with `bitcoin-cli stop`",
            chainstate.display()
        ))
    })
}

/// Fails if an index exists already, unless it is to be replaced and can be moved aside.
fn expect_new(folder: &Path, forms: &[IndexForm], replace: bool) -> Result<(), Failure> {
    for form in forms {
        let path = index_folder(folder, *form);
        let Ok(there) = path.symlink_metadata() else { continue };
        if there.is_dir() && fs::read_dir(&path).is_ok_and(|mut names| names.next().is_none()) {
            continue;
        }
        let (name, kind) = (path.display(), form.kind());
        if !there.is_dir() {
            return Err(Failure::usage(format!(
                "{name} is not a folder: remove it, or leave out {kind}. An index that is a link must be made where the \
                 link leads to"
            )));
        }
        if !replace && !apus_sync::is_unfinished_folder(&path) {
            return Err(Failure::usage(format!(
                "the node has a {kind} already: add --replace to move {name} to {name}.old, or leave out {kind}"
            )));
        }
        expect_to_move(&path)?;
    }
    Ok(())
}

/// Fails without disk space for the indexes and temporary files. Returns the events to report.
fn expect_room(folder: &Path, work: &Path, needed: IndexesDisk) -> Result<Vec<Event>, Failure> {
    // Another disk may be mounted there, or a link lead there.
    let (folder, work) = (&*nearest(&folder.join("indexes")), nearest(work));
    let device =
        |path: &Path| path.metadata().map(|it| it.dev()).map_err(|error| Failure::io(path, error));
    let free = |path: &Path| free_bytes(path).map_err(|error| Failure::io(path, error));
    let indexes = DiskUse::Extra { word: "indexes", what: "the indexes" };
    let mut uses =
        vec![(folder, indexes, needed.indexes), (&*work, DiskUse::Progress, needed.scratch)];
    if device(folder)? == device(&work)? {
        uses = vec![(folder, indexes, needed.indexes.saturating_add(needed.scratch))];
    }
    let mut events = Vec::new();
    for (path, what, bytes_needed) in uses {
        let (needed, free) = (bytes_needed.saturating_add(ROOM_LEAST), free(path)?);
        if free < needed {
            return Err(Failure::new(
                IO,
                format!(
                    "not enough disk: {} needs up to {} for the indexes and for temporary files, which are deleted at the \
                     end, and has {}. Choose one: free some space, make fewer indexes, or add --workdir DIR on another disk",
                    path.display(),
                    bytes(needed),
                    bytes(free)
                ),
            ));
        }
        events.push(Event::DiskNeeded { what, bytes: needed, free });
    }
    Ok(events)
}

/// Opens the folder for temporary files; refuses one with other files.
fn open_work_folder(work: &Path) -> Result<WorkFolder, Failure> {
    let expect_ours = || -> Result<(), Failure> {
        if !work.is_dir() {
            return Ok(());
        }
        let names = fs::read_dir(work).map_err(|error| Failure::io(work, error))?;
        let mut names = names.flatten().map(|it| it.file_name().to_string_lossy().into_owned());
        match names.find(|name| name != LOCK && !is_scratch_file(name)) {
            None => Ok(()),
            Some(other) => Err(Failure::usage(format!(
                "{} holds {other}, which is not a file of `apus index`: use another --workdir. Apus creates the folder \
                 if it is missing",
                work.display()
            ))),
        }
    };
    // Check twice: before the lock, so as to create no file in a folder of another kind; and under the lock.
    expect_ours()?;
    let locked = WorkFolder::open(work)?;
    let own = expect_ours().and_then(|()| locked.expect_own_content());
    own.inspect_err(|_| locked.leave())?;
    Ok(locked)
}

/// Returns the options with which a node of a version uses indexes, for the end of a command. Without a version, the
/// command has only options that every node knows, and a line below it names the other one.
pub(crate) fn options(forms: &[IndexForm], version: Option<NodeVersion>) -> String {
    let is_for_some = |form: &&IndexForm| version.is_none() && **form == IndexForm::TxoSpender;
    let mut options: Vec<String> = (forms.iter().filter(|form| !is_for_some(form)))
        .map(|form| format!(" -{}", form.kind()))
        .collect();
    options.dedup();
    if let Some(form) = forms.iter().find(is_for_some) {
        options.push(format!(
            "\n  add -{} if its version is 31 or later: earlier ones do not start with it",
            form.kind()
        ));
    }
    options.concat()
}

/// Prints what was made.
pub(crate) fn tell(made: &IndexesMade) -> Result<(), Failure> {
    let IndexesMade { tip, indexes, .. } = made;
    print::result(format_args!("The indexes end at block {} ({}).", tip.height, tip.hash))?;
    for IndexMade { form, path, bytes: size, rows, moved_to } in indexes {
        let what = match form.kind() {
            IndexKind::TxIndex => "transactions",
            IndexKind::TxoSpenderIndex => "inputs",
            IndexKind::BlockFilterIndex | IndexKind::CoinStatsIndex => "blocks",
        };
        print::result(format_args!(
            "{}: {} {what}, {}, in {}",
            form.kind(),
            grouped(*rows),
            bytes(*size),
            path.display()
        ))?;
        if let Some(aside) = moved_to {
            print::result(format_args!("  the previous one is in {}", aside.display()))?;
        }
    }
    Ok(())
}

/// The report for programs (`docs/formats/indexes.md`).
#[derive(Serialize)]
struct IndexReport {
    version: u32,
    chain: &'static str,
    datadir: String,
    stop_height: u32,
    stop_hash: String,
    transactions: u64,
    inputs: u64,
    indexes: Vec<IndexMadeReport>,
    wall_seconds: f64,
    cpu_seconds: f64,
    rss_peak_bytes: Option<u64>,
    threads: usize,
    dbcache_mib: u64,
    phases: Vec<PhaseReport>,
    warnings: Vec<String>,
    machine: Machine,
}

#[derive(Serialize)]
struct IndexMadeReport {
    index: &'static str,
    folder: String,
    bytes: u64,
    rows: u64,
    moved_to: Option<String>,
}

impl IndexReport {
    fn new(args: &IndexArgs, made: &IndexesMade, record: RunRecord, threads: usize) -> Self {
        let shown = |path: &PathBuf| path.display().to_string();
        let indexes = made.indexes.iter().map(|index| IndexMadeReport {
            index: index.form.kind().name(),
            folder: shown(&index.path),
            bytes: index.bytes,
            rows: index.rows,
            moved_to: index.moved_to.as_ref().map(shown),
        });
        Self {
            version: VERSION,
            chain: args.node.chain.name(),
            datadir: shown(&args.node.datadir),
            stop_height: made.tip.height,
            stop_hash: made.tip.hash.to_string(),
            transactions: made.counts.transactions,
            inputs: made.counts.inputs,
            indexes: indexes.collect(),
            wall_seconds: record.history.wall_seconds,
            cpu_seconds: cpu_seconds(),
            rss_peak_bytes: rss_peak_bytes(),
            threads,
            dbcache_mib: args.dbcache,
            phases: record.history.phases,
            warnings: record.history.warnings,
            machine: Machine::here(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node does not start with an option that it does not know.
    #[test]
    fn a_command_without_a_version_has_only_options_that_each_node_knows() {
        let kinds = IndexKind::ALL;
        let any = options(&IndexForm::of(&kinds, None).unwrap(), None);
        let (command, remark) = any.split_once('\n').unwrap();
        assert_eq!(command, " -txindex -blockfilterindex -coinstatsindex");
        assert!(remark.contains("-txospenderindex") && remark.contains("31"), "{remark}");
        let version = Some(NodeVersion::V31);
        let of_31 = options(&IndexForm::of(&kinds, version).unwrap(), version);
        assert_eq!(of_31, format!("{command} -txospenderindex"));
        let txindex = options(&IndexForm::of(&kinds[..1], None).unwrap(), None);
        assert_eq!(txindex, " -txindex");
    }
}
