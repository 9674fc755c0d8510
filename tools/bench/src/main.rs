//! The `apus-bench` program: measures Apus, and what it is measured against.
//!
//! Nothing here is needed to validate blocks. Progress goes to standard error, results to standard
//! output, and exit codes are those of `apus`. What is measured of Apus as a whole is another
//! process, of the program `apus`.

#[cfg(feature = "remote-coins")]
use apus_bench::decorate;
use apus_bench::maker::command as chain;
use apus_bench::run::command as run;
use apus_bench::terminal::{self, INTERRUPTED};
use apus_bench::{BenchError, ErrorKind, chainstate, floor, peers, prevouts};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Measures Apus: a chain to do it with, the machine's floor, runs side by side.
#[derive(Parser)]
#[command(
    name = "apus-bench",
    version,
    after_help = "Exit codes: 0 done; 1 usage or configuration; 2 an invalid block; 3 input or output; 4 \
                  results differ, or what was given does not fit together; 130 interrupted.\n\n\
                  `apus-bench run --help` shows examples."
)]
struct BenchCli {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Make a chain to measure with
    Chain(chain::ChainArgs),
    /// Measure writing a chainstate, beside copying its bytes
    Chainstate(chainstate::ChainstateArgs),
    /// Measure looking up the coins of a block through a batcher
    Decorate(decorate::DecorateArgs),
    /// Measure the limits of this machine, and the least time a chain can take on it
    Floor(floor::FloorArgs),
    /// Measure getting blocks from nodes on this machine, beside a bare reader and Bitcoin Core
    Peers(peers::PeersArgs),
    /// Measure what fetching the coins of a block on several threads gains
    Prevouts(prevouts::PrevoutsArgs),
    /// Measure Apus, beside Bitcoin Core if wanted, and print ratios
    Run(run::BenchRunArgs),
}

/// The command of a program without coins on servers, which says so.
#[cfg(not(feature = "remote-coins"))]
mod decorate {
    use apus_bench::BenchError;

    /// Options, which this program does not read.
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
            // Asking for help is no mistake; anything else is one of usage.
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
