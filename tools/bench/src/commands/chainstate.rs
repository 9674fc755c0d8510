//! `apus-bench chainstate`: writing a chainstate, beside copying its bytes.

use super::{ScratchFolder, own_program, write_json};
use crate::terminal::{self, watch_signals};
use apus_bench::BenchError;
use apus_bench::chainstate::{self, ChainstateFolder, ChainstatePart, ChainstatePlan};
use apus_bench::run::BenchMachine;
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

const CHAINSTATE_EXAMPLES: &str = "\
Examples:
  Ten million made-up coins, on the disk of the folder for temporary files:
    apus-bench chainstate

  On another disk, for other programs:
    apus-bench chainstate --coins 50000000 --dir /mnt/disk/scratch \\
         --json chainstate.json

  Without a disk, to see the processor's part alone:
    apus-bench chainstate --dir /dev/shm/scratch

Three times the chainstate's bytes must fit there: some 70 bytes a coin.";

#[derive(Args)]
#[command(after_help = CHAINSTATE_EXAMPLES)]
pub(crate) struct ChainstateArgs {
    /// Coins of the set
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    coins: u64,

    /// Folder to work in, on the disk to measure; what is made there is removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Rounds: how often each is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Do one part in the folder: what this command starts itself for
    #[arg(long, value_name = "PART", hide = true, requires = "dir", value_parser = part)]
    part: Option<ChainstatePart>,
}

fn part(name: &str) -> Result<ChainstatePart, String> {
    ChainstatePart::of_name(name).ok_or_else(|| "no part".to_owned())
}

pub(crate) fn command(args: &ChainstateArgs) -> Result<(), BenchError> {
    // Asked before anything here makes a load of its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    if let (Some(part), Some(folder)) = (args.part, &args.dir) {
        return chainstate::part(&ChainstateFolder::new(folder), part, args.coins, &interrupt);
    }
    let program = own_program()?;
    let scratch = ScratchFolder::open(args.dir.as_deref(), "apus-bench-chainstate")?;
    let command = |part: ChainstatePart| {
        let mut command = Command::new(&program);
        command.args(["chainstate", "--coins", &args.coins.to_string()]);
        command.args(["--part", part.name(), "--dir"]).arg(&scratch.folder);
        command
    };
    let plan = ChainstatePlan {
        place: ChainstateFolder::new(&scratch.folder),
        coins: args.coins,
        rounds: args.rounds,
    };
    let found = chainstate::measure(&plan, machine, &command, &interrupt, &mut |line: String| {
        terminal::aside(line);
    })?;
    if let Some(path) = &args.json {
        write_json(path, &found)?;
    }
    terminal::result(chainstate::table(&found).text())
}
