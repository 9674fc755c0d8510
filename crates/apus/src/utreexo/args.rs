//! Arguments of `apus utreexo`.

use crate::args::{AssumeArgs, ProgressArg, RunArgs, SourceArgs};
use clap::{Args, Subcommand};
use std::path::PathBuf;

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
