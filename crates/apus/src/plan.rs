//! `apus plan`: what a run would take of disk, memory and time, before anything is written.
//!
//! Sizes follow from the blocks that are there and from what is known of sets ([`needs`]); time from how
//! fast this machine reads and checks some of these blocks, or all where they are few ([`sample`]). Blocks from peers are not foreseen:
//! there is nothing to measure, and the peers' lines decide. Nor is the time that coins on servers take.

mod needs;
mod sample;

pub(crate) use needs::{Needs, Set, Way, tell_little_room};

use crate::args::{Engine, PlanArgs, SinkArg, Validation};
use crate::aside::bytes_in;
use crate::failure::{Failure, IO};
use crate::files::expect_hints;
use crate::interrupt::watch_signals;
use crate::machine::{available_bytes, clock, threads};
use crate::node::{Node, expect_first_blocks, expect_folders};
use crate::options::{expect_engine_takes, expect_undo_data};
use crate::places::{look_at, look_whether_it_moves};
use crate::print;
use crate::render::duration;
use crate::report::{bytes, grouped};
use crate::scripts::verifier;
use apus_chain::{Network, Params};
use apus_datadir::{BlockFiles, BlocksFolder};
use apus_sync::{BlocksDir, Event, Gap, Observer, SourceError, SyncError, UseIndex};
use needs::Disk;
use sample::{Sample, Takes, WHOLE_BYTES};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

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

/// What a coin takes of one core, in seconds, that is written into a chainstate and read back. In a snapshot it takes
/// so little that the times above have room for it.
const COIN_SECONDS: f64 = 0.75e-6;

/// What a coin takes of one core, in seconds, each time that it goes into a MuHash.
const MUHASH_SECONDS: f64 = 1.0e-6;

/// What the scripts of an input take of one core, in seconds, where they run; nearly all of it is a
/// signature: 36 and 46 microseconds in the runs of record of the profiles `connect` and `undo-full`.
const SCRIPTS_SECONDS: f64 = 40e-6;

/// Of each thread beside the first so much is gained: memory and disk are shared.
const GAIN: f64 = 0.8;

/// What a run takes beside `--dbcache`, at most.
const MEMORY_BESIDE: u64 = 100 << 20;

/// Runs `apus plan`.
pub(crate) fn command(args: &PlanArgs) -> Result<(), Failure> {
    let way = way(args)?;
    let place = Place::of(args)?;
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
    let (blocks, threads) = (files.bytes_total(), threads(args.par));
    let set = Set::of(args.hints.as_ref(), place.old_chainstate, blocks, args.chain, &sample)?;
    let needs = Needs {
        block_bytes: blocks,
        way,
        set,
        outputs: &place.outputs,
        prune: args.prune,
        workdir: &place.workdir,
        memory_bytes: args.dbcache << 20,
        threads,
    };
    say(
        "chain",
        format!("{}: {} of blocks in {}", args.chain, bytes(blocks), counted(files.files().len())),
    )?;
    say(
        "coins",
        format!("some {}: {} as a chainstate", grouped(set.coins), bytes(set.chainstate())),
    )?;
    say("this machine", sample.words(threads))?;
    let mut lacking = Vec::new();
    tell_memory(args, &mut lacking)?;
    for disk in needs.disks()? {
        tell_disk(&disk, &mut lacking)?;
    }
    if let Some(old) = place.old_chainstate {
        say("", format!("the old chainstate, {}, stays until you remove it", bytes(old)))?;
    }
    if way == Way::InOrderOnServers {
        let set = bytes(needs.set.on_servers());
        say(
            "servers",
            format!("some {set} for the coins, and twice as much while they are written"),
        )?;
    }
    tell_time(args, &sample, &needs)?;
    place.expect_good()?;
    match lacking.is_empty() {
        true => print::result("\nThere is enough of everything."),
        false => Err(Failure::new(IO, format!("too little: {}", lacking.join("; ")))),
    }
}

