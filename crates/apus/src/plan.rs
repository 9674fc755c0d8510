//! `apus plan`: estimates the disk, memory and time that a sync needs, without writing anything.
//!
//! Sizes follow from the existing blocks and from known proportions of sets ([`needs`]). Times follow from how fast
//! this machine reads and checks some of these blocks, or all if they are few ([`sample`]). A plan does not cover
//! blocks from peers: their connections determine the time, and cannot be measured in advance. Nor does it estimate the
//! time for coins on servers.

mod needs;
mod sample;

pub(crate) use needs::{Needs, SetSize, warn_of_low_space};
pub(crate) use sample::BlocksSize;

use crate::args::{EngineArg, PlanArgs, SinkArg, SyncMethod};
use crate::args::{expect_engine_takes, verifier};
use crate::estimate::duration;
use crate::failure::{Failure, IO};
use crate::files::expect_hints;
use crate::files::{bytes_in, look_at, look_whether_it_moves};
use crate::index::{expect_indexes, standing_lines};
use crate::machine::{available_bytes, clock, threads, watch_signals};
use crate::node::{NodeFolders, expect_first_blocks, expect_folders};
use crate::print;
use crate::report::{bytes, grouped};
use apus_chain::{Network, Params};
use apus_datadir::{BlockFiles, BlocksFolder, has_undo_file};
use apus_indexes::IndexForm;
use apus_sync::{BlocksDir, ChainGap, DatadirBlocks, FolderKind, SourceError, SyncError, UseIndex};
use needs::DiskNeeds;
use sample::{BlocksSample, MethodTime, RunCost, WHOLE_BYTES};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Runs `apus plan`.
pub(crate) fn command(args: &PlanArgs) -> Result<(), Failure> {
    let chosen = method(args)?;
    let place = PlanPlace::of(args)?;
    let files = BlockFiles::open(&place.blocksdir, args.chain.magic());
    let files = files.map_err(|error| Failure::from(SyncError::from(SourceError::from(error))))?;
    expect_first_blocks(&place.blocksdir)?;
    let interrupt = watch_signals()?;
    if let Some(hints) = &args.hints {
        hints.input().make_plain(&std::env::temp_dir(), &interrupt)?;
        expect_hints(hints)?;
    }
    let sample = look(&place.blocksdir, &files, args.chain, &interrupt)?;
    let blocks = sample.blocks(files.bytes_total());
    let set = SetSize::of(args.hints.as_ref(), place.old_chainstate, blocks, args.chain, &sample)?;
    let blocksdir = &place.blocksdir.files;
    let has_undo = files.files().iter().any(|file| has_undo_file(blocksdir, file.number));
    let planning = PlanInput { args, place: &place, sample: &sample, blocks, set, has_undo };
    planning.print(chosen, files.files().len())
}

/// Samples the blocks, or reads all of them if they are few. Prints the warnings of a sync that are known in advance.
fn look(
    blocksdir: &BlocksFolder,
    files: &BlockFiles,
    chain: Network,
    interrupt: &AtomicBool,
) -> Result<BlocksSample, Failure> {
    let params = Params::of(chain);
    let now = clock(params)?;
    let verifier = verifier(params)?;
    if files.bytes_total() > WHOLE_BYTES {
        if let Some(missing) = ChainGap::between(files.files()).missing_files() {
            let ends = "a sync will stop below the missing blocks, unless other files contain them";
            print::aside(format_args!("warning: {missing}: {ends}"));
        }
        return BlocksSample::take(files, params, verifier.as_deref(), interrupt);
    }
    let use_index = UseIndex::IfPresent;
    let dir = BlocksDir::open(blocksdir, params, now, use_index, &print::Warnings, interrupt);
    BlocksSample::of_all(
        files,
        &dir.map_err(SyncError::from)?,
        params,
        verifier.as_deref(),
        interrupt,
    )
}

