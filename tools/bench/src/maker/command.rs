//! `apus-bench chain`: makes and describes chains for benchmarks.

use crate::commands::cores;
use crate::error::BenchError;
use crate::maker::{self, ChainProfile, MadeChain, MakeOptions, MakeProgress};
use crate::manifest::{ChainManifest, FILE_NAME};
use crate::table::{bytes, grouped};
use crate::terminal::{self, watch_signals};
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between progress lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Make a chain for benchmarks
#[derive(Debug, Args)]
pub struct ChainArgs {
    #[command(subcommand)]
    command: ChainCommand,
}

#[derive(Debug, Subcommand)]
enum ChainCommand {
    /// Make a regtest chain shaped like the main chain
    Make(MakeArgs),
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

DIR gets blocks/ with Bitcoin Core's blk*.dat files, chain.hints (BIP-456) and,
last, manifest.json. The same arguments give the same bytes on every machine. A
chain starts with about two hundred blocks that make its first coins, and ends
with 2,100 coinbase-only blocks, as many as a node needs above a block to
assume its scripts valid.";

#[derive(Debug, Args)]
#[command(after_help = MAKE_EXAMPLES)]
struct MakeArgs {
    /// The shape of the chain
    #[arg(long, value_enum, default_value_t = ChainProfile::MainnetLike)]
    profile: ChainProfile,

    /// Number of full blocks, about 1.8 MB each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    blocks: u32,

    /// Seed of all random numbers
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Target folder; must be absent or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Use dummy bytes instead of signatures: faster, but only for validation that assumes scripts valid
    #[arg(long)]
    unsigned: bool,

    /// Write plain block files, as nodes before version 28 do, instead of XORing them with a key
    #[arg(long)]
    plain: bool,

    /// Threads that sign; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    par: u16,

    /// Weight of full blocks
    #[arg(long, value_name = "WEIGHT", default_value_t = 4_000_000, hide = true)]
    block_weight: u32,

    /// Number of coinbase-only blocks at the end
    #[arg(long, value_name = "N", default_value_t = 2_100, hide = true)]
    tail_blocks: u32,
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
        ChainCommand::Info(args) => info(args),
    }
}

fn make(args: &MakeArgs) -> Result<(), BenchError> {
    let options = MakeOptions {
        profile: args.profile,
        blocks: args.blocks,
        seed: args.seed,
        signed: !args.unsigned,
        obfuscated: !args.plain,
        threads: if args.par == 0 { cores() } else { args.par.into() },
        block_weight: args.block_weight,
        tail_blocks: args.tail_blocks,
    };
    let interrupt = watch_signals()?;
    let start = Instant::now();
    let mut last = start;
    let mut log = |progress| {
        if last.elapsed() >= LINE_INTERVAL {
            last = Instant::now();
            terminal::aside(line(progress, start.elapsed()));
        }
    };
    let made = maker::make(&args.out, &options, &interrupt, &mut log);
    let folder = args.out.display();
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
    use std::sync::atomic::AtomicBool;

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