/// Looks at some of the blocks, or where there are few, at all of them. What a run would warn of is told, as far as it is
/// seen.
fn look(
    blocksdir: &BlocksFolder,
    files: &BlockFiles,
    chain: Network,
    interrupt: &AtomicBool,
) -> Result<Sample, Failure> {
    let params = Params::of(chain);
    let now = clock(params)?;
    let verifier = verifier(params)?;
    if files.bytes_total() > WHOLE_BYTES {
        if let Some(missing) = Gap::between(files.files()).missing_files() {
            let ends = "a run ends below what lay there, unless it lies in other files, too";
            print::aside(format_args!("warning: {missing}: {ends}"));
        }
        return Sample::take(files, params, verifier.as_deref(), interrupt);
    }
    let use_index = UseIndex::IfPresent;
    let dir = BlocksDir::open(blocksdir, params, now, use_index, &Warnings, interrupt);
    Sample::of_all(&dir.map_err(SyncError::from)?, params, verifier.as_deref(), interrupt)
}

/// Tells of warnings, and of nothing else.
struct Warnings;

impl Observer for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning(warning) = event {
            print::aside(format_args!("warning: {warning}"));
        }
    }
}

/// What the options ask for, where a plan knows it.
fn way(args: &PlanArgs) -> Result<Way, Failure> {
    expect_engine_takes(args.engine, args.hints.as_ref())?;
    let in_order = args.engine == Some(Engine::Utxo);
    #[cfg(feature = "remote-coins")]
    let on_servers = args.coins.beyond(in_order)?.is_some();
    #[cfg(not(feature = "remote-coins"))]
    let on_servers = false;
    match args.engine {
        Some(Engine::Utreexo) => Err(Failure::usage(
            "what the engine utreexo takes cannot be foreseen: leave out --engine, or name another",
        )),
        _ if args.hints.is_some() => Ok(Way::Hints),
        _ if on_servers => Ok(Way::InOrderOnServers),
        _ if in_order => Ok(Way::InOrder),
        _ => Ok(Way::Joins),
    }
}

fn say(name: &str, value: impl std::fmt::Display) -> Result<(), Failure> {
    print::result_behind(&format!("{name:<18} "), value)
}

/// Where a run would find and leave what.
struct Place {
    blocksdir: BlocksFolder,
    outputs: Vec<SinkArg>,
    workdir: PathBuf,
    /// Bytes of the chainstate that is moved aside.
    old_chainstate: Option<u64>,
}

