//! `apus bench`: a chain to measure with, the machine's floor, fetching, writing a
//! chainstate, blocks from peers, and runs side by side.

mod chain;
mod chainstate;
mod common;
mod decorate;
mod floor;
mod peers;
mod prevouts;
mod run;

use crate::failure::Failure;
use clap::{Args, Subcommand};

#[derive(Args)]
pub(crate) struct BenchArgs {
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
    Run(run::RunArgs),
}

pub(crate) fn command(args: &BenchArgs) -> Result<(), Failure> {
    match &args.command {
        BenchCommand::Chain(args) => chain::command(args),
        BenchCommand::Chainstate(args) => chainstate::command(args),
        BenchCommand::Decorate(args) => decorate::command(args),
        BenchCommand::Floor(args) => floor::command(args),
        BenchCommand::Peers(args) => peers::command(args),
        BenchCommand::Prevouts(args) => prevouts::command(args),
        BenchCommand::Run(args) => run::command(args),
    }
}
