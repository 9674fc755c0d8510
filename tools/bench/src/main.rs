//! The `apus-bench` program: measures Apus, and what it is measured against.
//!
//! Nothing here is needed to validate blocks. Progress goes to standard error, results to standard
//! output, and exit codes are those of `apus`. What is measured of Apus as a whole is another
//! process, of the program `apus`.

mod commands;
mod failure;
mod terminal;

use clap::{Parser, Subcommand};
use commands::{chain, chainstate, decorate, floor, peers, prevouts, run};
use failure::{Failure, USAGE};
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
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    Run(run::RunArgs),
}

fn main() -> ExitCode {
    apus_sync::ask_for_open_files();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // Asking for help is no mistake; anything else is one of usage.
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    match command(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            terminal::aside(format_args!("apus-bench: {message}"));
            ExitCode::from(code)
        }
    }
}

fn command(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Chain(args) => chain::command(args),
        Command::Chainstate(args) => chainstate::command(args),
        Command::Decorate(args) => decorate::command(args),
        Command::Floor(args) => floor::command(args),
        Command::Peers(args) => peers::command(args),
        Command::Prevouts(args) => prevouts::command(args),
        Command::Run(args) => run::command(args),
    }
}