impl Place {
    fn of(args: &PlanArgs) -> Result<Self, Failure> {
        let (blocksdir, outputs) = match (&args.datadir, &args.blocksdir) {
            (Some(datadir), _) => {
                let node = Node::find(datadir, args.chain, args.blocksdir.as_deref())?;
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

impl Place {
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

fn tell_memory(args: &PlanArgs, lacking: &mut Vec<String>) -> Result<(), Failure> {
    let needed = (args.dbcache << 20) + MEMORY_BESIDE;
    let Some(free) = available_bytes() else {
        return say("memory", format!("{} at most", bytes(needed)));
    };
    say("memory", format!("{} at most, {} available", bytes(needed), bytes(free)))?;
    if free < needed {
        let fits = free.saturating_sub(MEMORY_BESIDE) >> 20;
        lacking.push(match fits {
            4.. => format!("memory, for which --dbcache {fits} would do"),
            _ => "memory".to_owned(),
        });
    }
    Ok(())
}

fn tell_disk(disk: &Disk, lacking: &mut Vec<String>) -> Result<(), Failure> {
    let parts: Vec<String> =
        disk.parts.iter().map(|(what, size)| format!("{} for {what}", bytes(*size))).collect();
    let needed = disk.needed();
    let at = disk.folder.display();
    say("disk", format!("{} at most at {at}, {} free", bytes(needed), bytes(disk.free)))?;
    say("", parts.join(", "))?;
    if disk.free < needed {
        let elsewhere = match disk.has_progress() {
            true => ": progress can be on another disk, by --workdir",
            false => "",
        };
        lacking.push(format!("disk at {at}, by {}{elsewhere}", bytes(needed - disk.free)));
    }
    Ok(())
}

/// Processor time of the outputs and of the set's MuHash, in seconds of one core.
fn seconds_of_outputs(sample: &Sample, needs: &Needs<'_>, muhash: bool) -> f64 {
    let all = needs.set.coins as f64;
    // What is read back has its MuHash computed as well.
    let coins = all * (COIN_SECONDS + MUHASH_SECONDS);
    let is_read_back =
        |sink: &SinkArg| matches!(sink, SinkArg::Chainstate(_) | SinkArg::Datadir(_));
    let muhash = muhash || needs.outputs.iter().any(is_read_back);
    let compared = if muhash { all * MUHASH_SECONDS } else { 0.0 };
    let each = needs.outputs.iter().map(|sink| match sink {
        SinkArg::Chainstate(_) => coins,
        SinkArg::Datadir(_) if needs.prune => coins,
        SinkArg::Datadir(_) => coins + DATADIR * sample.check_seconds_of(needs.block_bytes),
        SinkArg::Snapshot(_) | SinkArg::Hints(_) | SinkArg::Utreexo(_) | SinkArg::Null => 0.0,
    });
    each.sum::<f64>() + compared
}

fn tell_time(args: &PlanArgs, sample: &Sample, needs: &Needs<'_>) -> Result<(), Failure> {
    if needs.way == Way::InOrderOnServers {
        return say("time", "cannot be foreseen: the servers and the lines to them decide");
    }
    let written = seconds_of_outputs(sample, needs, args.muhash);
    let in_any_order = |work, passes| Takes { work, alone: 0.0, scripts: false, passes, written };
    let (without, words) = match needs.way {
        Way::InOrder => {
            let looked_up = needs.share_looked_up();
            let takes = Takes {
                alone: IN_ORDER_ALONE + looked_up * FETCH_ALONE,
                ..in_any_order(IN_ORDER + looked_up * FETCH, 1.0)
            };
            (takes, ["without hints, in order", "every script run, in order"])
        }
        _ => (in_any_order(WITHOUT_HINTS, 2.0), ["without hints", "every script run"]),
    };
    let ways = [
        ("with hints", in_any_order(WITH_HINTS, 1.0)),
        (words[0], without),
        (words[1], Takes { scripts: true, ..without }),
    ];
    let assumes = Params::of(args.chain).default_assume_valid.is_some();
    let chosen = match (&args.hints, args.validation) {
        (Some(_), Validation::Assumevalid) => 0,
        (None, Validation::Assumevalid) if assumes => 1,
        // Without an assumed-valid block, as on regtest, no script is left out.
        _ => 2,
    };
    for (index, (name, takes)) in ways.into_iter().enumerate() {
        let seconds = sample.seconds(needs.block_bytes, takes, needs.threads, threads(0));
        let mark = if index == chosen { "  <- this run" } else { "" };
        let title = if index == 0 { "time" } else { "" };
        let about = match seconds {
            ..1.0 => "less than a second".to_owned(),
            _ => format!("about {}", duration(seconds)),
        };
        say(title, format!("{about} {name}{mark}"))?;
    }
    Ok(())
}

fn counted(files: usize) -> String {
    match files {
        1 => "1 file".to_owned(),
        _ => format!("{} files", grouped(files as u64)),
    }
}

/// Whether a set is that of the main chain, whose proportions are known.
fn is_main(chain: Network) -> bool {
    chain == Network::Main
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_muhash_is_computed_once_and_again_of_what_is_read_back() {
        let chainstate = || SinkArg::Chainstate(PathBuf::from("chainstate"));
        let snapshot = || SinkArg::Snapshot(PathBuf::from("utxo.dat"));
        let seconds = |outputs: &[SinkArg], muhash| {
            let set = Set { coins: 1_000_000 };
            let (workdir, way) = (Path::new("work"), Way::Hints);
            let needs = Needs {
                block_bytes: 0,
                way,
                set,
                outputs,
                prune: true,
                workdir,
                memory_bytes: 0,
                threads: 1,
            };
            seconds_of_outputs(&Sample::default(), &needs, muhash)
        };
        let (written, muhash) = (1e6 * COIN_SECONDS, 1e6 * MUHASH_SECONDS);
        assert_eq!(seconds(&[snapshot()], false), 0.0);
        assert_eq!(seconds(&[snapshot()], true), muhash);
        let both = seconds(&[snapshot(), chainstate()], false);
        assert!((both - written - 2.0 * muhash).abs() < 1e-9, "{both}");
        assert_eq!(both, seconds(&[snapshot(), chainstate()], true));
    }
}
