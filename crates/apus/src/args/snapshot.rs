//! `apus snapshot`: options and help of `info` and `verify`.

use super::{AggregateArgs, RunArgs, SourceArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// What a UTXO snapshot holds: base block, coins, amount, hashes
    Info(SnapshotInfoArgs),
    /// Compute the set from blocks and compare
    Verify(SnapshotVerifyArgs),
}

const SNAPSHOT_INFO_EXAMPLES: &str = "\
Examples:
  apus snapshot info utxo.dat
  apus snapshot info utxo.dat --muhash";

#[derive(Args)]
#[command(after_help = SNAPSHOT_INFO_EXAMPLES)]
pub(crate) struct SnapshotInfoArgs {
    /// The file
    pub(crate) file: PathBuf,
    /// Also compute the MuHash, which takes up to two microseconds a coin
    #[arg(long)]
    pub(crate) muhash: bool,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  Whether a snapshot is the UTXO set that the blocks of your node lead to:
    apus snapshot verify utxo.dat --blocksdir ~/.bitcoin/blocks

Whether the blocks are valid is not asked, wherever the snapshot stops.
All blocks are read and checked: this takes as long as `apus sync`, and goes on like it where it
stopped when the same command is given again.";

#[derive(Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct SnapshotVerifyArgs {
    /// The file
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) proof: AggregateArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
