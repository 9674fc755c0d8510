//! Files of hints, of coins and of proofs: `apus hints`, `apus snapshot` and `apus utreexo`.

use super::values::parse_order;
use super::{AggregateArgs, AssumeArgs, HintsArg, RunArgs, SourceArgs};
use crate::args::ProgressArg;
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

#[derive(Args)]
pub(crate) struct UtreexoArgs {
    #[command(subcommand)]
    pub(crate) command: UtreexoCommand,
}

#[derive(Subcommand)]
pub(crate) enum UtreexoCommand {
    /// Make proofs and leaf data of what each block spends, in files of ranges with the roots before them
    Prove(ProveArgs),
    /// What files of proofs hold: blocks, leaves, roots, bytes
    Info(ProofsInfoArgs),
    /// Check every file of a folder: its form, its checksums, and that it begins where the one before it ends
    Check(ProofsCheckArgs),
    /// How many bytes of proofs a verifier needs that remembers some leaves until they are spent
    Caches(CachesArgs),
}

const PROVE_EXAMPLES: &str = "\
Examples:
  Proofs of all blocks of a node, into the folder `proofs`:
    apus utreexo prove --blocksdir ~/.bitcoin/blocks --out proofs

  On regtest, every script run, a file for each 1,000 blocks:
    apus utreexo prove --chain regtest --blocksdir ~/.bitcoin/regtest/blocks \\
         --assumevalid 0 --every 1000 --out proofs

  Later on, for the blocks that came since:
    apus utreexo prove --blocksdir ~/.bitcoin/blocks --out proofs

Apus judges blocks by every rule, as `apus sync` does without hints: it goes
over them twice, in any order. A proof holds with the roots before its
block, and each file begins with these, so that a verifier of its blocks needs
no other file. A file ends at heights that are multiples of --every; sooner
where memory is full.

Apus says how much disk it may take before it starts: records and the forest in
the work folder, up to 85 percent of the blocks' bytes, and files of proofs,
which on busy blocks have about 80 percent.

The forest is in the work folder, under `forest`, and stays there: a later run
with the same --out and --workdir goes over all blocks again, and makes the
proofs of those that are new. A run that was interrupted or killed goes on where
it stopped when the same command is given again.";

#[derive(Args)]
#[command(after_long_help = PROVE_EXAMPLES)]
pub(crate) struct ProveArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,

    /// The folder for the files, made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Blocks in a file: how often roots are given
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 18))]
    pub(crate) every: u32,

    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    /// The last block to make a proof of; the tip if not given
    #[arg(long, value_name = "HEIGHT")]
    pub(crate) stopatheight: Option<u32>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

const PROOFS_INFO_EXAMPLES: &str = "\
Examples:
  apus utreexo info proofs
  apus utreexo info proofs/proofs-00000001-00000101.dat";

#[derive(Args)]
#[command(after_long_help = PROOFS_INFO_EXAMPLES)]
pub(crate) struct ProofsInfoArgs {
    /// A folder of files of proofs, or one file
    #[arg(value_name = "DIR|FILE")]
    pub(crate) path: PathBuf,
}

const PROOFS_CHECK_EXAMPLES: &str = "\
Examples:
  apus utreexo check proofs

Apus reads every entry. It does not ask whether a proof holds with the roots
before its block: a verifier of the blocks finds that, and believes no file.";

#[derive(Args)]
#[command(after_long_help = PROOFS_CHECK_EXAMPLES)]
pub(crate) struct ProofsCheckArgs {
    /// A folder of files of proofs
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

const CACHES_EXAMPLES: &str = "\
Examples:
  What 1,000, 10,000 and 100,000 remembered leaves save of the proofs in the
  folder `proofs`:
    apus utreexo caches proofs

  Half a million leaves, looking ahead an hour and a day, and the table as JSON:
    apus utreexo caches proofs --leaves 500000 --look-ahead 6,144 \\
         --report caches.json

A verifier that remembers a leaf has its hash and data, knows where it is, and
keeps the nodes that prove it, from the block that adds the leaf to the one that
spends it. For such a leaf it is sent neither place nor data, and no hash that
it knows. The maker of the proofs says which leaves those are, by one of two
rules:

  clairvoyant  of all leaves that could be remembered those that are spent next
               (Belady's rule)
  look-ahead   leaves that are spent within so many blocks, while there is room;
               none is put out

What it takes to say so is not counted: with look-ahead a bit for each leaf that
is added.

The folder must have the proofs of all blocks from 1 on. Apus goes over it
twice. A proof with a place that leads to no leaf, or with other hashes than it
needs, is refused; whether hashes are the right ones is not asked.

Memory: four and a quarter bytes for each leaf that was ever added, so 13 GB for
the 3,083 million of the main chain at block 943,013, and some 50 bytes for each
leaf that a row has room for.";

#[derive(Args)]
#[command(after_long_help = CACHES_EXAMPLES)]
pub(crate) struct CachesArgs {
    /// A folder of files of proofs from block 1 on
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,

    /// How many leaves are remembered at most: one number, or some with commas between
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0,1000,10000,100000",
        value_parser = clap::value_parser!(u32)
    )]
    pub(crate) leaves: Vec<u32>,

    /// Within how many blocks a leaf is spent that look-ahead remembers: one number, or some with commas between
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',', default_value = "10,100,1000")]
    pub(crate) look_ahead: Vec<u32>,

    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// How progress is shown on standard error
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto)]
    pub(crate) progress: ProgressArg,
}