/// Returns the method that the options select.
///
/// # Errors
/// If the options contradict each other, or the engine's needs cannot be estimated.
fn method(args: &PlanArgs) -> Result<SyncMethod, Failure> {
    #[cfg(feature = "remote-coins")]
    let on_servers = args.coins.are_named();
    #[cfg(not(feature = "remote-coins"))]
    let on_servers = false;
    let engine = args.engine.or(on_servers.then_some(EngineArg::Utxo));
    expect_engine_takes(engine, args.hints.as_ref())?;
    #[cfg(feature = "remote-coins")]
    args.coins.beyond(engine == Some(EngineArg::Utxo))?;
    SyncMethod::of(engine, args.hints.is_some(), on_servers).map_err(|name| {
        Failure::usage(format!(
            "Apus cannot estimate the needs of the engine {name}: leave out --engine, or use another"
        ))
    })
}

/// The folders that a sync would read and write.
struct PlanPlace {
    blocksdir: BlocksFolder,
    outputs: Vec<SinkArg>,
    workdir: PathBuf,
    /// Bytes of the old chainstate, which a sync moves aside.
    old_chainstate: Option<u64>,
    /// Indexes to make.
    forms: Vec<IndexForm>,
    /// What the node will do with its other indexes, a line for each.
    standings: Vec<String>,
}

impl PlanPlace {
    fn of(args: &PlanArgs) -> Result<Self, Failure> {
        let (forms, mut standings) = (args.index.forms()?, Vec::new());
        let (blocksdir, outputs) = match (&args.datadir, &args.blocksdir) {
            (Some(datadir), _) => {
                let node = NodeFolders::find(datadir, args.chain, args.blocksdir.as_deref())?;
                expect_folders(&node)?;
                standings = standing_lines(&node, UseIndex::IfPresent, &forms)?;
                (node.blocks, vec![SinkArg::Chainstate(node.folder.join("chainstate"))])
            }
            (None, Some(blocksdir)) => {
                expect_indexes_in_datadir(args, &forms)?;
                (blocksdir.into(), args.out.clone())
            }
            (None, None) => {
                return Err(Failure::usage(
                    "no blocks given: add --datadir DIR of a node, or --blocksdir DIR (see `apus plan --help`)",
                ));
            }
        };
        let old = outputs.iter().find_map(|sink| match sink {
            SinkArg::Chainstate(path) if path.is_dir() => Some(bytes_in(path)),
            _ => None,
        });
        let first_output = || outputs.iter().find_map(SinkArg::path).unwrap_or(Path::new("."));
        let workdir = args.workdir.clone().unwrap_or_else(|| first_output().to_owned());
        Ok(Self { blocksdir, outputs, workdir, old_chainstate: old, forms, standings })
    }
}

/// Fails if a sync could not make the indexes.
fn expect_indexes_in_datadir(args: &PlanArgs, forms: &[IndexForm]) -> Result<(), Failure> {
    let kept = if args.prune { DatadirBlocks::Last } else { DatadirBlocks::All };
    let is_datadir = |sink: &SinkArg| matches!(sink, SinkArg::Datadir(_));
    let datadir = args.out.iter().any(is_datadir).then_some(FolderKind::Datadir(kept));
    expect_indexes(forms, datadir, args.chain)
}

impl PlanPlace {
    /// Checks for problems that would make Apus refuse a sync, or make it fail at its end.
    fn expect_good(&self) -> Result<(), Failure> {
        let outputs: Vec<&Path> = self.outputs.iter().filter_map(SinkArg::path).collect();
        look_at(&outputs, &self.workdir)?;
        self.outputs.iter().try_for_each(|sink| match sink {
            SinkArg::Chainstate(path) if path.is_symlink() => match fs::canonicalize(path) {
                Ok(path) => look_whether_it_moves(&path),
                Err(_) => Ok(()),
            },
            SinkArg::Chainstate(path) if path.is_dir() => look_whether_it_moves(path),
            _ => Ok(()),
        })
    }
}

/// Whether this is the main chain, whose proportions are known.
fn is_main(chain: Network) -> bool {
    chain == Network::Main
}

/// Upper bound on the memory that a sync takes besides `--dbcache`, measured with a chain of the main chain's size from a
/// peer (`bench/rehearsal.md`).
const MEMORY_OVERHEAD: u64 = 160 << 20;

/// The input of a plan.
struct PlanInput<'a> {
    args: &'a PlanArgs,
    place: &'a PlanPlace,
    sample: &'a BlocksSample,
    blocks: BlocksSize,
    set: SetSize,
    /// Whether the blocks folder has any undo data.
    has_undo: bool,
}

