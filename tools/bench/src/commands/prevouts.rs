//! `apus-bench prevouts`: what fetching a block's coins on several threads gains.

use super::{Latency, write_json};
use crate::terminal::{self, watch_signals};
use apus_bench::BenchError;
use apus_bench::prevouts::{self, CoinsPlace, MadeUpCoins, PrevoutsPlan, StoredCoins};
use apus_bench::run::BenchMachine;
use apus_engine::utxo::CoinsView;
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PREVOUTS_EXAMPLES: &str = "\
Examples:
  What threads gain, from a map in memory to a server far away; some minutes:
    apus-bench prevouts

  Eight threads and a disk, for other programs:
    apus-bench prevouts --latency 500us --threads 8 --rounds 5 \\
         --json prevouts.json

  The real store with a small cache, on the disk of a folder (filled with the
  coins first); to see the disk and not the system's page cache, empty that
  before:
    apus-bench prevouts --store coins.bench --coins 20000000 --latency 0

  A block of 2,856 transactions, of 2.5 inputs each, on servers, as a run asks
  them:
    apus-bench prevouts --store redis://10.0.0.1:6379/bench --inputs 7140 \\
         --coins 400000 --latency 0 --threads 2

The thread that takes the coins does nothing else here, so this is the most that
there is to gain.";

#[derive(Args)]
#[command(after_help = PREVOUTS_EXAMPLES)]
pub(crate) struct PrevoutsArgs {
    /// How long each look-up waits before it answers: 0, or a number with us, ms or s; several with
    /// commas between
    #[arg(long, value_name = "TIMES", value_delimiter = ',', default_value = "0,50us,500us,5ms")]
    latency: Vec<Latency>,

    /// Numbers of threads beside the one that takes the coins; 0 is measured in any case
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,8,16,64", value_parser = clap::value_parser!(u16).range(0..=1024))]
    threads: Vec<u16>,

    /// Inputs of a block
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    inputs: u32,

    /// Coins to choose from
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    coins: u32,

    /// Rounds: how often each is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Keep the coins in a store, which is filled with them if they are not there: in a folder, or on servers
    /// that are named as for `apus sync --coins`, under a name of their own
    #[arg(long, value_name = "DIR|URL")]
    store: Option<String>,

    /// Memory for the store's cache, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    store_cache: u64,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn command(args: &PrevoutsArgs) -> Result<(), BenchError> {
    // Asked before anything here makes a load of its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    let place = match &args.store {
        None => CoinsPlace::Memory,
        Some(store) if store.contains("://") => CoinsPlace::Servers,
        Some(_) => CoinsPlace::Store,
    };
    let plan = PrevoutsPlan {
        place,
        coins: args.coins,
        inputs: args.inputs,
        latencies: args.latency.iter().map(|latency| latency.0).collect(),
        threads: args.threads.iter().map(|&threads| threads.into()).collect(),
        rounds: args.rounds,
    };
    let view: Arc<dyn CoinsView> = match &args.store {
        None => Arc::new(MadeUpCoins::new(args.coins)),
        Some(store) => Arc::new(stored(args, place, store)?),
    };
    let mut tell = |line: String| terminal::aside(line);
    let prevouts = prevouts::measure(&plan, machine, &view, &interrupt, &mut tell)?;
    if let Some(path) = &args.json {
        write_json(path, &prevouts)?;
    }
    terminal::result(prevouts::table(&prevouts).text())
}

/// The coins in a store, of which those are put there that it lacks.
fn stored(args: &PrevoutsArgs, place: CoinsPlace, store: &str) -> Result<StoredCoins, BenchError> {
    if let CoinsPlace::Servers = place {
        return on_servers(store, args.coins);
    }
    terminal::aside(format_args!("the store in {store} gets the coins that it lacks"));
    StoredCoins::open(Path::new(store), args.coins, args.store_cache << 20)
}

#[cfg(feature = "remote-coins")]
use super::servers::stored as on_servers;

#[cfg(not(feature = "remote-coins"))]
fn on_servers(_: &str, _: u32) -> Result<StoredCoins, BenchError> {
    Err(super::without_servers("--store"))
}
