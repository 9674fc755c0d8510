//! `apus reindex`: its options and its help.

use super::values::parse_order;
use super::{AggregateArgs, ConnectArgs, HintsArg, RunArgs};
use apus_chain::Network;
use apus_sync::engines::swiftsync::hints::BitOrder;
use clap::Args;
use std::path::PathBuf;

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
#[command(after_help = REINDEX_EXAMPLES)]
pub(crate) struct ReindexArgs {
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

    /// Which coins survive: a BIP-456 hintsfile, or `snapshot:FILE` for a UTXO snapshot. Without any,
    /// Apus checks the blocks by every rule
    #[arg(long, value_name = "FILE|snapshot:FILE")]
    pub(crate) hints: Option<HintsArg>,

    /// Bit order of the hintsfile, where the file itself does not settle it
    #[arg(long, value_name = "msb|lsb", value_parser = parse_order)]
    pub(crate) hints_order: Option<BitOrder>,

    /// If there is a chainstate already, move it aside, to chainstate.old, or to chainstate.old-2 and so
    /// on if there is one. They stay until you remove them
    #[arg(long)]
    pub(crate) replace: bool,

    /// As --replace, also where the new coins are of an older block than those that are there, since the
    /// index leads no further
    #[arg(long)]
    pub(crate) replace_with_older: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    #[command(flatten)]
    pub(crate) proof: AggregateArgs,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
