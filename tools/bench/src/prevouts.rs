//! `apus-bench prevouts`: the gain from fetching a block's coins on several threads.
//!
//! A block has a few thousand inputs that spend randomly chosen coins of a generated set. Its coins are
//! fetched in order, as a connecting thread takes them, with different numbers of helper threads, and with
//! different look-up latencies that simulate a disk or a server. The connecting thread does nothing else, so
//! this is an upper bound of the gain; to measure a whole sync, run one.
//!
//! Every returned coin is compared with the stored one.

use crate::commands::{Latency, show};
use crate::error::BenchError;
use crate::machine::BenchMachine;
use crate::table::{MeasuredSpread, TextTable, grouped};
use crate::terminal::{self, watch_signals};
use apus_engine::utxo::CoinsView;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) mod coins;
pub(crate) mod measure;
#[cfg(feature = "remote-coins")]
mod servers;

use coins::{MadeUpCoins, StoredCoins};
use measure::measure;

/// Version of the JSON form. New fields keep it; changed meanings increment it.
pub const VERSION: u32 = 1;

/// The results of `apus-bench prevouts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prevouts {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that ran the benchmark.
    pub machine: BenchMachine,
    /// Where coins are stored.
    pub place: CoinsPlace,
    /// Number of coins.
    pub coins: u32,
    /// Inputs of a block.
    pub inputs: u32,
    /// Number of rounds; each measures all variants once, in alternating order.
    pub rounds: u32,
    /// Results by look-up latency.
    pub latencies: Vec<AtLatency>,
}

/// Where coins are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoinsPlace {
    /// In a map.
    Memory,
    /// In a store on a disk.
    Store,
    /// On servers.
    Servers,
}

/// Results with one latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AtLatency {
    /// Latency of a look-up, in microseconds.
    pub latency_us: u64,
    /// Blocks in each round.
    pub blocks: u32,
    /// By number of threads.
    pub measured: Vec<WithThreads>,
}

/// Results with a given number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithThreads {
    /// Helper threads; `None` for a plain loop in the consumer thread.
    pub threads: Option<usize>,
    /// Time for all coins of a block, by rounds.
    pub block_ms: MeasuredSpread,
    /// Ratio of the time without threads to this one, by rounds; its median is the ratio of the medians.
    pub times_faster: Option<MeasuredSpread>,
}

// ---- the command ----

const PREVOUTS_EXAMPLES: &str = "\
Examples:
  Gain from threads, from a map in memory to a remote server; takes minutes:
    apus-bench prevouts

  Eight threads and a disk, with JSON output:
    apus-bench prevouts --latency 500us --threads 8 --rounds 5 \\
         --json prevouts.json

  The real store with a small cache, on the disk of a folder (filled with the
  coins first); to measure the disk, empty the system's page cache first:
    apus-bench prevouts --store coins.bench --coins 20000000 --latency 0

  A block of 2,856 transactions of 2.5 inputs each, on servers, with a sync's
  batches:
    apus-bench prevouts --store redis://10.0.0.1:6379/bench --inputs 7140 \\
         --coins 400000 --latency 0 --threads 2

The consumer thread does nothing else here, so this is an upper bound of the
gain.";

/// Measure the gain from fetching the coins of a block on several threads
#[derive(Debug, Args)]
#[command(after_help = PREVOUTS_EXAMPLES)]
pub struct PrevoutsArgs {
    /// Latencies of a look-up: 0, or a number with us, ms or s; separated by commas
    #[arg(long, value_name = "TIMES", value_delimiter = ',', default_value = "0,50us,500us,5ms")]
    latency: Vec<Latency>,

    /// Numbers of helper threads; 0 is always measured
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,8,16,64", value_parser = clap::value_parser!(u16).range(0..=1024))]
    threads: Vec<u16>,

    /// Inputs of a block
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    inputs: u32,

    /// Coins to choose from
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    coins: u32,

    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Keep the coins in a store, adding missing ones: a folder, or servers as in `apus sync --coins`, under
    /// a separate name
    #[arg(long, value_name = "DIR|URL")]
    store: Option<String>,

    /// Memory for the store's cache, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    store_cache: u64,

    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl PrevoutsArgs {
    fn place(&self) -> CoinsPlace {
        match &self.store {
            None => CoinsPlace::Memory,
            Some(store) if store.contains("://") => CoinsPlace::Servers,
            Some(_) => CoinsPlace::Store,
        }
    }
}

/// Measures, writes and shows the results.
///
/// # Errors
/// If a store or a thread fails, a returned coin differs from the stored one, or the command is interrupted.
pub fn command(args: &PrevoutsArgs) -> Result<(), BenchError> {
    // Read the load before this benchmark adds its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    let view: Arc<dyn CoinsView> = match &args.store {
        None => Arc::new(MadeUpCoins::new(args.coins)),
        Some(store) => Arc::new(stored(args, store)?),
    };
    let mut log = |line: String| terminal::aside(line);
    let found = measure(args, machine, &view, &interrupt, &mut log)?;
    show(args.json.as_deref(), &found, &table(&found))
}

