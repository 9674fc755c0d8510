//! `apus bench prevouts`: what fetching a block's coins on several threads gains.

use super::common::{Latency, write_json};
use crate::failure::{Failure, INTERRUPTED, INVALID, IO};
use crate::interrupt::watch_signals;
use crate::print;
use apus_bench::prevouts::{
    self, CoinsPlace, Event, MadeUpCoins, Plan, PrevoutsError, StoredCoins,
};
use apus_bench::run::Machine;
use apus_engine::utxo::CoinsView;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;

const PREVOUTS_EXAMPLES: &str = "\
Examples:
  What threads gain, from a map in memory to a server far away; some minutes:
    apus bench prevouts

  Eight threads and a disk, for other programs:
    apus bench prevouts --latency 500us --threads 8 --rounds 5 --json prevouts.json

  The real store with a small cache, on the disk of a folder (filled with the coins first); to see
  the disk and not the system's page cache, empty that before:
    apus bench prevouts --store coins.bench --coins 20000000 --latency 0

The thread that takes the coins does nothing else here, so this is the most that there is to gain.";

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

    /// Keep the coins in a store in this folder, which is filled with them if they are not there
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,

    /// Memory for the store's cache, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    store_cache: u64,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl From<PrevoutsError> for Failure {
    fn from(error: PrevoutsError) -> Self {
        let code = match error {
            PrevoutsError::Threads { .. } | PrevoutsError::Store(_) => IO,
            PrevoutsError::Wrong { .. } => INVALID,
            PrevoutsError::Interrupted => INTERRUPTED,
        };
        Self::new(code, error.to_string())
    }
}

pub(crate) fn command(args: &PrevoutsArgs) -> Result<(), Failure> {
    // Asked before anything here makes a load of its own.
    let machine = Machine::here();
    let interrupt = watch_signals()?;
    let plan = Plan {
        place: if args.store.is_some() { CoinsPlace::Store } else { CoinsPlace::Memory },
        coins: args.coins,
        inputs: args.inputs,
        latencies: args.latency.iter().map(|latency| latency.0).collect(),
        threads: args.threads.iter().map(|&threads| threads.into()).collect(),
        rounds: args.rounds,
    };
    let view: Arc<dyn CoinsView> = match &args.store {
        None => Arc::new(MadeUpCoins::new(args.coins)),
        Some(folder) => {
            print::aside(format_args!(
                "the store in {} gets the coins that it lacks",
                folder.display()
            ));
            let stored = StoredCoins::open(folder, args.coins, args.store_cache << 20);
            Arc::new(stored.map_err(PrevoutsError::from)?)
        }
    };
    let mut tell = |event: Event| print::aside(event);
    let prevouts = prevouts::measure(&plan, machine, &view, &interrupt, &mut tell)?;
    if let Some(path) = &args.json {
        write_json(path, &prevouts)?;
    }
    print::result(prevouts::table(&prevouts).text())
}