/// One method with its needs: a row of the plan.
struct MethodRow {
    method: SyncMethod,
    disks: Vec<DiskNeeds>,
    /// The estimated time; `None` if unknown.
    time: Option<MethodTime>,
    /// Reasons why the method does not fit, each with a remedy; empty if it fits.
    lacking: Vec<String>,
}

impl SyncMethod {
    /// Returns the method of an engine, or of the default one.
    ///
    /// # Errors
    /// The engine's name, if its needs are unknown.
    pub(crate) fn of(
        engine: Option<EngineArg>,
        hints: bool,
        on_servers: bool,
    ) -> Result<Self, &'static str> {
        let Some(engine) = engine.filter(|_| !hints) else {
            return Ok(if hints { Self::Hints } else { Self::Joins });
        };
        let facts = engine.facts();
        match facts.plan.ok_or(facts.name)? {
            Self::InOrder if on_servers => Ok(Self::InOrderOnServers),
            method => Ok(method),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hints => "with hints",
            Self::Joins => "without hints",
            Self::InOrder | Self::InOrderOnServers => "in order",
        }
    }

    /// The option that selects this method.
    fn option(self) -> &'static str {
        match self {
            Self::Hints => "--hints FILE",
            Self::Joins => "leave out --hints and --engine",
            Self::InOrder | Self::InOrderOnServers => "--engine utxo",
        }
    }
}

