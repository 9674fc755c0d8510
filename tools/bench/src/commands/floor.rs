//! `apus-bench floor`: the limits of this machine, and the least time that a chain can take on it.

use super::{ScratchFolder, cores, now, own_program, write_json};
use crate::terminal::{self, watch_signals};
use apus_bench::BenchError;
use apus_bench::floor::{
    self, ChainFloor, CountedWork, Floor, KernelRates, MachineMeasure, VERSION, made_up_block,
};
use apus_bench::run::{BenchChain, BenchMachine};
use apus_chain::{BlockHash, Network, Params};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

#[derive(Args)]
#[command(after_help = FLOOR_EXAMPLES)]
pub(crate) struct FloorArgs {
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

    /// Measure the kernel in use alone and print its rates as JSON
    #[arg(long, hide = true)]
    one_kernel: bool,
}

/// Without a chain so much is written, read and removed again.
const MADE_UP_BYTES: usize = 64 << 20;

pub(crate) fn command(args: &FloorArgs) -> Result<(), BenchError> {
    let threads = if args.par == 0 { cores() } else { args.par.into() };
    let span = Duration::from_millis(args.span_ms);
    if args.one_kernel {
        let rates = floor::kernel_rates(threads, span);
        let text = serde_json::to_string(&rates).map_err(BenchError::usage)?;
        return terminal::result(text);
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
            let counted = floor::count(params, blocks, hints, assumed.as_ref(), now(), &interrupt)?;
            let CountedWork { work, samples } = counted;
            (chain.files()?, samples, Some(work))
        }
        None => (vec![made_up_file(&scratch.folder)?], vec![made_up_block()], None),
    };
    let kernels = kernels(threads, args.span_ms, &interrupt)?;
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
    for table in floor::limits(&floor.limits) {
        terminal::result(table.text())?;
    }
    if let Some(chain) = &floor.chain {
        terminal::result(floor::items(chain, &floor.limits).text())?;
        terminal::result(floor::sums(chain, &floor.limits).text())?;
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
    interrupt: &AtomicBool,
) -> Result<Vec<KernelRates>, BenchError> {
    let program = own_program()?;
    let measure = |kernel: &str| {
        if interrupt.load(Ordering::Relaxed) {
            return Err(BenchError::interrupted());
        }
        terminal::aside(format_args!("measuring SHA-256 by the kernel {kernel}"));
        let output = Command::new(&program)
            .args(["floor", "--one-kernel", "--par", &threads.to_string()])
            .args(["--span-ms", &span_ms.to_string()])
            .env("APUS_SHA256", kernel)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| BenchError::io(&program, error))?;
        // A terminal tells both of us, and the other ends at once.
        let told = [Some(SIGINT), Some(SIGTERM)].contains(&output.status.signal());
        if told || interrupt.load(Ordering::Relaxed) {
            return Err(BenchError::interrupted());
        }
        if !output.status.success() {
            let message = format!("measuring {kernel} ended with {}", output.status);
            return Err(BenchError::io(&program, message));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| BenchError::io(&program, format!("measuring {kernel}: {error}")))
    };
    floor::kernel_names().into_iter().map(measure).collect()
}

fn made_up_file(folder: &Path) -> Result<PathBuf, BenchError> {
    let path = folder.join("blk00000.dat");
    fs::write(&path, vec![0x5a; MADE_UP_BYTES]).map_err(|error| BenchError::io(&path, error))?;
    Ok(path)
}
