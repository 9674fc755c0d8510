//! `apus plan`: what a run would take of disk, memory and time, before anything is written.
//!
//! Sizes follow from the blocks that are there and from what is known of sets ([`needs`]); time from how
//! fast this machine reads and checks some of these blocks, or all where they are few ([`sample`]). Blocks from peers are not foreseen:
//! there is nothing to measure, and the peers' lines decide. Nor is the time that coins on servers take.

mod needs;
mod sample;

pub(crate) use needs::{Needs, SetSize, tell_little_room};
pub(crate) use sample::BlocksSize;

use crate::args::{EngineArg, PlanArgs, PlanWay, SinkArg};
use crate::args::{expect_engine_takes, expect_undo_data, verifier};
use crate::course::duration;
use crate::failure::{Failure, IO};
use crate::files::expect_hints;
use crate::files::{bytes_in, look_at, look_whether_it_moves};
use crate::machine::{available_bytes, clock, threads, watch_signals};
use crate::node::{NodeFolders, expect_first_blocks, expect_folders};
use crate::print;
use crate::report::{bytes, grouped};
use apus_chain::{Network, Params};
use apus_datadir::{BlockFiles, BlocksFolder};
use apus_sync::{BlocksDir, ChainGap, SourceError, SyncError, UseIndex};
use needs::DiskNeeds;
use sample::{BlocksSample, Takes, WHOLE_BYTES, WayTime};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Runs `apus plan`.
pub(crate) fn command(args: &PlanArgs) -> Result<(), Failure> {
    let chosen = way(args)?;
    let place = PlanPlace::of(args)?;
    expect_undo_data(&place.outputs, args.hints.is_some(), args.prune)?;
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
    let planning = Planning { args, place: &place, sample: &sample, blocks, set };
    planning.tell_all(chosen, files.files().len())
}

/// Looks at some of the blocks, or where there are few, at all of them. What a run would warn of is told, as far as it is
/// seen.
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
            let ends = "a run ends below what lay there, unless it lies in other files, too";
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

/// What the options ask for, where a plan knows it.
fn way(args: &PlanArgs) -> Result<PlanWay, Failure> {
    #[cfg(feature = "remote-coins")]
    let on_servers = args.coins.are_named();
    #[cfg(not(feature = "remote-coins"))]
    let on_servers = false;
    let engine = args.engine.or(on_servers.then_some(EngineArg::Utxo));
    expect_engine_takes(engine, args.hints.as_ref())?;
    #[cfg(feature = "remote-coins")]
    args.coins.beyond(engine == Some(EngineArg::Utxo))?;
    PlanWay::of(engine, args.hints.is_some(), on_servers).map_err(|name| {
        Failure::usage(format!(
            "what the engine {name} takes cannot be foreseen: leave out --engine, or name another",
        ))
    })
}

/// Where a run would find and leave what.
struct PlanPlace {
    blocksdir: BlocksFolder,
    outputs: Vec<SinkArg>,
    workdir: PathBuf,
    /// Bytes of the chainstate that is moved aside.
    old_chainstate: Option<u64>,
}

impl PlanPlace {
    fn of(args: &PlanArgs) -> Result<Self, Failure> {
        let (blocksdir, outputs) = match (&args.datadir, &args.blocksdir) {
            (Some(datadir), _) => {
                let node = NodeFolders::find(datadir, args.chain, args.blocksdir.as_deref())?;
                expect_folders(&node)?;
                (node.blocks, vec![SinkArg::Chainstate(node.folder.join("chainstate"))])
            }
            (None, Some(blocksdir)) => (blocksdir.into(), args.out.clone()),
            (None, None) => {
                return Err(Failure::usage(
                    "say where the blocks are, by --datadir DIR of a node or by --blocksdir DIR (see `apus plan \
                     --help`)",
                ));
            }
        };
        let old = outputs.iter().find_map(|sink| match sink {
            SinkArg::Chainstate(path) if path.is_dir() => Some(bytes_in(path)),
            _ => None,
        });
        let beside = || outputs.iter().find_map(SinkArg::path).unwrap_or(Path::new("."));
        let workdir = args.workdir.clone().unwrap_or_else(|| beside().to_owned());
        Ok(Self { blocksdir, outputs, workdir, old_chainstate: old })
    }
}

impl PlanPlace {
    /// What a run would be refused for, or fail for at its end.
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

/// Whether a set is that of the main chain, whose proportions are known.
fn is_main(chain: Network) -> bool {
    chain == Network::Main
}

/// What a run takes beside `--dbcache`, at most.
const MEMORY_BESIDE: u64 = 100 << 20;

/// What there is to plan with.
struct Planning<'a> {
    args: &'a PlanArgs,
    place: &'a PlanPlace,
    sample: &'a BlocksSample,
    blocks: BlocksSize,
    set: SetSize,
}

/// What one way takes.
struct WayRow {
    way: PlanWay,
    disks: Vec<DiskNeeds>,
    /// None where it cannot be foreseen.
    time: Option<WayTime>,
    /// Why it does not fit, each with what would do; empty where it fits.
    lacking: Vec<String>,
}

