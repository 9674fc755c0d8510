//! The command line. Ideas of Bitcoin Core's have Core's spelling.

use apus_chain::{BlockHash, Network};
use apus_engine::swiftsync::hints::{BitOrder, Format};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

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
    /// Look at, check and convert hints for SwiftSync
    Hints(HintsArgs),
    /// Look at and verify UTXO snapshots
    Snapshot(SnapshotArgs),
    /// Judge blocks given line by line, as a node does: a tool for tests and comparisons
    Submit(crate::submit::SubmitArgs),
    /// Measure: a chain to do it with, the machine's floor, runs side by side
    #[cfg(feature = "bench")]
    Bench(crate::bench::BenchArgs),
    /// Draw runs: height over time, and ratios between them
    #[cfg(feature = "bench")]
    Plot(crate::plot::PlotArgs),
}

const SYNC_EXAMPLES: &str = "\
Examples:
  The UTXO set of a node's blocks, as a snapshot that Bitcoin Core's dumptxoutset would write:
    apus sync --blocksdir ~/.bitcoin/blocks --hints main.hints --out snapshot:utxo.dat

  Without hints, every rule checked and every script run:
    apus sync --blocksdir ~/.bitcoin/blocks --validation full --out snapshot:utxo.dat

  The same on regtest, with a report for other programs:
    apus sync --chain regtest --blocksdir ~/.bitcoin/regtest/blocks \\
         --hints regtest.hints --out snapshot:utxo.dat --report run.json

  The same without any node, blocks from peers as fast as the line gives them:
    apus sync --hints main.hints --out chainstate:node/chainstate

  The same with all blocks, for a node that starts on it (its data directory is `node`):
    apus sync --hints main.hints --blocks keep --out chainstate:node/chainstate

  From one node of yours, and on with it from block to block until Ctrl-C:
    apus sync --connect 192.168.1.10 --hints main.hints --follow --out snapshot:utxo.dat

  A data directory for Bitcoin Core, with blocks, undo data, index and coins:
    apus sync --blocksdir /mnt/disk/blocks --out datadir:node

  Hints for others, from a snapshot of your own node:
    bitcoin-cli dumptxoutset utxo.dat latest
    apus sync --blocksdir ~/.bitcoin/blocks --hints snapshot:utxo.dat --out hints:main.hints

With hints, blocks up to where these stop are taken in any order. What is checked of them: every
block rule that needs no spent coins, that each coin spent existed and was spent exactly once (by
the aggregate), BIP-30, and the supply. What is assumed, as below Core's -assumevalid: scripts,
amounts of each block, and that coins were created before they were spent. Blocks above the hints,
and all where there are none, are connected in order, by every rule of Core's; scripts of ancestors
of the assumed-valid block are not run, under Core's conditions.

A run that was interrupted or killed goes on where it stopped when the same command is given again.";

#[derive(Args)]
#[command(after_help = SYNC_EXAMPLES)]
pub(crate) struct SyncArgs {
    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    pub(crate) chain: Network,

    /// Folder with Bitcoin Core's blk*.dat files, opened for reading only; without it, blocks come
    /// from peers
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) peers: PeerArgs,

    /// Which coins survive: a BIP-456 hintsfile, or `snapshot:FILE` for a UTXO snapshot. Needed by
    /// the engine swiftsync
    #[arg(long, value_name = "FILE|snapshot:FILE")]
    pub(crate) hints: Option<HintsArg>,

    /// How the set is computed: swiftsync if there are hints, else utxo
    #[arg(long, value_enum)]
    pub(crate) engine: Option<Engine>,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// What to write: `snapshot:FILE`, `hints:FILE`, `chainstate:DIR` (Bitcoin Core's coins),
    /// `datadir:DIR` (blocks, undo data, index and coins, for Bitcoin Core to start on) or `null`;
    /// may be given more than once
    #[arg(long, value_name = "SINK", default_value = "null")]
    pub(crate) out: Vec<SinkArg>,

    /// If the folder of `chainstate:DIR` is there already, move it aside, to DIR.old
    #[arg(long)]
    pub(crate) replace: bool,

    /// Leave blocks and undo data out of `datadir:DIR`: for a node that runs with -prune
    #[arg(long)]
    pub(crate) prune: bool,

    /// The height whose set is wanted, not below that of the hints; the tip if not given
    #[arg(long, value_name = "HEIGHT")]
    pub(crate) stopatheight: Option<u32>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// How blocks are had from peers.
