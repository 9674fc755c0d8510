//! `apus-bench run`: Apus and Bitcoin Core on the same blocks, compared.

use crate::commands::{Against, ApusProgram, ScratchFolder, cores, now, own_program, write_json};
use crate::error::BenchError;
use crate::maker::{self, MakeOptions};
use crate::run::matrix::{
    BenchProfile, Grid, ThreadCount, aggregates, first_of_each, has_aggregates, profiles, subjects,
};
use crate::run::{
    Attachments, BenchChain, BenchRecord, PageCache, SessionPlan, chart, markdown, node, session,
    tables, utc,
};
use crate::terminal::{self, watch_signals};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::{env, fs};

const RUN_EXAMPLES: &str = "\
Examples:
  Compare the sets of Apus and bitcoind on a small generated chain:
    apus-bench run --profile quick --against bitcoind

  Compare their speed on a chain of 1 GB, and keep a full record:
    apus-bench chain make --blocks 620 --out chain
    apus-bench run --profile full --against bitcoind --chain-dir chain \\
         --record record

  The engines without hints, with scripts skipped and validated, each against a
  node with the same settings:
    apus-bench run --profile connect --against bitcoind --record record

  The same on 1 GB with scripts skipped, with normal and with little memory:
    apus-bench run --profile rules --against bitcoind --record record

  Writing a chainstate, compared with a bitcoind that makes no look-ups for
  BIP-30, as on the main chain:
    apus-bench run --profile chainstate --against bitcoind \\
         --bitcoind \"$(scripts/core)\" --record record

  Roots of the Utreexo forest, proofs, and blocks validated by them:
    apus-bench run --profile utreexo --against bitcoind --record record

  Speed by chain length:
    apus-bench run --profile full --chain-dir short --chain-dir long \\
         --aggregate sha256

Every run is a separate process; all kinds are interleaved, round after round.
Results are compared before times: a difference ends the command with exit code
4.";

/// Measure Apus, optionally against Bitcoin Core, and print ratios
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct BenchRunArgs {
    /// The benchmark: quick compares results on little work; full measures the gain from hints, connect the
    /// engines without hints, rules their gain if scripts are skipped, chainstate and chainstate-full the
    /// time until a node can start on the result, undo and undo-full the gain from a node's undo data,
    /// utreexo the cost and gain of Utreexo roots and proofs
    #[arg(long, default_value = "quick", value_parser = PossibleValuesParser::new(profile_values()))]
    profile: String,

    /// The apus to measure; default: the one next to this program, or on PATH
    #[arg(long, value_name = "FILE")]
    apus: Option<PathBuf>,

    /// Another program to run on the same blocks
    #[arg(long, value_enum)]
    against: Option<Against>,

    /// The bitcoind to run; default: $BITCOIND_EXE, the one on PATH, or in a checkout the one that
    /// scripts/bitcoind fetches
    #[arg(long, value_name = "FILE", requires = "against")]
    bitcoind: Option<PathBuf>,

    /// A generated chain, made by `apus-bench chain make`; repeatable. Default: one made for this benchmark
    #[arg(long, value_name = "DIR")]
    chain_dir: Vec<PathBuf>,

    /// Folder for intermediate files; it is kept, so that a chain or a node's data is reused. Default: a
    /// temporary folder, which is removed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Number of rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,

    /// Worker threads of Apus, a list; 0 for one on each core
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(0..=1024))]
    par: Vec<u16>,

    /// Memory for Apus and bitcoind, in MiB, a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    dbcache: Vec<u64>,

    /// Kinds of proof, a list of none, sha256 and muhash
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = PossibleValuesParser::new(aggregates()))]
    aggregate: Vec<String>,

    /// Drop the block files from the page cache before each run
    #[arg(long)]
    cold: bool,

    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Draw the times as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write all of these, the reports and the node's logs into a new folder
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
}

fn profile_values() -> impl Iterator<Item = PossibleValue> {
    profiles().into_iter().map(|profile| PossibleValue::new(profile.name).help(profile.about))
}

/// Runs the benchmark, writes and shows the results.
///
/// # Errors
/// If a program fails, results differ, or the command is interrupted.
pub fn command(args: &BenchRunArgs) -> Result<(), BenchError> {
    let name = &args.profile;
    let profile = BenchProfile::named(name)
        .ok_or_else(|| BenchError::usage(format!("unknown profile {name}")))?;
    if let Some(folder) = &args.record {
        expect_new(folder)?;
    }
    let bitcoind = match args.against {
        Some(Against::Bitcoind) => {
            let program = node::find(args.bitcoind.as_deref())?;
            node::version(&program)?;
            Some(program)
        }
        None => None,
    };
    let apus = ApusProgram::find(args.apus.as_deref())?;
    let (own, interrupt) = (own_program()?, watch_signals()?);
    let scratch = ScratchFolder::open(args.dir.as_deref(), "apus-bench-run")?;
    let mut subjects = subjects(&grids(args, &profile), cores());
    if bitcoind.is_some() {
        subjects.extend(profile.nodes(&args.dbcache));
    }
    let plan = SessionPlan {
        profile: profile.name,
        timed: profile.timed,
        program: &apus.program,
        version: &apus.version,
        commit: apus.commit.as_deref(),
        features: apus.features.iter().map(String::as_str).collect(),
        command: line(),
        chains: chains(args, &profile, &scratch.folder, &interrupt)?,
        subjects,
        no_interpreter: apus.no_interpreter(),
        bitcoind: bitcoind.as_deref(),
        rounds: args.runs.unwrap_or(profile.rounds),
        page_cache: if args.cold { PageCache::Dropped } else { PageCache::Warm },
        floor: profile.timed.then_some(own.as_path()),
        scratch: &scratch.folder,
        now: now(),
    };
    let mut log = |line: String| terminal::aside(line);
    let (record, attachments) = session(&plan, &interrupt, &mut log)?;
    write(args, &record, &attachments)?;
    for note in &record.notes {
        terminal::result(format_args!("* {note}"))?;
    }
    terminal::result("")?;
    tables(&record).iter().try_for_each(|table| terminal::result(table.text()))
}

