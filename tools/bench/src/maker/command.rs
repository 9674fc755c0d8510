//! `apus-bench chain`: makes and describes chains for benchmarks.

use crate::commands::cores;
use crate::error::BenchError;
use crate::maker::serve::{PeerServer, WINDOW_BYTES};
use crate::maker::{self, ChainOutput, ChainProfile, MadeChain, MakeOptions, MakeProgress, Scale};
use crate::manifest::{ChainManifest, FILE_NAME};
use crate::table::{bytes, grouped};
use crate::terminal::{self, watch_signals};
use apus_chain::Height;
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often to look whether a signal came.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between progress lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Make a chain for benchmarks, or serve one
#[derive(Debug, Args)]
pub struct ChainArgs {
    #[command(subcommand)]
    command: ChainCommand,
}

#[derive(Debug, Subcommand)]
enum ChainCommand {
    /// Make a regtest chain shaped like the main chain
    Make(MakeArgs),
    /// Be a peer that makes the blocks of such a chain as they are asked for
    Serve(ServeArgs),
    /// Describe a generated chain
    Info(InfoArgs),
}

const MAKE_EXAMPLES: &str = "\
Examples:
  Make a chain of 1.1 GB, and sync it with Apus:
    apus-bench chain make --blocks 620 --seed 1 --out chain
    apus sync --chain regtest --blocksdir chain/blocks \\
         --hints chain/chain.hints --assumevalid hints

  The same with Bitcoin Core, with all scripts validated; `apus-bench chain info
  chain` prints the block for -assumevalid instead of 0:
    mkdir -p core/regtest && cp -r chain/blocks core/regtest/
    bitcoind -regtest -datadir=core -reindex -assumevalid=0 -connect=0 -listen=0

  The main chain's history in small: every era, 19,000 blocks, 700 MB:
    apus-bench chain make --profile main-history --unsigned \\
         --scale blocks=1/50,bytes=1/20 --out small

  Its full length and all 166 million coins, in 36 GB:
    apus-bench chain make --profile main-history --unsigned \\
         --scale bytes=1/20 --set-at 500000,800000 --out long

DIR gets blocks/ with Bitcoin Core's blk*.dat files, chain.hints (BIP-456) and,
last, manifest.json. The same arguments give the same bytes on every machine. A
chain starts with about two hundred blocks that make its first coins, and ends
with 2,100 coinbase-only blocks, as many as a node needs above a block to
assume its scripts valid.";

/// What a chain contains.
#[derive(Debug, Args)]
struct ContentArgs {
    /// The shape of the chain
    #[arg(long, value_enum, default_value_t = ChainProfile::MainnetLike)]
    profile: ChainProfile,

    /// Number of full blocks, about 1.8 MB each. With main-history: only the first N blocks of the history
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    blocks: Option<u32>,

    /// With main-history: how much smaller than the main chain it is. `bytes=1/20` has all blocks and all
    /// coins, and fewer bytes between; `blocks=1/N` and `coins=1/N` have fewer of these. Several with commas.
    /// Default: the full size
    #[arg(long, value_name = "SCALE")]
    scale: Option<Scale>,

    /// Seed of all random numbers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Use dummy bytes instead of signatures: faster, but only for validation that assumes scripts valid
    #[arg(long)]
    unsigned: bool,

    /// Threads that sign; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    par: u16,

    /// Also record the set at these heights, not only at the tip
    #[arg(long, value_name = "HEIGHT", value_delimiter = ',')]
    set_at: Vec<Height>,

    /// Weight of full blocks
    #[arg(long, value_name = "WEIGHT", default_value_t = 4_000_000, hide = true)]
    block_weight: u32,

    /// Number of coinbase-only blocks at the end
    #[arg(long, value_name = "N", default_value_t = 2_100, hide = true)]
    tail_blocks: u32,
}

impl ContentArgs {
    fn options(&self) -> Result<MakeOptions, BenchError> {
        let is_history = self.profile == ChainProfile::MainHistory;
        let options = match (is_history, self.blocks, self.scale) {
            (true, first, scale) => {
                let whole = MakeOptions::history(scale.unwrap_or(Scale::FULL), self.seed);
                let blocks = whole.blocks.min(first.unwrap_or(u32::MAX));
                MakeOptions { blocks, ..whole }
            }
            (false, Some(blocks), None) => MakeOptions::new(blocks, self.seed),
            (false, None, None) => {
                return Err(BenchError::usage("give the number of full blocks with --blocks"));
            }
            (false, _, Some(_)) => {
                return Err(BenchError::usage(
                    "--scale is for --profile main-history; other chains need --blocks",
                ));
            }
        };
        Ok(MakeOptions {
            profile: self.profile,
            signed: !self.unsigned,
            threads: if self.par == 0 { cores() } else { self.par.into() },
            block_weight: self.block_weight,
            tail_blocks: self.tail_blocks,
            set_heights: self.set_at.clone(),
            ..options
        })
    }
}