impl PlanWay {
    /// How blocks are done by an engine that may be named; if nothing is known of what it takes, its name.
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
            way => Ok(way),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hints => "with hints",
            Self::Joins => "without hints",
            Self::InOrder | Self::InOrderOnServers => "in order",
        }
    }

    /// How a run is told to go this way.
    fn option(self) -> &'static str {
        match self {
            Self::Hints => "--hints FILE",
            Self::Joins => "no option",
            Self::InOrder | Self::InOrderOnServers => "--engine utxo",
        }
    }
}

impl Planning<'_> {
    /// Tells all, and fails where nothing fits. `chosen` is what the options ask for.
    fn tell_all(&self, chosen: PlanWay, files: usize) -> Result<(), Failure> {
        let Self { args, place, sample, blocks, set } = self;
        let files = if files == 1 {
            "1 file".to_owned()
        } else {
            format!("{} files", grouped(files as u64))
        };
        say("chain", format!("{}: {} of blocks in {files}", args.chain, bytes(blocks.bytes)))?;
        let coins = (grouped(set.coins), bytes(set.chainstate()));
        say("coins", format!("some {}: {} as a chainstate", coins.0, coins.1))?;
        say("this machine", sample.words(threads(args.par)))?;
        let in_order = if chosen == PlanWay::InOrderOnServers { chosen } else { PlanWay::InOrder };
        let rows = [PlanWay::Hints, PlanWay::Joins, in_order].map(|way| self.row(way));
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.tell_rows(&rows, chosen)?;
        let this = rows.iter().find(|row| row.way == chosen);
        this.map_or(Ok(()), |row| tell_disks(&row.disks))?;
        if let Some(old) = place.old_chainstate {
            say("", format!("the old chainstate, {}, stays until you remove it", bytes(old)))?;
        }
        if chosen == PlanWay::InOrderOnServers {
            let set = bytes(set.on_servers());
            let text =
                format!("some {set} for the coins, and twice as much while they are written");
            say("servers", text)?;
        }
        place.expect_good()?;
        self.conclude(&rows, chosen)
    }

    /// Which ways fit, and what the others lack.
    fn conclude(&self, rows: &[WayRow], chosen: PlanWay) -> Result<(), Failure> {
        let fit: Vec<&WayRow> = rows.iter().filter(|row| row.lacking.is_empty()).collect();
        let why = |row: &WayRow| format!("{}: {}", row.way.name(), row.lacking.join(", and "));
        if fit.is_empty() {
            let all: Vec<String> = rows.iter().map(why).collect();
            return Err(Failure::new(IO, format!("too little for any way: {}", all.join("; "))));
        }
        print::result("")?;
        for row in rows.iter().filter(|row| !row.lacking.is_empty()) {
            print::result(format_args!("Too little {}.", why(row)))?;
        }
        if fit.iter().any(|row| row.way == chosen) {
            return print::result(format_args!("There is enough of everything {}.", chosen.name()));
        }
        let ways: Vec<String> =
            fit.iter().map(|row| format!("{} ({})", row.way.name(), row.way.option())).collect();
        print::result(format_args!("There is enough {}.", ways.join(", or ")))
    }

    fn row(&self, way: PlanWay) -> Result<WayRow, Failure> {
        let Self { args, place, sample, blocks, set } = self;
        let needs = Needs {
            blocks: *blocks,
            way,
            set: *set,
            outputs: &place.outputs,
            prune: args.prune,
            workdir: &place.workdir,
            memory_bytes: args.dbcache << 20,
            threads: threads(args.par),
        };
        // Without an assumed-valid block, as on regtest, no script is left out but of blocks under hints.
        let assumes = args.assume.block(Params::of(args.chain)).is_some();
        let scripts = args.assume.nothing() || !assumes && way != PlanWay::Hints;
        let disks = needs.disks()?;
        let whole = |sink: &SinkArg| matches!(sink, SinkArg::Datadir(_));
        let mut lacking = Vec::new();
        if way == PlanWay::Hints && !args.prune && place.outputs.iter().any(whole) {
            // Where hints are given this is a mistake, and was told.
            lacking.push("undo data, of which hints lead to none: --prune would do".to_owned());
        }
        lacking.extend(self.memory_lacking());
        lacking.extend(disks.iter().filter_map(DiskNeeds::lacking));
        Ok(WayRow { way, disks, time: time(sample, &needs, scripts, args.muhash), lacking })
    }

    /// Memory that every way takes, at most.
    fn memory(&self) -> u64 {
        (self.args.dbcache << 20) + MEMORY_BESIDE
    }

    fn memory_lacking(&self) -> Option<String> {
        let free = available_bytes().filter(|free| *free < self.memory())?;
        let fits = free.saturating_sub(MEMORY_BESIDE) >> 20;
        Some(match fits {
            4.. => {
                format!("memory, {} available, for which --dbcache {fits} would do", bytes(free))
            }
            _ => format!("memory, {} available and {} needed", bytes(free), bytes(self.memory())),
        })
    }

    fn tell_rows(&self, rows: &[WayRow], chosen: PlanWay) -> Result<(), Failure> {
        print::result("")?;
        let line = |[way, disk, memory, time, fits]: [&str; 5]| {
            let line = format!("{way:<15} {disk:<11} {memory:<11} {time:<22} {fits}");
            print::result(line.trim_end())
        };
        line(["way", "disk", "memory", "time", "fits"])?;
        for row in rows {
            let disk = bytes(row.disks.iter().map(DiskNeeds::needed).sum());
            let fits = if row.lacking.is_empty() { "yes" } else { "no" };
            let mark = if row.way == chosen { "  <- this run" } else { "" };
            let (memory, time) = (bytes(self.memory()), words(row.time));
            line([row.way.name(), &disk, &memory, &time, &format!("{fits}{mark}")])?;
        }
        Ok(())
    }
}

