//! Arguments of `apus hints` and `apus snapshot`, the commands for hints and UTXO snapshots.

use super::values::parse_order;
use super::{AggregateArgs, AssumeArgs, HintsArg, RunArgs, SourceArgs};
use crate::unpack::InputFile;
use apus_chain::{BlockHash, Network};
use apus_sync::engines::swiftsync::hints::{BitOrder, Format};
use clap::{Args, Subcommand};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args)]
pub(crate) struct HintsArgs {
    #[command(subcommand)]
    pub(crate) command: HintsCommand,
}

#[derive(Subcommand)]
pub(crate) enum HintsCommand {
    /// Show the facts about a hints file: heights, coins, size, encoding, bit order
    Info(HintsInfoArgs),
    /// Check hints against the blocks of a chain; write no UTXO set
    Check(HintsCheckArgs),
    /// Rewrite hints in another encoding
    Convert(HintsConvertArgs),
}

const INFO_EXAMPLES: &str = "\
Examples:
  apus hints info main.hints
  apus hints info main.bitmap --from bitmap
  apus hints info main.hints --by-height > coins.csv";

#[derive(Args)]
#[command(after_long_help = INFO_EXAMPLES)]
pub(crate) struct HintsInfoArgs {
    /// File with hints
    pub(crate) file: InputFile,
    /// Encoding of the file. Required for bitmap, delta, offsets and offsets-height, which have no magic number; Apus
    /// recognizes bip456, bip456-lsb and btcd
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<SourceFormat>,
    /// Bit order of BIP-456, if Apus cannot detect it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,
    /// Number of outputs in the chain up to the stop height, to show the bits per output
    #[arg(long, value_name = "N")]
    pub(crate) outputs: Option<u64>,
    /// Write a line of CSV for each block instead: its height, the coins that survive of it and, if the encoding has
    /// it, its number of outputs
    #[arg(long, conflicts_with = "outputs")]
    pub(crate) by_height: bool,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  Check whether hints that you received fit the blocks of your node:
    apus hints check main.hints --blocksdir ~/.bitcoin/blocks

Apus checks whether hints and blocks fit, not whether the blocks are valid, at
whatever height the hints stop. It reads all blocks, which takes as long as
`apus sync`. Interrupted or killed runs resume: rerun the same command.";

#[derive(Args)]
#[command(after_long_help = CHECK_EXAMPLES)]
pub(crate) struct HintsCheckArgs {
    /// Hintsfile, or `snapshot:FILE`
    #[arg(value_name = "FILE|snapshot:FILE")]
    pub(crate) hints: HintsArg,
    /// Bit order of the hintsfile, if Apus cannot detect it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) proof: AggregateArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

const CONVERT_HELP: &str = "\
Encodings:
  bip456          BIP-456, bits filled from the most significant one (the BIP's
                  vectors)
  bip456-lsb      the same, bits filled from the least significant one
                  (hintsfile crate 0.2)
  btcd            btcd's; reads plain or gzip, writes plain
  bitmap          one bit per output; holds blocks of at most 65,535 outputs
  delta           gaps between surviving outputs
  offsets         stop block, then indices
  offsets-height  stop height and block, then distances; read only

The last four also count unspendable outputs, the first three do not. To convert
from one group to the other Apus needs the blocks: give their folder with
--blocksdir.

Examples:
  For programs that use version 0.2 of the hintsfile crate:
    apus hints convert main.hints --to bip456-lsb --out main-0.2.hints

