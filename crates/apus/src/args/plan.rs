//! `apus plan`: its options and its help.

use super::values::parse_mib;
use super::{Engine, HintsArg, SinkArg, Validation};
#[cfg(feature = "remote-coins")]
use crate::coins::CoinsArgs;
use apus_chain::Network;
use clap::Args;
use std::path::PathBuf;

const PLAN_EXAMPLES: &str = "\
Examples:
  What it would take to compute a node's coins again from its blocks:
    apus plan --datadir ~/.bitcoin

  The same with hints:
    apus plan --datadir ~/.bitcoin --hints snapshot:utxo.dat

  A data directory from a folder of blocks, every script run, with the progress
  on another disk:
    apus plan --blocksdir /mnt/disk/blocks --validation full \\
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
#[command(after_help = PLAN_EXAMPLES)]
pub(crate) struct PlanArgs {
    /// Which chain: main, test, testnet4, signet or regtest. If not given, the chain of the blocks that
    /// you name
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// A node's data directory: compute its coins again, as `apus reindex --replace` does
    #[arg(long, value_name = "DIR")]
    pub(crate) datadir: Option<PathBuf>,

    /// A folder with Bitcoin Core's blk*.dat files: make what --out names, as `apus sync` does. Beside
    /// --datadir, the folder that the node has by its own -blocksdir
    #[arg(long, value_name = "DIR")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// The hints of the run: a BIP-456 hintsfile, or `snapshot:FILE` for a UTXO snapshot
    #[arg(long, value_name = "FILE|snapshot:FILE")]
    pub(crate) hints: Option<HintsArg>,

    /// What computes the set: swiftsync if there are hints, else mergesync. Nothing is known of what utreexo
    /// takes
    #[arg(long, value_enum)]
    pub(crate) engine: Option<Engine>,

    /// What is verified of blocks without hints
    #[arg(long, value_enum, default_value_t = Validation::Assumevalid)]
    pub(crate) validation: Validation,

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
