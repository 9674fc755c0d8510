//! Arguments of the commands for a node's data directory: `apus plan`, `reindex`, `verify`.

use super::IndexesArg;
use super::values::{parse_mib, parse_order, parse_sighints};
use super::{AggregateArgs, AssumeArgs, ConnectArgs, EngineArg, HintsArg, RunArgs, SinkArg};
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsArgs;
use crate::failure::Failure;
use crate::node::NodeFolders;
use apus_chain::Network;
use apus_sync::engines::swiftsync::hints::BitOrder;
use clap::Args;
use std::path::PathBuf;

/// A node's data directory.
#[derive(Args)]
pub(crate) struct NodeArgs {
    /// Chain; by default the chain of the blocks
    ///
    /// main, test, testnet4, signet or regtest. By default, Apus detects the chain from the blocks.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// The node's data directory
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: PathBuf,

    /// Folder with the node's block files, if outside --datadir
    ///
    /// Needed only if the node has -blocksdir on its own command line. Apus reads the node's bitcoin.conf itself.
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,
}

impl NodeArgs {
    /// Finds the node's blocks and coins.
    pub(crate) fn folders(&self) -> Result<NodeFolders, Failure> {
        NodeFolders::find(&self.datadir, self.chain, self.blocksdir.as_deref())
    }
}

const PLAN_EXAMPLES: &str = "\
Examples:
  What rebuilding a node's coins from its blocks would take:
    apus plan --datadir ~/.bitcoin

  The same with hints:
    apus plan --datadir ~/.bitcoin --hints snapshot:utxo.dat

  A data directory from a folder of blocks, with every script checked and
  temporary files on another disk:
    apus plan --blocksdir /mnt/disk/blocks --assumevalid 0 \\
         --out datadir:node --workdir /fast/work

  The same in order, with the engine utxo, and with Bitcoin Core's indexes:
    apus plan --blocksdir /mnt/disk/blocks --engine utxo --out datadir:node \\
         --index all

Apus writes nothing. It reads and checks a sample of the blocks from all over
the files, which takes a few seconds. It reads a folder of up to 200 MB
completely, and counts the coins exactly. It warns of missing block files. A
table shows what each of three methods needs: with hints (--hints), without
hints (no option), and in order (--engine utxo). Apus derives the times from the
speed at which it read and checked the sample. They are right within a factor of
two. Looking up coins on a slow disk takes longer. If Apus could not measure the
disk, the times are lower bounds.

Exit codes: 0 if at least one method fits this machine; 3 if no method fits.
Apus says what each method lacks.";

#[derive(Args)]
#[command(after_long_help = PLAN_EXAMPLES)]
pub(crate) struct PlanArgs {
    /// Chain; by default the chain of the blocks
    ///
    /// main, test, testnet4, signet or regtest. By default, Apus detects the chain from the blocks.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// A node's data directory: plan to rebuild its coins
    ///
    /// Estimates what `apus reindex --replace` needs.
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: Option<PathBuf>,

    /// A folder with Core's blk*.dat files: plan to write --out
    ///
    /// Estimates what `apus sync` needs. With --datadir, give the folder of the node's own -blocksdir option.
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// Hints for the sync: a BIP-456 hintsfile, or `snapshot:FILE`
    #[arg(long, value_name = "HINTS")]
    pub(crate) hints: Option<HintsArg>,

    /// Engine that computes the set; by default swiftsync with hints, utxo with --coins, otherwise mergesync. Apus
    /// cannot estimate utreexo
    #[arg(long, value_enum, hide_short_help = true)]
    pub(crate) engine: Option<EngineArg>,

    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    /// Output of the sync, as for `apus sync`; may be repeated
    #[arg(long, value_name = "SINK", default_value = "null", conflicts_with = "datadir")]
    pub(crate) out: Vec<SinkArg>,

    /// Keep only the last 288 blocks in `datadir:DIR`
    #[arg(long)]
    pub(crate) prune: bool,

    #[command(flatten)]
    pub(crate) index: IndexesArg,

    /// Include the time to compute the MuHash of the set
    #[arg(long)]
    pub(crate) muhash: bool,

