//! `apus-bench floor`: the limits of the machine at hand, and from them the least time in which an
//! order-free sync of a chain could end on it.
//!
//! **What the floor means.** Every byte of the chain has to be read, its obfuscation undone and its
//! parts found; every transaction has an id to hash, every block a tree over the ids, and a second
//! one where it commits to witnesses and scripts are not assumed valid; every coin that was spent goes into the aggregate twice. The
//! chain says exactly how much of each there is ([`count`]), and the machine how fast each goes
//! alone, at best, in the fastest code that there is here (`MachineMeasure`, `kernel_rates`). The floor
//! is the sum of amounts over rates. It moves when that code gets faster: it says how far a run is
//! from its own parts, not from what the silicon could do in other hands.
//!
//! **What it leaves out on purpose.** Everything that is not needed *in principle*, or is small: rules
//! that only compare, sorting and merging of survivors, hints, headers of stale blocks, checkpoints
//! and their checksums, a disk that is slower than the page cache, starting threads and waiting for
//! the last one. It adds up kinds of work that could overlap in one core, and believes that data
//! goes from one step to the next within the cache. So nothing reaches the floor; what is near it
//! has little left to gain.
//!
//! The set's own hash (`hash_serialized_3`, which `gettxoutsetinfo` shows) and writing its coins are summed apart:
//! validation does not need them, every run does them. Its MuHash, which runs compute where it is asked for, is in no sum.

mod bill;
mod measure;
mod timing;
mod work;

pub use bill::{ChainFloor, FloorItem, FloorOf, FloorPart, FloorTimes};
pub use bill::{KernelRates, MachineLimits, WorkRate};
pub use bill::{items, limits, sums};
pub use work::{ChainWork, Compressions, CountedWork, count};

use crate::chain::{BenchChain, read_json};
use crate::commands::{ScratchFolder, cores, now, own_program, write_json};
use crate::error::{AtPath, BenchError};
use crate::machine::BenchMachine;
use crate::process;
use crate::terminal::{self, watch_signals};
use apus_chain::{BlockHash, Network, Params};
use clap::Args;
use measure::{MachineMeasure, made_up_block};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use timing::{kernel_names, kernel_rates};

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 2;

/// What `apus-bench floor` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: BenchMachine,
    /// What it can do.
    pub limits: MachineLimits,
    /// What that means for a chain, if one was given.
    pub chain: Option<ChainFloor>,
}

// ---- the command ----

const FLOOR_EXAMPLES: &str = "\
Examples:
  What this machine can do:
    apus-bench floor

  What that means for a chain made by `apus-bench chain make`:
    apus-bench floor --chain-dir chain

  The same for the blocks of your own node:
    apus-bench floor --chain main --blocksdir ~/.bitcoin/blocks \\
         --hints main.hints

The floor is the sum of what cannot be left out, each at the best rate that this
program reaches alone. Witnesses of blocks whose scripts are assumed valid are
left out, as by runs. No run gets there: rules, sorting, checkpoints and
waiting come on top.";

/// Measure the limits of this machine, and the least time a chain can take on it
#[derive(Debug, Args)]
#[command(after_help = FLOOR_EXAMPLES)]
pub struct FloorArgs {
    /// A generated chain: a folder with `blocks` and `chain.hints`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["blocksdir", "hints"])]
    chain_dir: Option<PathBuf>,

    /// Folder with Bitcoin Core's blk*.dat files
    #[arg(long, value_name = "DIR", requires = "hints")]
    blocksdir: Option<PathBuf>,

    /// Their hintsfile, which says which coins survive
    #[arg(long, value_name = "FILE", requires = "blocksdir")]
    hints: Option<PathBuf>,

    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "regtest")]
    chain: Network,

    /// Threads to measure besides one; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    par: u16,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// How long each measurement lasts, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, hide = true, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    span_ms: u64,

    /// Measure the kernel in use alone and write its rates
    #[arg(long, hide = true, requires = "json")]
    one_kernel: bool,
}

/// Without a chain so much is written, read and removed again.
const MADE_UP_BYTES: usize = 64 << 20;