#[derive(Args)]
#[command(next_help_heading = "Peers")]
pub(crate) struct PeerArgs {
    /// Connect to this node alone, by name or address, and `:PORT` if it is not the usual one; may be
    /// given more than once. Without any, peers are found
    #[arg(long, value_name = "NODE", conflicts_with = "blocksdir")]
    pub(crate) connect: Vec<String>,

    /// Go through this SOCKS5 proxy, as of Tor, for everything: names are not looked up here
    #[arg(long, value_name = "IP:PORT", conflicts_with = "blocksdir")]
    pub(crate) proxy: Option<SocketAddr>,

    /// Connections to make, where peers are found
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) maxconnections: u16,

    /// Use the encrypted transport (BIP-324) with peers that have it: 1 or 0
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) v2transport: u8,

    /// Hand headers and blocks to others who connect here: all blocks with `--blocks keep`. Without it
    /// no more than the last 32 MB are at hand, too few on the main chain to be offered, so nodes ask
    /// for none
    #[arg(long, value_name = "IP:PORT", conflicts_with = "blocksdir")]
    pub(crate) listen: Option<SocketAddr>,

    /// What becomes of the blocks: `keep` leaves them, with an index, in `blocks` beside the folder of
    /// --out chainstate:DIR, so that a node can start there
    #[arg(long, value_enum, default_value_t = BlocksArg::Discard)]
    pub(crate) blocks: BlocksArg,

    /// Stay at the tip, through new blocks and reorganisations; what --out names is written when it is
    /// interrupted
    #[arg(long, conflicts_with_all = ["blocksdir", "stopatheight"])]
    pub(crate) follow: bool,

    /// Give up after so many seconds in which no peer sent anything useful
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) patience: u16,
}

const REINDEX_EXAMPLES: &str = "\
Examples:
  A node's coins, anew from its blocks; what `bitcoind -reindex-chainstate` does:
    bitcoin-cli stop
    apus reindex --datadir ~/.bitcoin --replace
    bitcoind

  In minutes, with hints for a block that the node has:
    apus reindex --datadir ~/.bitcoin --replace --hints main.hints

The node must be stopped, and cannot start meanwhile. The new chainstate is at the best block that
the node's index has as valid and has undo data of; the node goes on from there. It is written beside
the old one and takes its place at the end; the old one is kept as chainstate.old until you remove
it. With hints, scripts up to where these stop are assumed valid, as the node itself did; see `apus
sync --help` for what else is. Blocks, undo data and indexes are not touched.

A run that was interrupted or killed goes on where it stopped when the same command is given again.";

#[derive(Args)]
#[command(after_help = REINDEX_EXAMPLES)]
pub(crate) struct ReindexArgs {
    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    pub(crate) chain: Network,

    /// The node's data directory
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: PathBuf,

    /// Which coins survive: a BIP-456 hintsfile, or `snapshot:FILE` for a UTXO snapshot. Without any,
    /// blocks are connected in order
    #[arg(long, value_name = "FILE|snapshot:FILE")]
    pub(crate) hints: Option<HintsArg>,

    /// If there is a chainstate already, move it aside, to chainstate.old
    #[arg(long)]
    pub(crate) replace: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// How blocks are connected in order.
#[derive(Args)]
pub(crate) struct ConnectArgs {
    /// What is verified of blocks that are connected in order
    #[arg(long, value_enum, default_value_t = Validation::Assumevalid)]
    pub(crate) validation: Validation,

    /// Take the scripts of this block's ancestors for valid, as Core does; 0 for none. The chain's
    /// default is that of Core
    #[arg(long, value_name = "HASH|0")]
    pub(crate) assumevalid: Option<AssumeValidArg>,