    /// Folder for temporary files
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Disk space for temporary files, such as 64G
    #[arg(long, value_name = "SIZE", value_parser = super::values::parse_size)]
    pub(crate) scratch: Option<u64>,

    /// Memory for buffers, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = parse_mib)]
    pub(crate) dbcache: u64,

    /// Worker threads; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    #[cfg(feature = "remote-coins")]
    #[command(flatten)]
    pub(crate) coins: CoinsArgs,
}

const REINDEX_EXAMPLES: &str = "\
Examples:
  Rebuild a node's coins from its blocks, as `bitcoind -reindex-chainstate`
  does:
    bitcoin-cli stop
    apus reindex --datadir ~/.bitcoin --replace
    bitcoind

  In minutes, with hints for a block that the node has:
    apus reindex --datadir ~/.bitcoin --replace --hints main.hints

Stop the node first; it cannot start while Apus works. The new chainstate ends
at the best block that the node's index has as valid and has undo data for, and
the node continues from there. Apus replaces a chainstate with an older one only
if you add --replace-with-older. It writes the new chainstate next to the old
one. At the end it moves the old one to chainstate.old, or to chainstate.old-2
and so on if earlier ones exist. Old folders stay until you remove them. With
hints, Apus assumes scripts valid up to the block where the hints stop, as the
node itself does, or refuses the hints. `apus sync --help` says what else Apus
assumes. It does not touch blocks, undo data and indexes.

Interrupted or killed runs resume: rerun the same command.";

#[derive(Args)]
#[command(after_long_help = REINDEX_EXAMPLES)]
pub(crate) struct ReindexArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Which coins survive: a BIP-456 hintsfile, or `snapshot:FILE`
    ///
    /// The latter is a UTXO snapshot. Without hints, Apus checks every rule for every block.
    #[arg(long, value_name = "HINTS")]
    pub(crate) hints: Option<HintsArg>,

    /// Bit order of the hintsfile, if Apus cannot detect it
    #[arg(long, value_name = "msb|lsb", hide_short_help = true, value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,

    #[command(flatten)]
    pub(crate) index: IndexesArg,

    /// Move an existing chainstate to chainstate.old
    ///
    /// Or to chainstate.old-2 and so on, if chainstate.old exists. Old folders stay until you remove them.
    #[arg(long)]
    pub(crate) replace: bool,

    /// Like --replace, but even if the new chainstate is older
    ///
    /// The new chainstate is older if the node's index ends below the existing chainstate.
    #[arg(long)]
    pub(crate) replace_with_older: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    #[command(flatten)]
    pub(crate) proof: AggregateArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  Audit your node, running every script again:
    apus verify --datadir ~/.bitcoin

  In a fraction of the time, skipping the scripts that the node itself skipped:
    apus verify --datadir ~/.bitcoin --assumevalid default

  At low priority next to the running node, with a report for other programs:
    nice -n 19 ionice -c 3 apus verify --datadir ~/.bitcoin --report verify.json

Apus checks headers, blocks, undo data, block index and coins against each other
and against every rule. It neither writes nor locks the node's files, so the
node may keep running. Apus copies the node's coins once from the disk, where
they are some way behind the tip. The copy takes as much disk as the coins. Apus
prints how much disk it needs at most, and refuses to start if that is not free.
It checks the blocks above the copied coins, and the blocks of other branches,
one by one: by every rule, if their undo data are right. On a pruned node it can
check only these. The checks that take seconds come first: the index, and what
the index says about files.

If Apus finds a problem, it reads all blocks once more to locate it. It prints
one line per kind of problem, with file, offset, height and hash of the first,
and the fix. That takes disk for up to nine tenths of the blocks, or more time
if this is not free. Apus does not check the node's other indexes, its wallets
and its mempool.

Exit codes: 0 no problem; 2 the node accepted an invalid block; 3 Apus could not
read the node; 4 another problem.

Interrupted or killed runs resume, with the coins that they copied at first:
rerun the same command.";

#[derive(Args)]
#[command(after_long_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    /// Write hints about the signatures of all scripts that are run: `sighints:FILE`
    ///
    /// They make a later command faster: `--sighints FILE`.
    #[arg(long, value_name = "SINK", hide_short_help = true, value_parser = parse_sighints)]
    pub(crate) out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