#[derive(Debug, Args)]
#[command(after_help = MAKE_EXAMPLES)]
struct MakeArgs {
    #[command(flatten)]
    content: ContentArgs,

    /// Target folder; must be absent or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Write plain block files, as nodes before version 28 do, instead of XORing them with a key
    #[arg(long)]
    plain: bool,

    /// Write headers instead of block files: what `apus-bench chain serve` needs
    #[arg(long, conflicts_with = "plain")]
    headers_only: bool,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  The main chain at its own size, from a peer that needs 500 MB of disk:
    apus-bench chain serve --profile main-history --unsigned --dir full
    apus sync --chain regtest --connect 127.0.0.1:18444 --engine mergesync \\
         --assumevalid HASH --muhash --out snapshot:set.dat

  With all its blocks and coins, but a twentieth of its bytes, at another port:
    apus-bench chain serve --profile main-history --scale bytes=1/20 \\
         --unsigned --set-at 500000 --dir long --listen 127.0.0.1:18555

No header can be made without its block. So the first run makes the whole chain
once, and keeps its headers, its hints and the sets to expect in DIR; later runs
take them from there. Then each block is made again when a client asks for it,
in ascending order. `apus-bench chain info DIR` shows the sets to expect, and
the hash for --assumevalid.

The last blocks stay in memory. A client that asks for a lower one, for example
after it was killed, waits until the chain is made again up to that block.";

#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
struct ServeArgs {
    #[command(flatten)]
    content: ContentArgs,

    /// Folder of the headers; if it is absent or empty, they are made first
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// Address to listen on
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:18444")]
    listen: SocketAddr,

    /// Memory for blocks that may be asked for again, in MiB
    #[arg(
        long,
        value_name = "MiB",
        default_value_t = WINDOW_BYTES >> 20,
        value_parser = clap::value_parser!(u64).range(8..=1 << 20),
    )]
    window: u64,
}

