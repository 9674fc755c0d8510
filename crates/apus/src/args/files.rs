//! Files of hints and of coins: `apus hints` and `apus snapshot`.

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
    /// What a file of hints says about itself: heights, coins, size, encoding, bit order
    Info(HintsInfoArgs),
    /// Prove whether hints fit the blocks of a chain, writing no set
    Check(HintsCheckArgs),
    /// Rewrite hints in another encoding
    Convert(HintsConvertArgs),
}

const INFO_EXAMPLES: &str = "\
Examples:
  apus hints info main.hints
  apus hints info main.bitmap --from bitmap";

#[derive(Args)]
#[command(after_long_help = INFO_EXAMPLES)]
pub(crate) struct HintsInfoArgs {
    /// The file
    pub(crate) file: InputFile,
    /// Its encoding, needed where it has no mark of its own: bitmap, delta, offsets or offsets-height.
    /// bip456, bip456-lsb and btcd have one
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<SourceFormat>,
    /// Bit order of BIP-456, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,
    /// How many outputs the chain has up to the stop height, to tell the bits for each
    #[arg(long, value_name = "N")]
    pub(crate) outputs: Option<u64>,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  Whether hints from elsewhere fit the blocks of your node:
    apus hints check main.hints --blocksdir ~/.bitcoin/blocks

Apus does not ask whether the blocks are valid, wherever the hints stop. It
reads and checks all blocks: this takes as long as `apus sync`, and goes on like
it where it stopped when you give the same command again.";

#[derive(Args)]
#[command(after_long_help = CHECK_EXAMPLES)]
pub(crate) struct HintsCheckArgs {
    /// The hintsfile, or `snapshot:FILE`
    #[arg(value_name = "FILE|snapshot:FILE")]
    pub(crate) hints: HintsArg,
    /// Bit order of the hintsfile, where the file itself does not settle it
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
  btcd            btcd's, plain or gzip when read, plain when written
  bitmap          one bit an output; cannot hold blocks of more than 65,535
                  outputs
  delta           gaps between surviving outputs
  offsets         stop block, then indices
  offsets-height  stop height and block, then distances; read, not written

The last four count unspendable outputs too, the first three do not: to go from
one kind to the other the blocks are needed, and --blocksdir says where they
are.

Examples:
  For programs that use version 0.2 of the hintsfile crate:
    apus hints convert main.hints --to bip456-lsb --out main-0.2.hints

  A bitmap, which counts other outputs:
    apus hints convert main.hints --to bitmap --out main.bitmap \\
         --blocksdir ~/.bitcoin/blocks";

#[derive(Args)]
#[command(after_long_help = CONVERT_HELP)]
pub(crate) struct HintsConvertArgs {
    /// The file to read
    pub(crate) file: InputFile,
    /// Its encoding, needed where it has no mark of its own: bitmap, delta, offsets or offsets-height.
    /// bip456, bip456-lsb and btcd have one
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<SourceFormat>,
    /// The encoding to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: TargetFormat,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Bit order of the file to read, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,
    /// Which chain; that of the blocks if not given
    ///
    /// main, test, testnet4, signet or regtest. If not given, the chain of the blocks that you name.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,
    /// Folder with Bitcoin Core's blk*.dat files, where the blocks are needed
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,
    /// The stop block, for encodings that name it, where no blocks are given
    #[arg(long, value_name = "HASH")]
    pub(crate) stop_block: Option<BlockHash>,
}

/// An encoding to read.
#[derive(Clone, Copy)]
pub(crate) struct SourceFormat {
    pub(crate) format: Format,
    /// Where its name says it.
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

/// An encoding to write.
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
#[command(after_long_help = SNAPSHOT_INFO_EXAMPLES)]
pub(crate) struct SnapshotInfoArgs {
    /// The file
    pub(crate) file: InputFile,
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
         --assumevalid 0

Without --assumevalid Apus does not ask whether the blocks are valid, wherever
the snapshot stops. With it the snapshot and the undo data beside the blocks say
which coins are spent, and Apus trusts neither; where there are no undo data, it
goes over the blocks twice. It reads and checks all blocks: this takes as long
as `apus sync`, and goes on like it where it stopped when you give the same
command again.";

#[derive(Args)]
#[command(after_long_help = VERIFY_EXAMPLES)]
pub(crate) struct SnapshotVerifyArgs {
    /// The file
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
