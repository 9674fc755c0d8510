//! Arguments of `apus utreexo` and its help.

use crate::args::{AssumeArgs, PeerArgs, ProgressArg, RunArgs};
use apus_chain::Network;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct UtreexoArgs {
    #[command(subcommand)]
    pub(crate) command: UtreexoCommand,
}

#[derive(Subcommand)]
pub(crate) enum UtreexoCommand {
    /// Make proofs and leaf data for each block's spent coins, in one file per block range, which begins with the roots
    Prove(Box<ProveArgs>),
    /// Show the blocks, leaves, roots and bytes of proof files
    Info(ProofsInfoArgs),
    /// Check every file of a folder: format, checksums, and that no blocks are missing between files
    Check(ProofsCheckArgs),
    /// Measure the proofs that a verifier needs if it remembers some leaves until they are spent
    Caches(CachesArgs),
}

const PROVE_EXAMPLES: &str = "\
Examples:
  Proofs for all blocks of a node, in the folder `proofs`:
    apus utreexo prove --blocksdir ~/.bitcoin/blocks --out proofs

  On regtest, with every script run and a file per 1,000 blocks:
    apus utreexo prove --chain regtest --blocksdir ~/.bitcoin/regtest/blocks \\
         --assumevalid 0 --every 1000 --out proofs

  Later, for the blocks added since:
    apus utreexo prove --blocksdir ~/.bitcoin/blocks --out proofs

  With blocks from a node, which Apus downloads twice and does not keep:
    apus utreexo prove --connect 192.168.1.20 --out proofs

Apus validates blocks by every rule, as `apus sync` does without hints: it reads
them twice, in any order. A proof holds with the roots before its block, and
each file begins with these, so that a verifier of its blocks needs no other
file. A file ends at heights that are multiples of --every, or sooner if memory
is full.

Before it starts, Apus says how much disk it may take: records and the forest in
the work folder, up to 85 percent of the blocks' bytes, and files of proofs,
about 80 percent on busy blocks.

The forest is in the work folder, under `forest`, and stays there: a later run
with the same --out and --workdir reads all blocks again, and makes proofs for
the new ones. Interrupted or killed runs resume: rerun the same command.";

#[derive(Args)]
#[command(after_long_help = PROVE_EXAMPLES)]
pub(crate) struct ProveArgs {
    /// Chain; by default the chain of the blocks
    ///
    /// main, test, testnet4, signet or regtest. By default, Apus detects the chain from the blocks in a folder, and
    /// uses main for blocks from peers.
    #[arg(long, default_value = "main", hide_default_value = true)]
    pub(crate) chain: Network,

    /// Folder with Bitcoin Core's blk*.dat files, opened for reading only
    #[arg(long, value_name = "DIR", required_unless_present = "connect")]
    pub(crate) blocksdir: Option<PathBuf>,

    /// Folder for the files; Apus creates it if it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Blocks per file, and so between stored roots
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 18))]
    pub(crate) every: u32,

    #[command(flatten)]
    pub(crate) assume: AssumeArgs,

    /// Last block to make a proof for; the tip by default
    #[arg(long, value_name = "HEIGHT")]
    pub(crate) stopatheight: Option<u32>,

    #[command(flatten)]
    pub(crate) peers: PeerArgs,

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
    /// Folder with proof files, or one file
    #[arg(value_name = "DIR|FILE")]
    pub(crate) path: PathBuf,
}

const PROOFS_CHECK_EXAMPLES: &str = "\
Examples:
  apus utreexo check proofs

Apus reads every entry. It does not check whether a proof holds with the roots
before its block: a verifier of the blocks does, and trusts no file.";

#[derive(Args)]
#[command(after_long_help = PROOFS_CHECK_EXAMPLES)]
pub(crate) struct ProofsCheckArgs {
    /// Folder with proof files
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

const CACHES_EXAMPLES: &str = "\
Examples:
  What 1,000, 10,000 and 100,000 remembered leaves save in the proofs of the
  folder `proofs`:
    apus utreexo caches proofs

  Half a million leaves, looking ahead an hour and a day, and the table as JSON:
    apus utreexo caches proofs --leaves 500000 --look-ahead 6,144 \\
         --report caches.json

A verifier that remembers a leaf has the leaf's hash and data, knows its
position, and keeps the nodes that prove it, from the block that adds the leaf
to the block that spends it. For such a leaf it receives neither position nor
data, and no hash that it knows. The maker of the proofs says which leaves to
remember, by one of two rules:

  clairvoyant  of all leaves that could be remembered, the ones that are spent
               next (Belady's rule)
  look-ahead   leaves that are spent within BLOCKS blocks, while there is room;
               none is evicted

The size of these instructions is not counted: with look-ahead it is one bit per
added leaf.

The folder must have the proofs of all blocks from 1 on. Apus reads it twice. It
refuses a proof with a position that leads to no leaf, or with other hashes than
the proof needs; it does not check whether the hashes are right.

Memory: four and a quarter bytes for each leaf that was ever added, so 13 GB for
the 3,083 million of the main chain at block 943,013, and about 50 bytes for
each leaf that a row of the table has room for.";

#[derive(Args)]
#[command(after_long_help = CACHES_EXAMPLES)]
pub(crate) struct CachesArgs {
    /// Folder with proof files from block 1 on
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,

    /// Maximum number of leaves to remember: one number, or several separated by commas
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "0,1000,10000,100000",
        value_parser = clap::value_parser!(u32)
    )]
    pub(crate) leaves: Vec<u32>,

    /// With look-ahead, remember leaves spent within this many blocks: one number, or several separated by commas
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',', default_value = "10,100,1000")]
    pub(crate) look_ahead: Vec<u32>,

    /// Write a JSON report to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// Progress display on standard error
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto)]
    pub(crate) progress: ProgressArg,
}