/// Opens the store in a folder and adds the missing coins.
fn stored(args: &PrevoutsArgs, store: &str) -> Result<StoredCoins, BenchError> {
    if let CoinsPlace::Servers = args.place() {
        return on_servers(store, args.coins);
    }
    terminal::aside(format_args!("{store}: adding missing coins"));
    StoredCoins::open(Path::new(store), args.coins, args.store_cache << 20)
}

#[cfg(feature = "remote-coins")]
use servers::stored as on_servers;

#[cfg(not(feature = "remote-coins"))]
fn on_servers(_: &str, _: u32) -> Result<StoredCoins, BenchError> {
    Err(BenchError::without_servers("--store"))
}

// ---- tables ----

/// All times, compared with the times without threads.
pub fn table(prevouts: &Prevouts) -> TextTable {
    let columns = ["latency", "threads", "block ms", "least", "greatest", "times faster", "least"];
    let place = match prevouts.place {
        CoinsPlace::Memory => "memory",
        CoinsPlace::Store => "a store",
        CoinsPlace::Servers => "a store on servers",
    };
    let title = format!(
        "Coins of a block of {} inputs, of {} coins in {place}, {} rounds",
        grouped(prevouts.inputs.into()),
        grouped(prevouts.coins.into()),
        prevouts.rounds,
    );
    let mut table = TextTable::new(title, &columns);
    for at in &prevouts.latencies {
        for with in &at.measured {
            table.row(row(at.latency_us, with));
        }
    }
    table
}

fn row(latency_us: u64, with: &WithThreads) -> [String; 7] {
    let WithThreads { threads, block_ms, times_faster } = with;
    let waits = match latency_us {
        0 => "not".to_owned(),
        us if us % 1000 == 0 => format!("{} ms", us / 1000),
        us => format!("{us} us"),
    };
    let threads = match threads {
        None => "a plain loop".to_owned(),
        Some(0) => "off".to_owned(),
        Some(threads) => threads.to_string(),
    };
    let ms = |value: f64| format!("{value:.3}");
    let times = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    [
        waits,
        threads,
        ms(block_ms.median),
        ms(block_ms.min),
        ms(block_ms.max),
        times(times_faster.map(|spread| spread.median)),
        times(times_faster.map(|spread| spread.min)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use apus_chain::OutPoint;
    use apus_engine::utxo::{CoinBytes, CoinsView, StoreError};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn plan() -> PrevoutsArgs {
        PrevoutsArgs {
            latency: vec![Latency(Duration::from_micros(20)), Latency(Duration::ZERO)],
            threads: vec![2, 0, 2],
            inputs: 20,
            coins: 50,
            rounds: 2,
            store: None,
            store_cache: 8,
            json: None,
        }
    }

    fn view(coins: u32) -> Arc<dyn CoinsView> {
        Arc::new(MadeUpCoins::new(coins))
    }

    /// A measurement of minimal size.
    fn small() -> Prevouts {
        let mut lines = Vec::new();
        let mut log = |line: String| lines.push(line);
        let found =
            measure(&plan(), BenchMachine::here(), &view(50), &AtomicBool::new(false), &mut log);
        assert_eq!(lines[0], "latency 20 us: round 1 of 2");
        assert!(lines.iter().any(|line| line == "latency 0 us: round 2 of 2"));
        found.unwrap()
    }

    #[test]
    fn every_variant_is_measured() {
        let found = small();
        let threads = |at: &AtLatency| at.measured.iter().map(|with| with.threads).collect();
        let measured: Vec<(u64, Vec<_>)> =
            found.latencies.iter().map(|at| (at.latency_us, threads(at))).collect();
        let (waits, not) = (vec![Some(0), Some(2)], vec![None, Some(0), Some(2)]);
        assert_eq!(measured, [(20, waits), (0, not)]);
        for with in found.latencies.iter().flat_map(|at| &at.measured) {
            assert!(with.block_ms.min > 0.0, "{with:?}");
            let times = with.times_faster.unwrap();
            assert!(times.min <= times.median && times.median <= times.max, "{with:?}");
            if with.threads == Some(0) {
                assert_eq!(times.median, 1.0);
            }
        }
        let text = table(&found).text();
        for words in ["20 us", "a plain loop", "off", "20 inputs"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }

    #[test]
    fn a_wrong_coin_ends_the_job() {
        let interrupt = AtomicBool::new(false);
        // Some of the requested coins are missing.
        let error =
            measure(&plan(), BenchMachine::here(), &view(25), &interrupt, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("came back as None"), "{error}");
        interrupt.store(true, Ordering::Relaxed);
        let error =
            measure(&plan(), BenchMachine::here(), &view(50), &interrupt, &mut |_| ()).unwrap_err();
        assert!(error.kind() == ErrorKind::Interrupted, "{error}");
    }

    struct Broken;

    impl CoinsView for Broken {
        fn coin(&self, _: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
            Err(StoreError::Io { place: "here".to_owned(), error: "gone".to_owned() })
        }
    }

    #[test]
    fn a_failing_store_ends_the_job() {
        let interrupt = AtomicBool::new(false);
        let view: Arc<dyn CoinsView> = Arc::new(Broken);
        let error =
            measure(&plan(), BenchMachine::here(), &view, &interrupt, &mut |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "here: gone");
    }
}
