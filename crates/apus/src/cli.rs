//! [`Cli`]: the command line, which names a command and has its arguments.

use crate::args::{HintsArgs, ReindexArgs, SnapshotArgs, SyncArgs, UtreexoArgs, VerifyArgs};
#[cfg(feature = "bench")]
use crate::bench::BenchArgs;
#[cfg(feature = "cluster")]
use crate::cluster::ClusterArgs;
#[cfg(feature = "bench")]
use crate::plot::PlotArgs;
use crate::submit::SubmitArgs;
use clap::{Parser, Subcommand};

/// Turns Bitcoin's block history into a validated UTXO set, as fast as the hardware allows.
#[derive(Parser)]
#[command(
    name = "apus",
    version,
    after_help = "Exit codes: 0 done; 1 usage or configuration; 2 invalid blocks or hints, or a set \
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
    /// Share a run among machines
    #[cfg(feature = "cluster")]
    Cluster(ClusterArgs),
    /// Measure: a chain to do it with, the machine's floor, runs side by side
    #[cfg(feature = "bench")]
    Bench(BenchArgs),
    /// Draw runs: height over time, and ratios between them
    #[cfg(feature = "bench")]
    Plot(PlotArgs),
}
