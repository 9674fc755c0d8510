//! Arguments of `apus index`, and of other commands that make indexes.

use super::{NodeArgs, ProgressArg, parse_mib};
use crate::failure::Failure;
use apus_indexes::{IndexForm, IndexKind, NodeVersion};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  All indexes, for any version of Bitcoin Core:
    bitcoin-cli stop
    apus index --datadir ~/.bitcoin --index all
    bitcoind -txindex -blockfilterindex -coinstatsindex

  Version 31 and later also use the fourth index, with -txospenderindex.
  Earlier ones do not start with that option.

  For a wallet's or a Lightning node's server, with temporary files on another
  disk:
    apus index --datadir ~/.bitcoin --index txindex,blockfilterindex \\
         --workdir /fast/work

  The smallest txindex, which only the newest nodes read:
    apus index --datadir ~/.bitcoin --index txindex --index-for master

Stop the node first; it cannot start while Apus works. Apus reads the node's
blocks once, and for blockfilterindex and coinstatsindex also its undo data. It
compares each block with its header. The indexes end at the block of the node's
coins, and the node continues from there. They get their names when all are
complete: an interrupted attempt changes nothing. Apus needs all blocks, so a
pruned node can have no index that it does not have already.

By default, each index has the form that all versions of Bitcoin Core start on.
coinstatsindex then takes two folders, which are small. Each version continues
with its own form.";

/// The indexes of a data directory that another command writes.
#[derive(Args)]
pub(crate) struct IndexesArg {
    /// Also make Bitcoin Core's indexes in the data directory: txindex, blockfilterindex, coinstatsindex, txospenderindex,
    /// or all
    ///
    /// Several names are separated by commas.
    #[arg(long, value_name = "INDEX,...", hide_short_help = true, value_delimiter = ',', value_parser = parse_index)]
    index: Vec<IndexArg>,

    /// Version of the node that the indexes are for: 29, 30, 31 or master; by default, all start on them
    #[arg(long, value_name = "VERSION", hide_short_help = true, requires = "index")]
    pub(crate) index_for: Option<NodeVersion>,
}

impl IndexesArg {
    /// Returns the forms of the indexes, if any.
    pub(crate) fn forms(&self) -> Result<Vec<IndexForm>, Failure> {
        forms(&self.index, self.index_for)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IndexArg {
    One(IndexKind),
    All,
}

fn parse_index(text: &str) -> Result<IndexArg, String> {
    match text {
        "all" => Ok(IndexArg::All),
        name => name.parse().map(IndexArg::One),
    }
}

/// Returns the forms of indexes for a version. `all` means all indexes of the version.
fn forms(indexes: &[IndexArg], version: Option<NodeVersion>) -> Result<Vec<IndexForm>, Failure> {
    let mut kinds = Vec::new();
    for index in indexes {
        match index {
            IndexArg::One(kind) => kinds.push(*kind),
            IndexArg::All => {
                let has = |kind: &IndexKind| IndexForm::of(&[*kind], version).is_ok();
                kinds.extend(IndexKind::ALL.into_iter().filter(has));
            }
        }
    }
    IndexForm::of(&kinds, version).map_err(|kind| {
        let version = version.map_or(String::new(), |version| version.to_string());
        Failure::usage(format!(
            "version {version} of Bitcoin Core has no {kind}: leave it out, or leave out --index-for"
        ))
    })
}

#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct IndexArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Indexes to make: txindex, blockfilterindex, coinstatsindex, txospenderindex, or all
    ///
    /// By the names of Bitcoin Core's options. Several names are separated by commas.
    #[arg(long, value_name = "INDEX,...", value_delimiter = ',', required_unless_present = "numbers", value_parser = parse_index)]
    index: Vec<IndexArg>,

    /// Version of the node: 29, 30, 31 or master; by default, all start on the indexes
    #[arg(long, value_name = "VERSION")]
    pub(crate) index_for: Option<NodeVersion>,

    /// Also write the chain in numbers to FILE: one row for each block
    ///
    /// Transactions, fees, sizes, the set of coins, kinds of scripts made and spent, ages of coins spent. Parquet if FILE
    /// ends in .parquet, otherwise CSV.
    #[arg(long, value_name = "FILE")]
    pub(crate) numbers: Option<PathBuf>,

    /// Move an existing index to NAME.old, and replace an existing file of --numbers
    ///
    /// Or to NAME.old-2 and so on, if NAME.old exists. Old folders stay until you remove them. The old file stays until the
    /// new one is complete.
    #[arg(long)]
    pub(crate) replace: bool,

    /// Memory for buffers, in MiB
    #[arg(long, value_name = "MiB", default_value_t = 450, value_parser = parse_mib)]
    pub(crate) dbcache: u64,

    /// Worker threads; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub(crate) par: u16,

    /// Folder for temporary files
    ///
    /// The default is next to the indexes.
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Progress display: auto, plain, json or none
    ///
    /// Written to standard error.
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = ProgressArg::Auto)]
    pub(crate) progress: ProgressArg,

    /// Write a JSON report to this file
    ///
    /// If the job fails, write a report with the reason.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl IndexArgs {
    /// Returns the forms of the indexes.
    pub(crate) fn forms(&self) -> Result<Vec<IndexForm>, Failure> {
        forms(&self.index, self.index_for)
    }
}
