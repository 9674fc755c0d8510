//! `apus plan`: what a run would take of disk, memory and time, before anything is written.
//!
//! Sizes follow from the blocks that are there and from what is known of sets ([`needs`]); time from how
//! fast this machine reads and checks some of these blocks ([`sample`]). Blocks from peers are not foreseen:
//! there is nothing to measure, and the peers' lines decide.

mod needs;
mod sample;

pub(crate) use needs::{Needs, Set, tell_little_room};

use crate::args::{PlanArgs, SinkArg, Validation};
use crate::aside::bytes_in;
use crate::failure::{Failure, IO};
use crate::files::expect_hints;
use crate::interrupt::watch_signals;
use crate::machine::{available_bytes, threads};
use crate::node::{expect_first_blocks, expect_folders};
use crate::print;
use crate::render::duration;
use crate::report::{bytes, grouped};
use apus_chain::{Network, Params};
use apus_datadir::{BlockFiles, chain_folder};
use needs::Disk;
use sample::{Sample, Takes};
use std::path::{Path, PathBuf};

/// What all work on a block takes, in times what its check takes: derived from the runs of record with and without
/// AVX-512, rounded up.
const WITH_HINTS: f64 = 2.5;
const WITHOUT_HINTS: f64 = 4.0;

/// The same of what is copied into a data directory, with undo data, and read back.
const DATADIR: f64 = 4.5;

/// What a coin takes of one core, in seconds, that is written into a chainstate and read back. In a snapshot it takes
/// so little that the times above have room for it.
const COIN_SECONDS: f64 = 0.75e-6;

/// What the scripts of an input take of one core, in seconds, where they run; nearly all of it is a
/// signature: 36 and 46 microseconds in the runs of record of the profiles `connect` and `undo-full`.
const SCRIPTS_SECONDS: f64 = 40e-6;

/// Of each thread beside the first so much is gained: memory and disk are shared.
const GAIN: f64 = 0.8;

/// What a run takes beside `--dbcache`, at most.
const MEMORY_BESIDE: u64 = 100 << 20;

/// Runs `apus plan`.
pub(crate) fn command(args: &PlanArgs) -> Result<(), Failure> {
    let place = Place::of(args)?;
    let files = BlockFiles::open(&place.blocksdir, args.chain.magic());
    let files = files.map_err(|error| Failure::io(&place.blocksdir, error))?;
    expect_first_blocks(&place.blocksdir)?;
    args.hints.as_ref().map_or(Ok(()), expect_hints)?;
    let interrupt = watch_signals()?;
    let sample = Sample::take(&files, Params::of(args.chain), &interrupt)?;
    let (blocks, threads) = (files.bytes_total(), threads(args.par));
    let set = Set::of(args.hints.as_ref(), place.old_chainstate, blocks, args.chain, &sample)?;
    let needs = Needs {
        block_bytes: blocks,
        hints: args.hints.is_some(),
        set,
        outputs: &place.outputs,
        prune: args.prune,
        workdir: &place.workdir,
        memory_bytes: args.dbcache << 20,
        threads,
    };
    say(
        "chain",
        format!("{}: {} of blocks in {} files", args.chain, bytes(blocks), files.files().len()),
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
    tell_time(args, &sample, &needs)?;
    match lacking.is_empty() {
        true => print::result("\nThere is enough of everything."),
        false => Err(Failure::new(IO, format!("too little: {}", lacking.join("; ")))),
    }
}

fn say(name: &str, value: impl std::fmt::Display) -> Result<(), Failure> {
    print::result(format_args!("{name:<18} {value}"))
}

/// Where a run would find and leave what.
struct Place {
    blocksdir: PathBuf,
    outputs: Vec<SinkArg>,
    workdir: PathBuf,
    /// Bytes of the chainstate that is moved aside.
    old_chainstate: Option<u64>,
}

impl Place {
    fn of(args: &PlanArgs) -> Result<Self, Failure> {
        let (blocksdir, outputs) = match (&args.datadir, &args.blocksdir) {
            (Some(datadir), _) => {
                let folder = chain_folder(datadir, args.chain);
                let blocksdir = folder.join("blocks");
                expect_folders(datadir, args.chain, &blocksdir)?;
                (blocksdir, vec![SinkArg::Chainstate(folder.join("chainstate"))])
            }
            (None, Some(blocksdir)) => (blocksdir.clone(), args.out.clone()),
            (None, None) => return Err(Failure::usage("give --datadir or --blocksdir")),
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

/// Processor time of the outputs, in seconds of one core.
fn seconds_of_outputs(sample: &Sample, needs: &Needs<'_>) -> f64 {
    let coins = needs.set.coins as f64 * COIN_SECONDS;
    let each = needs.outputs.iter().map(|sink| match sink {
        SinkArg::Chainstate(_) => coins,
        SinkArg::Datadir(_) if needs.prune => coins,
        SinkArg::Datadir(_) => coins + DATADIR * sample.check_seconds_of(needs.block_bytes),
        SinkArg::Snapshot(_) | SinkArg::Hints(_) | SinkArg::Utreexo(_) | SinkArg::Null => 0.0,
    });
    each.sum()
}

fn tell_time(args: &PlanArgs, sample: &Sample, needs: &Needs<'_>) -> Result<(), Failure> {
    let written = seconds_of_outputs(sample, needs);
    let ways: &[(&str, f64, bool, f64)] = &[
        ("with hints", WITH_HINTS, false, 1.0),
        ("without hints", WITHOUT_HINTS, false, 2.0),
        ("every script run", WITHOUT_HINTS, true, 2.0),
    ];
    let chosen = match (&args.hints, args.validation) {
        (Some(_), Validation::Assumevalid) => 0,
        (None, Validation::Assumevalid) => 1,
        (_, Validation::Full) => 2,
    };
    for (index, (name, work, scripts, passes)) in ways.iter().enumerate() {
        let takes = Takes { work: *work, scripts: *scripts, passes: *passes, written };
        let seconds = sample.seconds(needs.block_bytes, takes, needs.threads);
        let mark = if index == chosen { "  <- this run" } else { "" };
        let title = if index == 0 { "time" } else { "" };
        say(title, format!("about {} {name}{mark}", duration(seconds)))?;
    }
    Ok(())
}

/// Whether a set is that of the main chain, whose proportions are known.
fn is_main(chain: Network) -> bool {
    chain == Network::Main
}
