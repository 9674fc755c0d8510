//! The `apus-bench` program: measures Apus, and its competitors.
//!
//! Validating blocks needs none of this. Progress goes to standard error, results to standard output, and
//! exit codes match those of `apus`. Benchmarks of Apus as a whole start the program `apus` as another
//! process.

#[cfg(feature = "remote-coins")]
use apus_bench::decorate;
use apus_bench::maker::command as chain;
use apus_bench::run::command as run;
use apus_bench::terminal::{self, INTERRUPTED};
use apus_bench::{BenchError, ErrorKind, chainstate, floor, peers, prevouts};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures Apus: makes a test chain, finds the machine's lower bound, compares programs.
#[derive(Parser)]
#[command(
    name = "apus-bench",
    version,
    after_help = "Exit codes: 0 done; 1 usage or configuration; 2 an invalid block; 3 input or output; 4 \
                  results differ, or inputs do not match; 130 interrupted.\n\n\
                  `apus-bench run --help` shows examples."
)]
struct BenchCli {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Make a chain for benchmarks, or serve one
    Chain(chain::ChainArgs),
    /// Measure writing a chainstate, compared with copying its bytes
    Chainstate(chainstate::ChainstateArgs),
    /// Measure looking up the coins of a block through a batcher
    Decorate(decorate::DecorateArgs),
    /// Measure the limits of this machine, and the lower bound they set on the time of a chain
    Floor(floor::FloorArgs),
    /// Measure getting blocks from nodes on this machine, compared with a bare reader and Bitcoin Core
    Peers(peers::PeersArgs),
    /// Measure the gain from fetching the coins of a block on several threads
    Prevouts(prevouts::PrevoutsArgs),
    /// Measure Apus, optionally against Bitcoin Core, and print ratios
    Run(run::BenchRunArgs),
}

/// Stands in for the command in a build without support for remote coins: returns an error.
#[cfg(not(feature = "remote-coins"))]
mod decorate {
    use apus_bench::BenchError;

    /// Options, which this build does not read.
    #[derive(clap::Args)]
    pub(crate) struct DecorateArgs {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _options: Vec<String>,
    }

    pub(crate) fn command(_: &DecorateArgs) -> Result<(), BenchError> {
        Err(BenchError::without_servers("decorate"))
    }
}

fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Usage => 1,
        ErrorKind::Invalid => 2,
        ErrorKind::Io => 3,
        ErrorKind::Wrong => 4,
        ErrorKind::Interrupted => INTERRUPTED,
    }
}

fn main() -> ExitCode {
    apus_sync::ask_for_open_files();
    let cli = match BenchCli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // A request for help is not an error; anything else is a usage error.
            return ExitCode::from(if error.use_stderr() {
                exit_code(ErrorKind::Usage)
            } else {
                0
            });
        }
    };
    match command(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::aside(format_args!("apus-bench: {error}"));
            ExitCode::from(exit_code(error.kind()))
        }
    }
}

fn command(command: &BenchCommand) -> Result<(), BenchError> {
    match command {
        BenchCommand::Chain(args) => chain::command(args),
        BenchCommand::Chainstate(args) => chainstate::command(args),
        BenchCommand::Decorate(args) => decorate::command(args),
        BenchCommand::Floor(args) => floor::command(args),
        BenchCommand::Peers(args) => peers::command(args),
        BenchCommand::Prevouts(args) => prevouts::command(args),
        BenchCommand::Run(args) => run::command(args),
    }
}