fn words(time: Option<WayTime>) -> String {
    match time {
        None => "cannot be foreseen".to_owned(),
        Some(WayTime { seconds: ..1.0, .. }) => "less than a second".to_owned(),
        Some(WayTime { seconds, is_least: true }) => format!("{} at least", duration(seconds)),
        Some(WayTime { seconds, .. }) => format!("about {}", duration(seconds)),
    }
}

/// What comes onto each disk.
fn tell_disks(disks: &[DiskNeeds]) -> Result<(), Failure> {
    print::result("")?;
    for disk in disks {
        let (needed, free) = (bytes(disk.needed()), bytes(disk.free));
        say("disk of this run", format!("{needed} at {}, {free} free", disk.folder.display()))?;
        for part in &disk.parts {
            say("", format!("{} for {}", bytes(part.bytes), part.what))?;
        }
    }
    Ok(())
}

fn say(name: &str, value: impl std::fmt::Display) -> Result<(), Failure> {
    print::result_behind(&format!("{name:<18} "), value)
}

/// What all work on a block takes, in times what its check takes: from runs without AVX-512, and from those of record with
/// it, less the MuHash that they computed; rounded up.
const WITH_HINTS: f64 = 1.7;
const WITHOUT_HINTS: f64 = 3.3;

/// The same of the engine `utxo` where coins are in memory, and the part of it that the thread does which connects.
const IN_ORDER: f64 = 8.0;
const IN_ORDER_ALONE: f64 = 5.0;

/// The same beside, where every coin is looked up in the store on disk; of all threads, and of the one that connects.
/// From runs with `--dbcache 16` on a fast and on a slow machine: in times what a check takes they agree within a fifth,
/// in seconds one took twice as long as the other. It holds where the system has the store's files in memory.
const FETCH: f64 = 27.0;
const FETCH_ALONE: f64 = 10.0;

/// The same of what is copied into a data directory, with undo data, and read back.
const DATADIR: f64 = 4.5;

/// What a coin takes of one core, in seconds, that is written into a chainstate and read back.
const COIN_SECONDS: f64 = 0.75e-6;

/// What a coin takes of one core, in seconds, that goes into a MuHash.
const MUHASH_SECONDS: f64 = 1.0e-6;

/// What the scripts of an input take of one core, in seconds, where they run; nearly all of it is a
/// signature: 36 and 46 microseconds in the runs of record of the profiles `connect` and `undo-full`.
const SCRIPTS_SECONDS: f64 = 40e-6;

/// Of each thread beside the first so much is gained: memory and disk are shared.
const GAIN: f64 = 0.8;

/// How long a run takes that runs the `scripts` of its blocks or leaves them out, and that computes the set's `muhash`
/// whatever it writes; none where that cannot be foreseen.
fn time(sample: &BlocksSample, needs: &Needs<'_>, scripts: bool, muhash: bool) -> Option<WayTime> {
    let written = seconds_of_outputs(sample, needs, muhash);
    let in_any_order = |work, passes| Takes { work, alone: 0.0, scripts, passes, written };
    let takes = match needs.way {
        PlanWay::Hints => in_any_order(WITH_HINTS, 1.0),
        PlanWay::Joins => in_any_order(WITHOUT_HINTS, 2.0),
        PlanWay::InOrder => {
            let looked_up = needs.share_looked_up();
            let alone = IN_ORDER_ALONE + looked_up * FETCH_ALONE;
            Takes { alone, ..in_any_order(IN_ORDER + looked_up * FETCH, 1.0) }
        }
        // The servers and the lines to them decide.
        PlanWay::InOrderOnServers => return None,
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
        SinkArg::Utreexo(_) | SinkArg::Null => 0.0,
    });
    each.sum::<f64>() + hashed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SNAPSHOT;
    use crate::plan::{BlocksSize, SetSize};
    use std::path::{Path, PathBuf};

    #[test]
    fn a_muhash_is_computed_where_it_is_asked_for() {
        let chainstate = || SinkArg::Chainstate(PathBuf::from("chainstate"));
        let snapshot = || SinkArg::File(&SNAPSHOT, PathBuf::from("utxo.dat"));
        let seconds = |outputs: &[SinkArg], muhash| {
            let needs = Needs {
                blocks: BlocksSize::default(),
                way: PlanWay::Hints,
                set: SetSize { coins: 1_000_000 },
                outputs,
                prune: true,
                workdir: Path::new("work"),
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