  A bitmap, which counts other outputs:
    apus hints convert main.hints --to bitmap --out main.bitmap \\
         --blocksdir ~/.bitcoin/blocks";

#[derive(Args)]
#[command(after_long_help = CONVERT_HELP)]
pub(crate) struct HintsConvertArgs {
    /// File to read
    pub(crate) file: InputFile,
    /// Encoding of FILE. Required for bitmap, delta, offsets and offsets-height, which have no magic number; Apus
    /// recognizes bip456, bip456-lsb and btcd
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<SourceFormat>,
    /// Encoding to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: TargetFormat,
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Bit order of the file to read, if Apus cannot detect it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,
    /// Chain; by default the chain of the blocks
    ///
    /// main, test, testnet4, signet or regtest. By default, Apus detects the chain from the blocks.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,
    /// Folder with Bitcoin Core's blk*.dat files, if the conversion needs the blocks
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,
    /// Stop block, for encodings that store it, if no blocks are given
    #[arg(long, value_name = "HASH")]
    pub(crate) stop_block: Option<BlockHash>,
}

/// An encoding that Apus reads.
#[derive(Clone, Copy)]
pub(crate) struct SourceFormat {
    pub(crate) format: Format,
    /// `None` if the encoding's name does not include it.
    pub(crate) order: Option<BitOrder>,
}

impl FromStr for SourceFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "bip456-lsb" {
            return Ok(Self { format: Format::Bip456, order: Some(BitOrder::LsbFirst) });
        }
        let format = text.parse::<Format>().map_err(|error| error.to_string())?;
        Ok(Self { format, order: None })
    }
}

/// An encoding that Apus writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TargetFormat {
    pub(crate) format: Format,
    pub(crate) order: BitOrder,
}

impl fmt::Display for TargetFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.order {
            BitOrder::LsbFirst => f.write_str("bip456-lsb"),
            BitOrder::MsbFirst => self.format.fmt(f),
        }
    }
}

impl FromStr for TargetFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "bip456-lsb" {
            return Ok(Self { format: Format::Bip456, order: BitOrder::LsbFirst });
        }
        let format = text
            .parse::<Format>()
            .map_err(|_| "use bip456, bip456-lsb, btcd, bitmap, delta or offsets".to_owned())?;
        Ok(Self { format, order: BitOrder::MsbFirst })
    }
}

#[derive(Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Show a UTXO snapshot's base block, coins, amount and hashes
    Info(SnapshotInfoArgs),
    /// Rebuild the UTXO set from blocks and compare
    Verify(Box<SnapshotVerifyArgs>),
    /// Write a set of coins as a table: SQLite, Parquet or CSV
    #[cfg(feature = "tables")]
    Export(super::ExportArgs),
    /// Find coins by address, script or descriptor
    #[cfg(feature = "tables")]
    Find(super::FindArgs),
}

const SNAPSHOT_INFO_EXAMPLES: &str = "\
Examples:
  apus snapshot info utxo.dat
  apus snapshot info utxo.dat --muhash";

#[derive(Args)]
#[command(after_long_help = SNAPSHOT_INFO_EXAMPLES)]
pub(crate) struct SnapshotInfoArgs {
    /// Snapshot file
    pub(crate) file: InputFile,
    /// Also compute the MuHash, which takes up to two microseconds per coin
    #[arg(long)]
    pub(crate) muhash: bool,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  Check whether a snapshot is the UTXO set that the blocks of your node produce:
    apus snapshot verify utxo.dat --blocksdir ~/.bitcoin/blocks

  Also validate these blocks by every rule and script, as a node that started
  from a snapshot does:
    apus snapshot verify utxo.dat --blocksdir ~/.bitcoin/blocks \\
         --assumevalid 0

Without --assumevalid, Apus does not check whether the blocks are valid, at
whatever height the snapshot stops. With --assumevalid, it takes the spent coins
from the snapshot and from the undo data next to the blocks, and trusts neither.
Without undo data it reads the blocks twice. Apus reads all blocks, which takes
as long as `apus sync`. Interrupted or killed runs resume: rerun the same
command.";

#[derive(Args)]
#[command(after_long_help = VERIFY_EXAMPLES)]
pub(crate) struct SnapshotVerifyArgs {
    /// Snapshot file
    pub(crate) file: InputFile,
    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    #[command(flatten)]
    pub(crate) proof: AggregateArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
