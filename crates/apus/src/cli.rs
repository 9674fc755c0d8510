//! [`Cli`]: the command line, which names a command and has its arguments.

use crate::args::{HintsArgs, ReindexArgs, SnapshotArgs, SyncArgs, UtreexoArgs, VerifyArgs};
#[cfg(feature = "bench")]
use crate::bench::BenchArgs;
#[cfg(feature = "cluster")]
use crate::cluster::ClusterArgs;
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsCommandArgs;
#[cfg(feature = "bench")]
use crate::plot::PlotArgs;
use crate::submit::SubmitArgs;
use crate::version;
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  For bash, from the next shell on:
    mkdir -p ~/.local/share/bash-completion/completions
    apus completions bash > ~/.local/share/bash-completion/completions/apus

  For zsh and fish:
    apus completions zsh > ~/.zfunc/_apus
    apus completions fish > ~/.config/fish/completions/apus.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  For one user, read by `man apus` and `man apus-sync`:
    mkdir -p ~/.local/share/man/man1
    apus man ~/.local/share/man/man1";

/// Turns Bitcoin's block history into a validated UTXO set, as fast as the hardware allows.
#[derive(Parser)]
#[command(
    name = "apus",
    version = version::short(),
    long_version = version::long(),
    after_help = "Every option can be given by the environment, too: --dbcache as APUS_DBCACHE. What the \
                  command line says counts more.\n\n\
                  Exit codes: 0 done; 1 usage or configuration; 2 invalid blocks or hints, or a set \
                  that does not balance; 3 input or output; 130 interrupted, progress kept.\n\n\
                  `apus sync --help` shows examples."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Compute the UTXO set from blocks
    Sync(SyncArgs),
    /// Rebuild the chainstate of a stopped Bitcoin Core node
    Reindex(ReindexArgs),
    /// Check whether what a Bitcoin Core node believes is true, and change nothing
    Verify(VerifyArgs),
    /// Look at, check and convert hints for SwiftSync
    Hints(HintsArgs),
    /// Look at and verify UTXO snapshots
    Snapshot(SnapshotArgs),
    /// Make proofs of what each block spends, look at them and check them
    Utreexo(UtreexoArgs),
    /// Judge blocks given line by line, as a node does: a tool for tests and comparisons
    Submit(SubmitArgs),
    /// Look at coins on servers, and copy sets of coins there
    #[cfg(feature = "remote-coins")]
    Coins(CoinsCommandArgs),
    /// Share a run among machines
    #[cfg(feature = "cluster")]
    Cluster(ClusterArgs),
    /// Measure: a chain to do it with, the machine's floor, runs side by side
    #[cfg(feature = "bench")]
    Bench(BenchArgs),
    /// Draw runs: height over time, and ratios between them
    #[cfg(feature = "bench")]
    Plot(PlotArgs),
    /// Write what a shell needs to complete commands and options
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// For which shell; its own documentation says where the output goes
        shell: Shell,
    },
    /// Write manual pages, one for each command
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Where to: a folder that is there
        folder: PathBuf,
    },
}

impl Cli {
    /// What the command line and the environment say.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::whole_command().try_get_matches()?)
    }

    /// The command with all that belongs to it: each option has a variable of the environment.
    pub(crate) fn whole_command() -> clap::Command {
        with_variables(Self::command())
    }
}

fn with_variables(command: clap::Command) -> clap::Command {
    let named = |arg: Arg| match arg.get_long().filter(|long| !["help", "version"].contains(long)) {
        Some(long) => {
            let variable = format!("APUS_{}", long.to_uppercase().replace('-', "_"));
            // Told once for all options; beside each it would be half of the help.
            arg.env(variable).hide_env(true)
        }
        None => arg,
    };
    command.mut_args(named).mut_subcommands(with_variables)
}
