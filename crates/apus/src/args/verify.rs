//! `apus verify`: its options and its help.

use super::values::AssumeValidArg;
use super::{RunArgs, Validation};
use apus_chain::Network;
use clap::Args;
use std::path::PathBuf;

const VERIFY_EXAMPLES: &str = "\
Examples:
  Whether all that your node believes is true, every script run anew:
    apus verify --datadir ~/.bitcoin

  In a fraction of the time, with the scripts left out that the node itself left
  out:
    apus verify --datadir ~/.bitcoin --validation assumevalid

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
#[command(after_help = VERIFY_EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// Which chain: main, test, testnet4, signet or regtest. If not given, the chain of the blocks that you
    /// name
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// The node's data directory
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: PathBuf,

    /// The folder of the node's block files, where it has one by -blocksdir on its own command line; what
    /// its bitcoin.conf says is known
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// What is verified of blocks
    #[arg(long, value_enum, default_value_t = Validation::Full)]
    pub(crate) validation: Validation,

    /// With --validation assumevalid, take the scripts of this block's ancestors for valid. The chain's
    /// default is that of Core
    #[arg(long, value_name = "HASH")]
    pub(crate) assumevalid: Option<AssumeValidArg>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