impl PlanInput<'_> {
    /// Prints the plan. `chosen` is the method that the options select.
    ///
    /// # Errors
    /// If no method fits.
    fn print(&self, chosen: SyncMethod, files: usize) -> Result<(), Failure> {
        let Self { args, place, sample, blocks, set, .. } = self;
        let files = if files == 1 {
            "1 file".to_owned()
        } else {
            format!("{} files", grouped(files as u64))
        };
        print_fact(
            "chain",
            format!("{}: {} of blocks in {files}", args.chain, bytes(blocks.bytes)),
        )?;
        // Hints and whole chains give the exact number; a sample of blocks gives an estimate.
        let is_counted = args.hints.is_some() || sample.is_whole();
        let coins = if is_counted { grouped(set.coins) } else { estimated(set.coins) };
        print_fact("coins", format!("{coins}, {} as a chainstate", bytes(set.chainstate())))?;
        print_fact("this machine", sample.words(threads(args.par)))?;
        let scripts = match self.checks_every_script(chosen) {
            true => "every script checked",
            false => "assumed-valid scripts skipped (to check every script: --assumevalid 0)",
        };
        print_fact("scripts", scripts)?;
        let in_order =
            if chosen == SyncMethod::InOrderOnServers { chosen } else { SyncMethod::InOrder };
        let rows = [SyncMethod::Hints, SyncMethod::Joins, in_order].map(|method| self.row(method));
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.print_table(&rows, chosen)?;
        let this = rows.iter().find(|row| row.method == chosen);
        this.map_or(Ok(()), |row| print_disks(&row.disks))?;
        if let Some(old) = place.old_chainstate {
            let text = format!("the old chainstate takes {} until you remove it", bytes(old));
            print_fact("", text)?;
        }
        for (number, line) in place.standings.iter().enumerate() {
            print_fact(if number == 0 { "indexes" } else { "" }, line)?;
        }
        if chosen == SyncMethod::InOrderOnServers {
            let set = bytes(set.on_servers());
            let text = format!("about {set} for the coins, and twice that while they are written");
            print_fact("servers", text)?;
        }
        place.expect_good()?;
        self.conclude(&rows, chosen)
    }

    /// Prints which methods fit, and what the others lack.
    fn conclude(&self, rows: &[MethodRow], chosen: SyncMethod) -> Result<(), Failure> {
        let fit: Vec<&MethodRow> = rows.iter().filter(|row| row.lacking.is_empty()).collect();
        let why = |row: &MethodRow| {
            format!("Not possible {}: {}", row.method.name(), row.lacking.join(". "))
        };
        if fit.is_empty() {
            let all: Vec<String> = rows.iter().map(why).collect();
            let message = format!("no method fits this machine. {}", all.join(". "));
            return Err(Failure::new(IO, message));
        }
        print::result("")?;
        for row in rows.iter().filter(|row| !row.lacking.is_empty()) {
            print::result(format_args!("{}.", why(row)))?;
        }
        if fit.iter().any(|row| row.method == chosen) {
            let name = chosen.name();
            return print::result(format_args!(
                "This machine has enough disk and memory to sync {name}."
            ));
        }
        let ways: Vec<String> = fit
            .iter()
            .map(|row| format!("{} ({})", row.method.name(), row.method.option()))
            .collect();
        let ways = ways.join(", or ");
        print::result(format_args!("This machine has enough disk and memory to sync {ways}."))
    }

    fn row(&self, method: SyncMethod) -> Result<MethodRow, Failure> {
        let Self { args, place, sample, blocks, set, .. } = self;
        let needs = Needs {
            blocks: *blocks,
            method,
            set: *set,
            outputs: &place.outputs,
            prune: args.prune,
            indexes: &place.forms,
            workdir: &place.workdir,
            scratch: args.scratch,
            memory_bytes: args.dbcache << 20,
            threads: threads(args.par),
        };
        let scripts = self.checks_every_script(method);
        let disks = needs.disks()?;
        let mut lacking = Vec::new();
        if method == SyncMethod::Hints {
            lacking.extend(self.undo_lacking());
        }
        lacking.extend(self.memory_lacking());
        lacking.extend(disks.iter().filter_map(DiskNeeds::lacking));
        Ok(MethodRow { method, disks, time: time(sample, &needs, scripts, args.muhash), lacking })
    }

    fn checks_every_script(&self, method: SyncMethod) -> bool {
        let assume = &self.args.assume;
        // Without an assumed-valid block, as on regtest, every script runs except in blocks under hints.
        let assumes = assume.block(Params::of(self.args.chain)).is_some();
        assume.nothing() || !assumes && method != SyncMethod::Hints
    }

    /// Why a sync with hints cannot write a data directory with all blocks.
    fn undo_lacking(&self) -> Option<String> {
        let Self { args, place, has_undo, .. } = self;
        let whole = |sink: &SinkArg| matches!(sink, SinkArg::Datadir(_));
        let needed = "a data directory with all blocks needs undo data";
        match !args.prune && place.outputs.iter().any(whole) {
            true if args.assume.hinted() => Some(format!(
                "{needed}, which --assumevalid hints leaves unproven: leave it out, or use --prune"
            )),
            true if !has_undo => {
                Some(format!("{needed}, which the blocks folder does not have: use --prune"))
            }
            _ => None,
        }
    }

    /// Upper bound on the memory that any method takes.
    fn memory(&self) -> u64 {
        (self.args.dbcache << 20) + MEMORY_OVERHEAD
    }

    fn memory_lacking(&self) -> Option<String> {
        let free = available_bytes().filter(|free| *free < self.memory())?;
        let fits = free.saturating_sub(MEMORY_OVERHEAD) >> 20;
        let (free, needed) = (bytes(free), bytes(self.memory()));
        Some(match fits {
            4.. => format!(
                "not enough memory: a sync needs {needed} but only {free} is available. Use --dbcache {fits}"
            ),
            _ => format!("not enough memory: a sync needs {needed} but only {free} is available"),
        })
    }

    fn print_table(&self, rows: &[MethodRow], chosen: SyncMethod) -> Result<(), Failure> {
        print::result("")?;
        let line = |[method, disk, memory, time, fits]: [&str; 5]| {
            let line = format!("{method:<15} {disk:<9} {memory:<9} {time:<20} {fits}");
            print::result(line.trim_end())
        };
        line(["method", "disk", "memory", "time", "fits"])?;
        for row in rows {
            let disk = bytes(row.disks.iter().map(DiskNeeds::needed).sum());
            let fits = if row.lacking.is_empty() { "yes" } else { "no" };
            let mark = if row.method == chosen { "  (your settings)" } else { "" };
            let (memory, time) = (bytes(self.memory()), time_words(row.time));
            line([row.method.name(), &disk, &memory, &time, &format!("{fits}{mark}")])?;
        }
        Ok(())
    }
}

fn time_words(time: Option<MethodTime>) -> String {
    match time {
        None => "unknown".to_owned(),
        Some(MethodTime { seconds: ..1.0, .. }) => "less than a second".to_owned(),
        Some(MethodTime { seconds, is_least: true }) => format!("at least {}", rounded(seconds)),
        Some(MethodTime { seconds, .. }) => format!("about {}", rounded(seconds)),
    }
}