#[derive(Debug, Args)]
struct InfoArgs {
    /// The folder of the chain
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Makes or describes a chain.
///
/// # Errors
/// If files cannot be written or read, or the command is interrupted.
pub fn command(args: &ChainArgs) -> Result<(), BenchError> {
    match &args.command {
        ChainCommand::Make(args) => make(args),
        ChainCommand::Serve(args) => serve(args),
        ChainCommand::Info(args) => info(args),
    }
}

fn make(args: &MakeArgs) -> Result<(), BenchError> {
    let options = MakeOptions {
        obfuscated: !args.plain,
        output: if args.headers_only { ChainOutput::Headers } else { ChainOutput::Files },
        ..args.content.options()?
    };
    let interrupt = watch_signals()?;
    made(&args.out, &options, &interrupt)
}

/// Makes a chain, and shows its progress and its result.
fn made(folder: &Path, options: &MakeOptions, interrupt: &AtomicBool) -> Result<(), BenchError> {
    let start = Instant::now();
    let mut last = start;
    let mut log = |progress| {
        if last.elapsed() >= LINE_INTERVAL {
            last = Instant::now();
            terminal::aside(line(progress, start.elapsed()));
        }
    };
    let made = maker::make(folder, options, interrupt, &mut log);
    let folder = folder.display();
    match made? {
        MadeChain::Before(manifest) => terminal::result(format_args!(
            "{folder}: this chain already exists: {}",
            in_short(&manifest)
        )),
        MadeChain::Now(manifest) => terminal::result(format_args!(
            "{folder}: {}, made in {:.1} s",
            in_short(&manifest),
            start.elapsed().as_secs_f64()
        )),
    }
}

/// Serves a chain until a signal comes.
fn serve(args: &ServeArgs) -> Result<(), BenchError> {
    let options = MakeOptions { output: ChainOutput::Headers, ..args.content.options()? };
    let interrupt = watch_signals()?;
    made(&args.dir, &options, &interrupt)?;
    let server = PeerServer::start(&args.dir, &options, args.listen, args.window << 20)?;
    terminal::result(format_args!("serving at {} until Ctrl-C", server.address()))?;
    let mut last = (server.progress(), Instant::now());
    while !interrupt.load(Ordering::Relaxed) {
        std::thread::sleep(SIGNAL_INTERVAL);
        let (now, since) = (server.progress(), last.1.elapsed());
        if now != last.0 && since >= LINE_INTERVAL {
            terminal::aside(served(now));
            last = (now, Instant::now());
        }
    }
    Ok(())
}

fn served((height, starts): (Height, u32)) -> String {
    let again = match starts {
        1 => String::new(),
        _ => format!(", started {starts} times"),
    };
    format!("serving: made up to block {}{again}", grouped(height.into()))
}

fn in_short(manifest: &ChainManifest) -> String {
    format!(
        "{} blocks, {}, {} coins",
        grouped(manifest.height.into()),
        bytes(manifest.bytes as f64),
        grouped(manifest.coins)
    )
}

fn line(progress: MakeProgress, elapsed: Duration) -> String {
    let rate = progress.bytes as f64 / elapsed.as_secs_f64().max(0.001);
    format!(
        "making: {} of {} full blocks, {} of {} in all, {}, {}/s",
        grouped(progress.busy.into()),
        grouped(progress.busy_total.into()),
        grouped(progress.blocks.into()),
        grouped(progress.blocks_total.into()),
        bytes(progress.bytes as f64),
        bytes(rate)
    )
}

fn info(args: &InfoArgs) -> Result<(), BenchError> {
    let path = args.folder.join(FILE_NAME);
    let manifest =
        ChainManifest::read(&args.folder).map_err(|error| BenchError::io(&path, error))?;
    terminal::result(described(&args.folder, &manifest))
}

/// A manifest in human-readable form.
fn described(folder: &Path, manifest: &ChainManifest) -> String {
    let ChainManifest { profile, seed, signed, obfuscated, .. } = manifest;
    let signed = if *signed { "signed" } else { "not signed: for validation that assumes scripts" };
    let files = if *obfuscated { "XORed with a key" } else { "plain" };
    let mut text =
        format!("{}: {profile}, seed {seed}, {signed}, files {files}\n", folder.display());
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<22}{value}");
    };
    row("blocks", grouped(manifest.height.into()));
    row("full blocks", grouped(manifest.busy_blocks.into()));
    row(
        "bytes of blocks",
        format!("{} ({})", grouped(manifest.bytes), bytes(manifest.bytes as f64)),
    );
    row("tip", manifest.tip_hash.clone());
    row("last full block", manifest.assumevalid_hash.clone());
    row("its height", grouped(manifest.assumevalid_height.into()));
    row("transactions", grouped(manifest.transactions));
    row("inputs", grouped(manifest.inputs));
    row("outputs", grouped(manifest.outputs));
    row("unspendable outputs", grouped(manifest.unspendable));
    row("coins at the tip", grouped(manifest.coins));
    row("their sum in satoshi", grouped(manifest.total_amount_sat));
    if let Some(scale) = &manifest.scale {
        row("scale", scale.clone());
    }
    for set in &manifest.sets {
        row(&format!("MuHash at {}", grouped(set.height.into())), set.muhash.clone());
        row("  coins", grouped(set.coins));
        row("  their sum", grouped(set.total_amount_sat));
    }
    let _ = writeln!(text, "spendable outputs, by script:");
    let spendable: u64 = manifest.scripts.values().sum();
    for (name, count) in &manifest.scripts {
        let _ = writeln!(text, "  {name:<22}{}", share(*count, spendable));
    }
    let _ = writeln!(text, "coins spent, by age in blocks:");
    for (blocks, count) in &manifest.spent_within {
        let name = format!("at most {}", grouped((*blocks).into()));
        let _ = writeln!(text, "  {name:<22}{}", share(*count, manifest.inputs));
    }
    text.trim_end().to_owned()
}

fn share(part: u64, whole: u64) -> String {
    let percent = 100.0 * part as f64 / whole.max(1) as f64;
    format!("{} ({percent:.1} %)", grouped(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_shows_every_number_of_a_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let options = MakeOptions {
            signed: false,
            block_weight: 40_000,
            tail_blocks: 1,
            ..MakeOptions::new(2, 3)
        };
        let made =
            maker::make(folder.path(), &options, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let MadeChain::Now(manifest) = made else { panic!("the folder was empty") };
        let text = described(Path::new("here"), &manifest);
        for part in [
            "here: mainnet-like, seed 3, not signed".to_owned(),
            "files XORed with a key".to_owned(),
            grouped(manifest.height.into()),
            grouped(manifest.bytes),
            manifest.tip_hash.clone(),
            manifest.assumevalid_hash.clone(),
            grouped(manifest.assumevalid_height.into()),
            grouped(manifest.transactions),
            grouped(manifest.inputs),
            grouped(manifest.outputs),
            grouped(manifest.unspendable),
            grouped(manifest.coins),
            grouped(manifest.total_amount_sat),
            "p2sh_p2wpkh".to_owned(),
            "at most 1,000 ".to_owned(),
            format!("{} (100.0 %)", grouped(manifest.inputs)),
        ] {
            assert!(text.contains(&part), "{part} in {text}");
        }
    }

    #[test]
    fn a_progress_line_has_amounts_and_speed() {
        let progress = MakeProgress {
            blocks: 1_200,
            blocks_total: 2_900,
            busy: 1_000,
            busy_total: 2_000,
            bytes: 50_000_000,
        };
        let line = line(progress, Duration::from_secs(5));
        for part in ["1,000 of 2,000 full", "1,200 of 2,900", "50.0 MB", "10.0 MB/s"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
}