/// Measures, writes and shows what it found; or measures one kernel.
///
/// # Errors
/// Where files cannot be read or written, blocks and hints do not fit together, or it is interrupted.
pub fn command(args: &FloorArgs) -> Result<(), BenchError> {
    let threads = if args.par == 0 { cores() } else { args.par.into() };
    let span = Duration::from_millis(args.span_ms);
    if args.one_kernel {
        let path = args.json.as_deref().unwrap_or(Path::new("kernel.json"));
        return write_json(path, &kernel_rates(threads, span));
    }
    // Asked before anything here makes a load of its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    let scratch = ScratchFolder::open(None, "apus-bench-floor")?;
    let chain = chain(args)?;
    let (files, blocks, work) = match &chain {
        Some(chain) => {
            let params = Params::of(chain.network);
            terminal::aside("counting what the blocks have");
            let assumed = assumed(chain, params)?;
            let (blocks, hints) = (&chain.blocksdir, &chain.hints);
            let counted = count(params, blocks, hints, assumed.as_ref(), now(), &interrupt)?;
            let CountedWork { work, samples } = counted;
            (chain.files()?, samples, Some(work))
        }
        None => (vec![made_up_file(&scratch.folder)?], vec![made_up_block()], None),
    };
    let kernels = kernels(threads, args.span_ms, &scratch.folder, &interrupt)?;
    let measure = MachineMeasure {
        threads,
        span,
        files: &files,
        blocks: &blocks,
        scratch: &scratch.folder,
        interrupt: &interrupt,
    };
    let mut tell = |what: &str| terminal::aside(format_args!("measuring {what}"));
    let limits = measure.limits(kernels, &mut tell)?;
    let chain = work.and_then(|work| ChainFloor::new(work, &limits));
    let floor = Floor { version: VERSION, machine, limits, chain };
    if let Some(path) = &args.json {
        write_json(path, &floor)?;
    }
    show(&floor)
}

fn show(floor: &Floor) -> Result<(), BenchError> {
    for table in limits(&floor.limits) {
        terminal::result(table.text())?;
    }
    if let Some(chain) = &floor.chain {
        terminal::result(items(chain, &floor.limits).text())?;
        terminal::result(sums(chain, &floor.limits).text())?;
    }
    match floor.machine.load {
        Some(load) if floor.machine.is_busy() => terminal::result(format_args!(
            "The machine was busy when this began (load {load:.1}): rates may be too low, and those \
             of several threads at once most of all."
        )),
        _ => Ok(()),
    }
}

fn chain(args: &FloorArgs) -> Result<Option<BenchChain>, BenchError> {
    if let Some(folder) = &args.chain_dir {
        return Ok(Some(BenchChain::in_folder(folder)?));
    }
    let (Some(blocksdir), Some(hints)) = (&args.blocksdir, &args.hints) else { return Ok(None) };
    Ok(Some(BenchChain {
        name: args.chain.name().to_owned(),
        folder: blocksdir.clone(),
        network: args.chain,
        blocksdir: blocksdir.clone(),
        hints: hints.clone(),
        manifest: None,
    }))
}

/// The block up to which runs take scripts for valid.
fn assumed(chain: &BenchChain, params: &Params) -> Result<Option<BlockHash>, BenchError> {
    let Some(manifest) = &chain.manifest else { return Ok(params.default_assume_valid) };
    manifest.assume_valid().map(Some).map_err(|error| BenchError::io(&chain.blocksdir, error))
}

/// Every kernel of the machine, each in a process of its own: one process has one kernel.
fn kernels(
    threads: usize,
    span_ms: u64,
    scratch: &Path,
    interrupt: &AtomicBool,
) -> Result<Vec<KernelRates>, BenchError> {
    let (program, json) = (own_program()?, scratch.join("kernel.json"));
    let measure = |kernel: &str| {
        terminal::aside(format_args!("measuring SHA-256 by the kernel {kernel}"));
        let mut command = Command::new(&program);
        command
            .args(["floor", "--one-kernel", "--par", &threads.to_string()])
            .args(["--span-ms", &span_ms.to_string(), "--json"])
            .arg(&json)
            .env("APUS_SHA256", kernel);
        process::run(&mut command, LIMIT, interrupt)?;
        read_json(&json)
    };
    kernel_names().into_iter().map(measure).collect()
}

/// Longer than measuring a kernel should take.
const LIMIT: Duration = Duration::from_secs(3_600);

fn made_up_file(folder: &Path) -> Result<PathBuf, BenchError> {
    let path = folder.join("blk00000.dat");
    fs::write(&path, vec![0x5a; MADE_UP_BYTES]).at(&path)?;
    Ok(path)
}