    /// Threads that fetch the coins which a block spends; 0 to look each up where it is needed
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) prevout_threads: u16,
}

/// A block hash, or `0` for none.
#[derive(Clone, Copy)]
pub(crate) struct AssumeValidArg(pub(crate) Option<BlockHash>);

impl FromStr for AssumeValidArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "0" => Ok(Self(None)),
            _ => text
                .parse()
                .map(|hash| Self(Some(hash)))
                .map_err(|_| "neither a block hash of 64 hexadecimal digits nor 0".to_owned()),
        }
    }
}

/// Where blocks come from.
#[derive(Args)]
pub(crate) struct SourceArgs {
    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    pub(crate) chain: Network,

    /// Folder with Bitcoin Core's blk*.dat files, opened for reading only
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: PathBuf,
}

/// How a run is done.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// The proof that hints are right: keyed SHA-256, or MuHash3072 (no key, half as fast)
    #[arg(long, value_enum, default_value_t = AggregateArg::Sha256)]
    pub(crate) aggregate: AggregateArg,

    /// Bit order of the hintsfile, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,

    /// Memory for buffers, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = clap::value_parser!(u64).range(4..=1 << 20))]
    pub(crate) dbcache: u64,

    /// Worker threads; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    /// Bytes of blocks in one segment, the unit of work and of progress kept; chosen from --dbcache
    /// if not given
    #[arg(long, value_name = "BYTES", hide_short_help = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) segment_bytes: Option<u64>,

    /// The longest that finished segments wait until they are made durable, in seconds: what a
    /// crash costs
    #[arg(long, value_name = "SECONDS", hide_short_help = true, default_value_t = 10, value_parser = clap::value_parser!(u16))]
    pub(crate) checkpoint_seconds: u16,

    /// Folder for progress; beside the first output, or in the current folder, if not given
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// How progress is shown on standard error
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto)]
    pub(crate) progress: ProgressArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// Blocks in any order, told by hints which coins survive; those above the hints by utxo
    Swiftsync,
    /// Blocks in ascending height, every rule, coins looked up
    Utxo,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Validation {
    /// Everything but the scripts of ancestors of the assumed-valid block
    Assumevalid,
    /// Everything
    Full,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum AggregateArg {
    Sha256,
    Muhash,
    /// No proof at all, to measure what one costs; nothing is written
    #[value(hide = true)]
    None,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ProgressArg {
    /// A bar on a terminal, lines elsewhere
    Auto,
    /// A line every few seconds
    Plain,
    /// One JSON object a line
    Json,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BlocksArg {
    Keep,
    Discard,
}

/// `FILE` or `snapshot:FILE`.
#[derive(Clone)]
pub(crate) enum HintsArg {
    File(PathBuf),
    Snapshot(PathBuf),
}

impl HintsArg {
    /// The file, whatever it is.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Snapshot(path) => path,
        }
    }
}

impl FromStr for HintsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("snapshot:") {
            Some("") => Err("snapshot: needs the name of a file".to_owned()),
            Some(path) => Ok(Self::Snapshot(path.into())),
            None if text.is_empty() => Err("name a file".to_owned()),
            None => Ok(Self::File(text.into())),
        }
    }
}

/// `snapshot:FILE`, `hints:FILE`, `chainstate:DIR`, `datadir:DIR` or `null`.
#[derive(Clone)]
pub(crate) enum SinkArg {
    Snapshot(PathBuf),
    Hints(PathBuf),
    Chainstate(PathBuf),
    Datadir(PathBuf),
    Null,
}

impl SinkArg {
    /// The file or folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Snapshot(path)
            | Self::Hints(path)
            | Self::Chainstate(path)
            | Self::Datadir(path) => Some(path),
            Self::Null => None,
        }
    }
}

