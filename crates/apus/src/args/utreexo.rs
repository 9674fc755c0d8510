//! `apus utreexo`: options and help of `prove`, `info` and `check`; those of `caches` below.

mod caches;

pub(crate) use caches::CachesArgs;

use super::values::AssumeValidArg;
use super::{RunArgs, SourceArgs, Validation};
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
         --validation full --every 1000 --out proofs

  Later on, for the blocks that came since:
    apus utreexo prove --blocksdir ~/.bitcoin/blocks --out proofs

Apus judges blocks by every rule, as `apus sync --engine mergesync` does: it
goes over them twice, in any order. A proof holds with the roots before its
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
#[command(after_help = PROVE_EXAMPLES)]
pub(crate) struct ProveArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,

    /// The folder for the files, made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Blocks in a file: how often roots are given
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 18))]
    pub(crate) every: u32,

    /// What is verified of the blocks
    #[arg(long, value_enum, default_value_t = Validation::Assumevalid)]
    pub(crate) validation: Validation,

    /// Take the scripts of this block's ancestors for valid, as Core does; 0 for none. The chain's default
    /// is that of Core
    #[arg(long, value_name = "HASH|0")]
    pub(crate) assumevalid: Option<AssumeValidArg>,

    /// The last block to make a proof of; the tip if not given
    #[arg(long, value_name = "HEIGHT")]
    pub(crate) stopatheight: Option<u32>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

const INFO_EXAMPLES: &str = "\
Examples:
  apus utreexo info proofs
  apus utreexo info proofs/proofs-00000001-00000101.dat";

#[derive(Args)]
#[command(after_help = INFO_EXAMPLES)]
pub(crate) struct ProofsInfoArgs {
    /// A folder of files of proofs, or one file
    #[arg(value_name = "DIR|FILE")]
    pub(crate) path: PathBuf,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  apus utreexo check proofs

Apus reads every entry. It does not ask whether a proof holds with the roots
before its block: a verifier of the blocks finds that, and believes no file.";

#[derive(Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct ProofsCheckArgs {
    /// A folder of files of proofs
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}