/// The command line as given, with folders reduced to their last component: full paths are private to the
/// user.
fn line() -> Vec<String> {
    let short = |argument: String| match Path::new(&argument).file_name() {
        Some(name) if argument.contains('/') => name.to_string_lossy().into_owned(),
        _ => argument,
    };
    env::args().map(short).collect()
}

/// The runs of Apus: the profile's, unless the command line overrides them.
fn grids(args: &BenchRunArgs, profile: &BenchProfile) -> Vec<Grid> {
    let mut grids = profile.grids.clone();
    if !(args.par.is_empty() && args.dbcache.is_empty() && args.aggregate.is_empty()) {
        // The options define the runs, so the first grid of each kind only fills in the missing values.
        grids = first_of_each(grids);
    }
    if !args.aggregate.is_empty() {
        grids.retain(|grid| has_aggregates(&grid.engine));
    }
    for grid in &mut grids {
        if !args.par.is_empty() {
            let threads = |&par: &u16| match par {
                0 => ThreadCount::Cores,
                count => ThreadCount::Count(count.into()),
            };
            grid.par = args.par.iter().map(threads).collect();
        }
        if !args.dbcache.is_empty() {
            grid.dbcache_mib.clone_from(&args.dbcache);
        }
        if !args.aggregate.is_empty() {
            grid.aggregates.clone_from(&args.aggregate);
        }
    }
    grids
}

/// The given chains, or one made for the profile.
fn chains(
    args: &BenchRunArgs,
    profile: &BenchProfile,
    scratch: &Path,
    interrupt: &AtomicBool,
) -> Result<Vec<BenchChain>, BenchError> {
    if !args.chain_dir.is_empty() {
        let mut chains: Vec<BenchChain> = Vec::new();
        for folder in &args.chain_dir {
            let chain = BenchChain::in_folder(folder)?;
            if chains.iter().any(|other| other.name == chain.name) {
                return Err(BenchError::usage(format!(
                    "two chains are called {}: rename one of their folders",
                    chain.name
                )));
            }
            chains.push(chain);
        }
        return Ok(chains);
    }
    let folder = scratch.join(format!("chain-{}", profile.name));
    let options = MakeOptions {
        threads: cores(),
        block_weight: profile.chain.block_weight,
        ..MakeOptions::new(profile.chain.blocks, 1)
    };
    terminal::aside(format_args!("making a chain of {} full blocks", options.blocks));
    maker::make(&folder, &options, interrupt, &mut |_| {})?;
    Ok(vec![BenchChain::in_folder(&folder)?])
}

/// Writes the requested files.
fn write(
    args: &BenchRunArgs,
    record: &BenchRecord,
    attachments: &Attachments,
) -> Result<(), BenchError> {
    if let Some(path) = &args.json {
        write_json(path, record)?;
    }
    if let Some(path) = &args.markdown {
        write_text(path, &markdown(record))?;
    }
    if let Some(path) = &args.svg {
        draw(path, record)?;
    }
    let Some(folder) = &args.record else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|error| BenchError::io(folder, error))?;
    write_json(&folder.join("run.json"), record)?;
    write_text(&folder.join("run.md"), &markdown(record))?;
    draw(&folder.join("run.svg"), record)?;
    for (name, bytes) in attachments {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|error| BenchError::io(&path, error))?;
    }
    Ok(())
}

fn draw(path: &Path, record: &BenchRecord) -> Result<(), BenchError> {
    let picture = chart(record).ok_or_else(|| BenchError::usage("the record contains no chain"))?;
    write_text(path, &picture)
}

fn write_text(path: &Path, text: &str) -> Result<(), BenchError> {
    fs::write(path, text).map_err(|error| BenchError::io(path, error))
}

/// Requires an empty or absent folder, so that a record does not mix with other files.
fn expect_new(folder: &Path) -> Result<(), BenchError> {
    let empty = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(BenchError::io(folder, error)),
    };
    if empty {
        return Ok(());
    }
    let today = utc(now());
    let day = today.split('T').next().unwrap_or_default();
    Err(BenchError::usage(format!(
        "{} is not empty: use a new folder, such as \
         bench/runs/{day}-HOST",
        folder.display()
    )))
}