impl FromStr for SinkArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("snapshot", path)) if !path.is_empty() => Ok(Self::Snapshot(path.into())),
            Some(("hints", path)) if !path.is_empty() => Ok(Self::Hints(path.into())),
            Some(("chainstate", path)) if !path.is_empty() => Ok(Self::Chainstate(path.into())),
            Some(("datadir", path)) if !path.is_empty() => Ok(Self::Datadir(path.into())),
            None if text == "null" => Ok(Self::Null),
            _ => {
                Err("use snapshot:FILE, hints:FILE, chainstate:DIR, datadir:DIR or null".to_owned())
            }
        }
    }
}

fn parse_order(text: &str) -> Result<BitOrder, String> {
    text.parse().map_err(|error: apus_engine::swiftsync::hints::elias_fano::UnknownBitOrder| {
        error.to_string()
    })
}

#[derive(Args)]
pub(crate) struct HintsArgs {
    #[command(subcommand)]
    pub(crate) command: HintsCommand,
}

#[derive(Subcommand)]
pub(crate) enum HintsCommand {
    /// What a file of hints says about itself: heights, coins, size, encoding, bit order
    Info(HintsInfoArgs),
    /// Prove hints right or wrong against a chain, writing no set
    Check(HintsCheckArgs),
    /// Rewrite hints in another encoding
    Convert(HintsConvertArgs),
}

const INFO_EXAMPLES: &str = "\
Examples:
  apus hints info main.hints
  apus hints info main.bitmap --from bitmap";

#[derive(Args)]
#[command(after_help = INFO_EXAMPLES)]
pub(crate) struct HintsInfoArgs {
    /// The file
    pub(crate) file: PathBuf,
    /// Its encoding, where it has no mark of its own: bip456, btcd, bitmap, delta, offsets or
    /// offsets-height
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<Format>,
    /// Bit order, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,
    /// How many outputs the chain has up to the stop height, to tell the bits for each
    #[arg(long, value_name = "N")]
    pub(crate) outputs: Option<u64>,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  Whether somebody's hints are right for the blocks of your node:
    apus hints check main.hints --blocksdir ~/.bitcoin/blocks

All blocks are read and checked: this takes as long as `apus sync`, and goes on like it where it
stopped when the same command is given again.";

#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct HintsCheckArgs {
    /// The hintsfile, or `snapshot:FILE`
    #[arg(value_name = "FILE|snapshot:FILE")]
    pub(crate) hints: HintsArg,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

const CONVERT_HELP: &str = "\
Encodings:
  bip456          BIP-456, bits filled from the most significant one (the BIP's vectors)
  bip456-lsb      the same, bits filled from the least significant one (hintsfile crate 0.2)
  btcd            btcd's, plain or gzip when read, plain when written
  bitmap          one bit an output; cannot hold blocks of more than 65,535 outputs
  delta           gaps between surviving outputs
  offsets         stop block, then indices
  offsets-height  stop height and block, then distances; read, not written

The last four count unspendable outputs too, the first three do not: to go from one kind to the
other the blocks are needed, and --blocksdir says where they are.

Examples:
  For programs that use version 0.2 of the hintsfile crate:
    apus hints convert main.hints --to bip456-lsb --out main-0.2.hints

  A bitmap, which counts other outputs:
    apus hints convert main.hints --to bitmap --out main.bitmap --blocksdir ~/.bitcoin/blocks";

#[derive(Args)]
#[command(after_help = CONVERT_HELP)]
pub(crate) struct HintsConvertArgs {
    /// The file to read
    pub(crate) file: PathBuf,
    /// Its encoding, where it has no mark of its own: bitmap, delta, offsets or offsets-height
    #[arg(long, value_name = "FORMAT")]
    pub(crate) from: Option<Format>,
    /// The encoding to write
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: TargetFormat,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Bit order of the file to read, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,
    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    pub(crate) chain: Network,
    /// Folder with Bitcoin Core's blk*.dat files, where the blocks are needed
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,
    /// The stop block, for encodings that name it, where no blocks are given
    #[arg(long, value_name = "HASH")]
    pub(crate) stop_block: Option<BlockHash>,
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
    pub(crate) run: RunArgs,
}
