//! `apus snapshot`: options and help of `info` and `verify`.

use super::values::AssumeValidArg;
use super::{AggregateArgs, RunArgs, SourceArgs, Validation};
use crate::unpack::Input;
use clap::{Args, Subcommand};

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
    Verify(Box<SnapshotVerifyArgs>),
}

const SNAPSHOT_INFO_EXAMPLES: &str = "\
Examples:
  apus snapshot info utxo.dat
  apus snapshot info utxo.dat --muhash";

#[derive(Args)]
#[command(after_help = SNAPSHOT_INFO_EXAMPLES)]
pub(crate) struct SnapshotInfoArgs {
    /// The file
    pub(crate) file: Input,
    /// Also compute the MuHash, which takes up to two microseconds a coin
    #[arg(long)]
    pub(crate) muhash: bool,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  Whether a snapshot is the UTXO set that the blocks of your node lead to:
    apus snapshot verify utxo.dat --blocksdir ~/.bitcoin/blocks

  Whether these blocks are valid, too, by every rule and script; as a node does
  that began with a snapshot:
    apus snapshot verify utxo.dat --blocksdir ~/.bitcoin/blocks \\
         --validation full

Without --validation Apus does not ask whether the blocks are valid, wherever
the snapshot stops. With it the snapshot and the undo data beside the blocks say
which coins are spent, and Apus trusts neither; where there are no undo data, it
goes over the blocks twice. It reads and checks all blocks: this takes as long
as `apus sync`, and goes on like it where it stopped when you give the same
command again.";

#[derive(Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct SnapshotVerifyArgs {
    /// The file
    pub(crate) file: Input,
    #[command(flatten)]
    pub(crate) source: SourceArgs,

    /// Check the blocks by every rule, too
    #[arg(long, value_enum)]
    pub(crate) validation: Option<Validation>,

    /// With --validation assumevalid, take the scripts of this block's ancestors for valid. The chain's
    /// default is that of Core
    #[arg(long, value_name = "HASH|0", requires = "validation")]
    pub(crate) assumevalid: Option<AssumeValidArg>,

    #[command(flatten)]
    pub(crate) proof: AggregateArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
