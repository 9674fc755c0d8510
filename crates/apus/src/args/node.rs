//! Commands for a node's own folder, and what a run would take: `apus plan`, `reindex`, `verify`.

use super::values::{parse_mib, parse_order};
use super::{AggregateArgs, AssumeArgs, ConnectArgs, EngineArg, HintsArg, RunArgs, SinkArg};
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsArgs;
use crate::failure::Failure;
use crate::node::NodeFolders;
use apus_chain::Network;
use apus_sync::engines::swiftsync::hints::BitOrder;
use clap::Args;
use std::path::PathBuf;

/// A node's own folder.
#[derive(Args)]
pub(crate) struct NodeArgs {
    /// Which chain; that of the blocks if not given
    ///
    /// main, test, testnet4, signet or regtest. If not given, the chain of the blocks that you name.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// The node's data directory
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: PathBuf,

    /// The folder of the node's block files, if it is elsewhere
    ///
    /// Where the node has one by -blocksdir on its own command line; what its bitcoin.conf says is known.
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,
}

impl NodeArgs {
    /// Where the node has its blocks and its coins.
    pub(crate) fn folders(&self) -> Result<NodeFolders, Failure> {
        NodeFolders::find(&self.datadir, self.chain, self.blocksdir.as_deref())
    }
}

const PLAN_EXAMPLES: &str = "\
Examples:
  What it would take to compute a node's coins again from its blocks:
    apus plan --datadir ~/.bitcoin

  The same with hints:
    apus plan --datadir ~/.bitcoin --hints snapshot:utxo.dat

  A data directory from a folder of blocks, every script run, with the progress
  on another disk:
    apus plan --blocksdir /mnt/disk/blocks --assumevalid 0 \\
         --out datadir:node --workdir /fast/work

  The same in order, by the engine utxo:
    apus plan --blocksdir /mnt/disk/blocks --engine utxo --out datadir:node

Apus writes nothing. It reads and checks some of the blocks, from all over the
files, which takes a few seconds; of a folder of up to 200 MB it takes all, and
counts the coins that they leave. It warns of missing block files. A table says
what each of three ways takes: with hints (--hints), without (no option), and in
order (--engine utxo). Times come from how fast the blocks were read from the
disk and checked, and are right within a factor of two; where a run looks coins
up on a slow disk, it takes longer. Where the disk could not be measured, they
are the least. Exit code 0: there is enough for one of the ways, and Apus names
it; 3: there is too little for each, and Apus says what would do.";

#[derive(Args)]
#[command(after_long_help = PLAN_EXAMPLES)]
pub(crate) struct PlanArgs {
    /// Which chain; that of the blocks if not given
    ///
    /// main, test, testnet4, signet or regtest. If not given, the chain of the blocks that you name.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// A node's data directory: compute its coins again
    ///
    /// As `apus reindex --replace` does.
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: Option<PathBuf>,

    /// A folder with Core's blk*.dat files: make what --out names
    ///
    /// As `apus sync` does. Beside --datadir, the folder that the node has by its own -blocksdir.
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// The hints of the run: a BIP-456 hintsfile, or `snapshot:FILE`
    #[arg(long, value_name = "HINTS")]
    pub(crate) hints: Option<HintsArg>,

    /// What computes the set: swiftsync if there are hints, utxo if there are --coins, else mergesync. Nothing is
    /// known of what utreexo takes
    #[arg(long, value_enum, hide_short_help = true)]
    pub(crate) engine: Option<EngineArg>,

    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    /// What the run writes, as `apus sync` has it; may be given more than once
    #[arg(long, value_name = "SINK", default_value = "null", conflicts_with = "datadir")]
    pub(crate) out: Vec<SinkArg>,

    /// Keep only the last 288 blocks in `datadir:DIR`
    #[arg(long)]
    pub(crate) prune: bool,

    /// The run computes the MuHash of the set, whatever it writes
    #[arg(long)]
    pub(crate) muhash: bool,

    /// Folder in which the run keeps its progress
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Memory for buffers, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = parse_mib)]
    pub(crate) dbcache: u64,

    /// Worker threads; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    #[cfg(feature = "remote-coins")]
    #[command(flatten)]
    pub(crate) coins: CoinsArgs,
}

const REINDEX_EXAMPLES: &str = "\
Examples:
  A node's coins, anew from its blocks; what `bitcoind -reindex-chainstate`
  does:
    bitcoin-cli stop
    apus reindex --datadir ~/.bitcoin --replace
    bitcoind

  In minutes, with hints for a block that the node has:
    apus reindex --datadir ~/.bitcoin --replace --hints main.hints

The node must be stopped, and cannot start meanwhile. The new chainstate is at
the best block that the node's index has as valid and has undo data of; the
node goes on from there. Apus replaces no chainstate by an older one unless you
say --replace-with-older. It writes the new one beside the old one, which it
moves aside at the end, to chainstate.old, or to chainstate.old-2 and so on
where earlier ones are still there; they stay until you remove them. With
hints, Apus assumes the scripts valid up to where these stop, as the node
itself does, or refuses the hints; see `apus sync --help` for what else it
assumes. It does not touch blocks, undo data and indexes.

A run that was interrupted or killed goes on where it stopped when you give the
same command again.";

#[derive(Args)]
#[command(after_long_help = REINDEX_EXAMPLES)]
pub(crate) struct ReindexArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Which coins survive: a BIP-456 hintsfile, or `snapshot:FILE`
    ///
    /// The second is a UTXO snapshot. Without any, Apus checks the blocks by every rule.
    #[arg(long, value_name = "HINTS")]
    pub(crate) hints: Option<HintsArg>,

    /// Bit order of the hintsfile, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", hide_short_help = true, value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,

    /// Move a chainstate that is there to chainstate.old
    ///
    /// Or to chainstate.old-2 and so on if there is one. They stay until you remove them.
    #[arg(long)]
    pub(crate) replace: bool,

    /// The same, also where the new coins are of an older block
    ///
    /// Than those that are there, since the index leads no further.
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
  Whether all that your node believes is true, every script run anew:
    apus verify --datadir ~/.bitcoin

  In a fraction of the time, with the scripts left out that the node itself left
  out:
    apus verify --datadir ~/.bitcoin --assumevalid default

  Beside the running node, when nothing else wants the machine, with a report
  for other programs:
    nice -n 19 ionice -c 3 apus verify --datadir ~/.bitcoin --report verify.json

Apus holds headers, blocks, undo data, block index and coins against each other
and against every rule. It writes and locks nothing of the node's, which may run
meanwhile. It copies the node's coins once, as they are on the disk, which is
some way behind the tip; the copy takes as much disk as they do. It says how
much it takes at most, and refuses where that is not free. It looks at the
blocks above, and at those of other chains, one by one: by every rule, if their
undo data are right. Of a node that has pruned its blocks only that can be done.
What takes seconds comes first: the index, and what it says of files.

Where something is wrong, Apus goes over all blocks once more to say what: a
line for each kind, with file, offset, height and hash of the first, and what
mends it. That takes disk for up to nine tenths of the blocks, or more time
where this is not free. Exit code 0: all is as it should be; 2: the node took an
invalid block for valid; 4: something else is wrong; 3: it could not be read.
Apus does not look at other indexes of the node, its wallets and its mempool.

A run that was interrupted or killed goes on where it stopped when you give the
same command again, with the coins that it took at first.";

#[derive(Args)]
#[command(after_long_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