/// Formats an estimated time: in whole minutes if it is at least one.
fn rounded(seconds: f64) -> String {
    match seconds {
        60.0..3570.0 => format!("{:.0} min", seconds / 60.0),
        _ => duration(seconds),
    }
}

/// Prints what each disk needs.
fn print_disks(disks: &[DiskNeeds]) -> Result<(), Failure> {
    print::result("")?;
    for disk in disks {
        let (needed, free) = (bytes(disk.needed()), bytes(disk.free));
        print_fact("disk needed", format!("{needed} at {}, {free} free", disk.folder.display()))?;
        for part in &disk.parts {
            print_fact("", format!("{} {}", bytes(part.bytes), part.words()))?;
        }
    }
    Ok(())
}

fn print_fact(name: &str, value: impl std::fmt::Display) -> Result<(), Failure> {
    print::result_behind(&format!("{name:<18} "), value)
}

/// Formats an estimated number for people: two digits, marked as an estimate.
fn estimated(count: u64) -> String {
    let rounded = match count.checked_ilog10() {
        Some(digits @ 2..) => {
            let unit = 10_u64.pow(digits - 1);
            (count / unit + u64::from(count % unit >= unit / 2)).saturating_mul(unit)
        }
        _ => count,
    };
    let number = match rounded {
        1_000_000_000.. => format!("{} billion", rounded as f64 / 1e9),
        1_000_000.. => format!("{} million", rounded as f64 / 1e6),
        _ => grouped(rounded),
    };
    format!("about {number} (estimate)")
}

/// Cost of all work on a block, in multiples of its check: from benchmarks without AVX-512, and from the recorded ones
/// with it, without the time for their MuHash; rounded up.
const WITH_HINTS: f64 = 1.7;
const WITHOUT_HINTS: f64 = 3.3;

/// Cost with the engine `utxo` and all coins in memory, and the connecting thread's part of it.
const IN_ORDER: f64 = 8.0;
const IN_ORDER_ALONE: f64 = 5.0;

/// Extra cost if every coin is looked up in the store on disk: over all threads, and on the connecting thread. From
/// benchmarks with `--dbcache 16` on a fast and on a slow machine: as multiples of a check, the two agree within a
/// fifth, while in seconds one took twice as long as the other. Valid if the page cache holds the store's files.
const FETCH: f64 = 27.0;
const FETCH_ALONE: f64 = 10.0;

/// Extra cost of copying blocks into a data directory, with undo data, and reading them back.
const DATADIR: f64 = 4.5;

/// Extra cost of a pass over the blocks and undo data for indexes and for the chain in numbers, before any index.
const INDEX_PASS: f64 = 2.0;

/// Extra cost of an index in that pass.
const fn index_cost(form: IndexForm) -> f64 {
    match form {
        IndexForm::TxIndex | IndexForm::TxIndexV2 => 0.3,
        IndexForm::TxoSpender => 0.5,
        IndexForm::BlockFilter | IndexForm::CoinStats | IndexForm::CoinStatsOld => 0.6,
    }
}

/// Time to write a coin into a chainstate and read it back, in seconds of one core.
const COIN_SECONDS: f64 = 0.75e-6;

/// Time to add a coin to a MuHash, in seconds of one core.
const MUHASH_SECONDS: f64 = 1.0e-6;

/// Time to run the scripts of an input, in seconds of one core. Most of it is a signature. In the recorded benchmarks of
/// the profile `chainstate-full`, AVX-512 IFMA takes 10 microseconds, AVX2 26, and libsecp256k1 33 to 58.
fn scripts_seconds() -> f64 {
    match apus_engine::script::signature_lanes() {
        8 => 10e-6,
        4 => 22e-6,
        _ => 40e-6,
    }
}

/// Gain from each thread after the first: less than 1, since threads share memory and disk.
const GAIN: f64 = 0.8;

