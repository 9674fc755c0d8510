//! `apus-bench decorate`: what it takes to look up the coins of a block through a batcher.

use super::Latency;
use apus_bench::BenchError;
use clap::Args;
use std::path::PathBuf;

const DECORATE_EXAMPLES: &str = "\
Examples:
  A block of 1,000 transactions, a store that takes 500 us, from 1 to 64
  callers:
    apus-bench decorate

  A store across a country, for other programs:
    apus-bench decorate --latency 20ms --concurrency 1,8 --rounds 5 \\
         --json decorate.json

\"Whole block\": each caller hands in all it has and says that the block is
complete, so no timer is waited for. \"Each transaction\": it takes a
transaction's coins before it hands in the next one's. Each batcher has two
blocks, as a node's has many; \"first\" is what the first of them takes.
\"Callers alone\" only wait for one answer, without a batcher. The last column
is what Teranode published of its batcher for the default block.";

#[derive(Args)]
#[command(after_help = DECORATE_EXAMPLES)]
pub(crate) struct DecorateArgs {
    /// Transactions of a block
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tx: u32,

    /// Inputs of each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    inputs: u32,

    /// How long the store takes for a call: 0, or a number with us, ms or s
    #[arg(long, value_name = "TIME", default_value = "500us")]
    latency: Latency,

    /// Numbers of callers
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16,64", value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: Vec<u16>,

    /// Coins of a full batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// How long a coin may wait for others to join its batch
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    deadline: Latency,

    /// Batches under way at most
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: u16,

    /// Rounds: how often each is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[cfg(not(feature = "remote-coins"))]
pub(crate) fn command(_: &DecorateArgs) -> Result<(), BenchError> {
    Err(super::without_servers("decorate"))
}

#[cfg(feature = "remote-coins")]
pub(crate) fn command(args: &DecorateArgs) -> Result<(), BenchError> {
    use crate::terminal::{self, watch_signals};
    use apus_bench::decorate::{self, DecoratePlan};
    use apus_bench::run::BenchMachine;
    // Asked before anything here makes a load of its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    let inputs = u64::from(args.tx) * u64::from(args.inputs);
    if inputs > 10_000_000 {
        return Err(BenchError::usage(format!("{inputs} inputs: ask for 10000000 at most")));
    }
    let plan = DecoratePlan {
        txs: args.tx,
        inputs: args.inputs,
        latency: args.latency.0,
        callers: args.concurrency.iter().map(|&callers| callers.into()).collect(),
        batch: args.batch as usize,
        deadline: args.deadline.0,
        in_flight: args.in_flight.into(),
        rounds: args.rounds,
    };
    let mut tell = |line: String| terminal::aside(line);
    let found = decorate::measure(&plan, machine, &interrupt, &mut tell)?;
    if let Some(path) = &args.json {
        super::write_json(path, &found)?;
    }
    terminal::result(decorate::table(&found).text())
}
