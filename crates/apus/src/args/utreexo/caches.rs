//! `apus utreexo caches`: options and help.

use crate::args::ProgressArg;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
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
#[command(after_help = EXAMPLES)]
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