/// Estimates how long a sync takes, with or without running `scripts`, and with or without a `muhash` of the set.
/// `None` if that cannot be estimated.
fn time(
    sample: &BlocksSample,
    needs: &Needs<'_>,
    scripts: bool,
    muhash: bool,
) -> Option<MethodTime> {
    let written = seconds_of_outputs(sample, needs, muhash);
    let scripts = if scripts { scripts_seconds() } else { 0.0 };
    let in_any_order = |work, passes| RunCost { work, alone: 0.0, scripts, passes, written };
    let takes = match needs.method {
        SyncMethod::Hints => in_any_order(WITH_HINTS, 1.0),
        SyncMethod::Joins => in_any_order(WITHOUT_HINTS, 2.0),
        SyncMethod::InOrder => {
            let looked_up = needs.share_looked_up();
            let alone = IN_ORDER_ALONE + looked_up * FETCH_ALONE;
            RunCost { alone, ..in_any_order(IN_ORDER + looked_up * FETCH, 1.0) }
        }
        // The time depends on the servers and the connections to them.
        SyncMethod::InOrderOnServers => return None,
    };
    Some(sample.time(needs.blocks.bytes, takes, needs.threads, threads(0)))
}

/// Processor time of the outputs and of the set's MuHash, in seconds of one core.
fn seconds_of_outputs(sample: &BlocksSample, needs: &Needs<'_>, muhash: bool) -> f64 {
    let all = needs.set.coins as f64;
    let coins = all * COIN_SECONDS;
    let hashed = if muhash { all * MUHASH_SECONDS } else { 0.0 };
    let each = needs.outputs.iter().map(|sink| match sink {
        SinkArg::Chainstate(_) => coins,
        SinkArg::Datadir(_) if needs.prune => coins,
        SinkArg::Datadir(_) => coins + DATADIR * sample.check_seconds_of(needs.blocks.bytes),
        SinkArg::File(form, _) => all * form.coin_seconds,
        SinkArg::Coins(_) => coins,
        SinkArg::Utreexo(_) | SinkArg::SignatureHints(_) | SinkArg::Stats(_) | SinkArg::Null => 0.0,
    });
    let has_stats = needs.outputs.iter().any(|sink| matches!(sink, SinkArg::Stats(_)));
    let pass = if has_stats || !needs.indexes.is_empty() { INDEX_PASS } else { 0.0 };
    let indexes = pass + needs.indexes.iter().copied().map(index_cost).sum::<f64>();
    each.sum::<f64>() + hashed + indexes * sample.check_seconds_of(needs.blocks.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SNAPSHOT;
    use crate::plan::{BlocksSize, SetSize};
    use std::path::{Path, PathBuf};

    #[test]
    fn estimates_are_rounded_to_two_digits() {
        for (count, text) in [
            (0, "about 0 (estimate)"),
            (99, "about 99 (estimate)"),
            (104, "about 100 (estimate)"),
            (20_326, "about 20,000 (estimate)"),
            (2_744_640, "about 2.7 million (estimate)"),
            (2_750_000, "about 2.8 million (estimate)"),
            (999_999, "about 1 million (estimate)"),
            (165_000_000, "about 170 million (estimate)"),
            (1_234_567_890, "about 1.2 billion (estimate)"),
        ] {
            assert_eq!(estimated(count), text);
        }
    }

    #[test]
    fn a_muhash_is_computed_if_requested() {
        let chainstate = || SinkArg::Chainstate(PathBuf::from("chainstate"));
        let snapshot = || SinkArg::File(&SNAPSHOT, PathBuf::from("utxo.dat"));
        let seconds = |outputs: &[SinkArg], muhash| {
            let needs = Needs {
                blocks: BlocksSize::default(),
                method: SyncMethod::Hints,
                set: SetSize { coins: 1_000_000 },
                outputs,
                prune: true,
                indexes: &[],
                workdir: Path::new("work"),
                scratch: None,
                memory_bytes: 0,
                threads: 1,
            };
            seconds_of_outputs(&BlocksSample::default(), &needs, muhash)
        };
        let (written, muhash) = (1e6 * COIN_SECONDS, 1e6 * MUHASH_SECONDS);
        assert_eq!(seconds(&[snapshot()], false), 0.0);
        assert_eq!(seconds(&[snapshot()], true), muhash);
        assert_eq!(seconds(&[snapshot(), chainstate()], false), written);
        assert_eq!(seconds(&[snapshot(), chainstate()], true), written + muhash);
    }
}
