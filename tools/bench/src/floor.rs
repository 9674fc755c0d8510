//! `apus-bench floor`: the limits of this machine, and the lower bound they set on the time of an order-free
//! sync of a chain.
//!
//! **What the floor means.** A sync has to read every byte of the chain, undo its obfuscation and parse it;
//! it hashes an id for every transaction and a merkle tree over the ids for every block, and a second tree if
//! the block commits to witnesses and scripts are not assumed valid; every spent coin goes into the aggregate
//! twice. The chain determines the exact amount of each ([`count`]), and the machine determines how fast each
//! is alone, at best, with the fastest code here (`MachineMeasure`, `kernel_rates`). The floor is the sum of
//! amounts over rates. It drops when that code gets faster: it compares a sync with its own parts, not with
//! the limits of the hardware.
//!
//! **What it leaves out on purpose.** Everything that is not needed *in principle*, or is small: rules that
//! only compare, sorting and merging of survivors, hints, headers of stale blocks, checkpoints and their
//! checksums, a disk that is slower than the page cache, starting threads and waiting for the last one. It
//! adds up kinds of work that could overlap in one core, and assumes that data passes between steps within
//! the cache. So no sync reaches the floor; one near it has little left to gain.
//!
//! The set's own hash (`hash_serialized_3`, which `gettxoutsetinfo` shows) and writing its coins have a
//! separate sum: validation does not need them, but every sync does them. The set's MuHash, which syncs
//! compute on request, is in no sum.

mod cost;
mod measure;
mod timing;
mod work;

pub use cost::{ChainFloor, FloorItem, FloorOf, FloorPart, FloorTimes};
pub use cost::{KernelRates, MachineLimits, WorkRate};
pub use cost::{items, limits, sums};
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

/// Version of the JSON form. New fields keep it; changed meanings increment it.
pub const VERSION: u32 = 2;

/// The results of `apus-bench floor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that ran the benchmark.
    pub machine: BenchMachine,
    /// The machine's limits.
    pub limits: MachineLimits,
    /// The lower bound for a chain, if one was given.
    pub chain: Option<ChainFloor>,
}

// ---- the command ----

const FLOOR_EXAMPLES: &str = "\
Examples:
  The limits of this machine:
    apus-bench floor

  The lower bound for a chain made by `apus-bench chain make`:
    apus-bench floor --chain-dir chain

  The same for the blocks of your own node:
    apus-bench floor --chain main --blocksdir ~/.bitcoin/blocks \\
         --hints main.hints

The floor is the sum of all unavoidable work, each kind at the best rate that
this program reaches for it alone. It excludes witnesses of blocks whose scripts
are assumed valid, as syncs do. No sync reaches it: rules, sorting, checkpoints
and waiting add to it.";

/// Measure the limits of this machine, and the lower bound they set on the time of a chain
#[derive(Debug, Args)]
#[command(after_help = FLOOR_EXAMPLES)]
pub struct FloorArgs {
    /// A generated chain: a folder with `blocks` and `chain.hints`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["blocksdir", "hints"])]
    chain_dir: Option<PathBuf>,

    /// Folder with Bitcoin Core's blk*.dat files
    #[arg(long, value_name = "DIR", requires = "hints")]
    blocksdir: Option<PathBuf>,

    /// Hintsfile for these blocks, which lists the surviving coins
    #[arg(long, value_name = "FILE", requires = "blocksdir")]
    hints: Option<PathBuf>,

    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "regtest")]
    chain: Network,

    /// Threads to measure in addition to one; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    par: u16,

    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// How long each measurement lasts, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 300, hide = true, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    span_ms: u64,

    /// Only measure the kernel in use and write its rates
    #[arg(long, hide = true, requires = "json")]
    one_kernel: bool,
}

/// Size of the temporary file that is written and read if no chain is given.
const MADE_UP_BYTES: usize = 64 << 20;

/// Measures, writes and shows the results; or measures one kernel.
///
/// # Errors
/// If files cannot be read or written, blocks and hints do not match, or the command is interrupted.
pub fn command(args: &FloorArgs) -> Result<(), BenchError> {
    let threads = if args.par == 0 { cores() } else { args.par.into() };
    let span = Duration::from_millis(args.span_ms);
    if args.one_kernel {
        let path = args.json.as_deref().unwrap_or(Path::new("kernel.json"));
        return write_json(path, &kernel_rates(threads, span));
    }
    // Read the load before this benchmark adds its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    let scratch = ScratchFolder::open(None, "apus-bench-floor")?;
    let chain = chain(args)?;
    let (files, blocks, work) = match &chain {
        Some(chain) => {
            let params = Params::of(chain.network);
            terminal::aside("counting the work in the blocks");
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
    let mut log = |what: &str| terminal::aside(format_args!("measuring {what}"));
    let limits = measure.limits(kernels, &mut log)?;
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
            "The machine was busy at the start (load {load:.1}): rates may be too low, above all \
             those of several threads."
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

/// The block up to which syncs assume scripts valid.
fn assumed(chain: &BenchChain, params: &Params) -> Result<Option<BlockHash>, BenchError> {
    let Some(manifest) = &chain.manifest else { return Ok(params.default_assume_valid) };
    manifest.assume_valid().map(Some).map_err(|error| BenchError::io(&chain.blocksdir, error))
}

/// Every kernel of the machine, each in a separate process: a process has one kernel.
fn kernels(
    threads: usize,
    span_ms: u64,
    scratch: &Path,
    interrupt: &AtomicBool,
) -> Result<Vec<KernelRates>, BenchError> {
    let (program, json) = (own_program()?, scratch.join("kernel.json"));
    let measure = |kernel: &str| {
        terminal::aside(format_args!("measuring SHA-256 with the kernel {kernel}"));
        let mut command = Command::new(&program);
        command
            .args(["floor", "--one-kernel", "--par", &threads.to_string()])
            .args(["--span-ms", &span_ms.to_string(), "--json"])
            .arg(&json)
            .env("APUS_SHA256_KERNEL", kernel);
        process::run(&mut command, LIMIT, interrupt)?;
        read_json(&json)
    };
    kernel_names().into_iter().map(measure).collect()
}

/// Time limit of measuring a kernel: longer than any should take.
const LIMIT: Duration = Duration::from_secs(3_600);

fn made_up_file(folder: &Path) -> Result<PathBuf, BenchError> {
    let path = folder.join("blk00000.dat");
    fs::write(&path, vec![0x5a; MADE_UP_BYTES]).at(&path)?;
    Ok(path)
}
