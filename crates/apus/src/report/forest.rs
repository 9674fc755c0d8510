//! [`Forest`] and [`Proofs`]: the Utreexo forest in a report, and what was proved of it.

use crate::report::{bytes, grouped};
use apus_sync::ProofsMade;
use apus_utreexo::Roots;
use serde::Serialize;
use std::fmt;

/// What there is to say of the Utreexo forest at the stop block.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Forest {
    /// How many leaves there have ever been.
    pub(crate) leaves: u64,
    /// Highest tree first, in the order of their bytes; zeros where all leaves of the tree are deleted.
    pub(crate) roots: Vec<String>,
}

impl Forest {
    pub(super) fn of(roots: &Roots) -> Self {
        Self {
            leaves: roots.leaves(),
            roots: roots.hashes().iter().map(ToString::to_string).collect(),
        }
    }
}

impl fmt::Display for Forest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {}", "utreexo leaves", grouped(self.leaves))?;
        let names = ["utreexo roots"].into_iter().chain(std::iter::repeat(""));
        names.zip(&self.roots).try_for_each(|(name, root)| writeln!(f, "{name:<18} {root}"))
    }
}

/// What there is to say of proofs that were made.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Proofs {
    /// The first block whose proof this start made.
    pub(crate) from: u32,
    /// Files that it wrote.
    pub(crate) files: u64,
    /// Blocks in them.
    pub(crate) blocks: u64,
    /// Coins that are proved.
    pub(crate) coins: u64,
    /// Hashes that this took.
    pub(crate) hashes: u64,
    pub(crate) proof_bytes: u64,
    pub(crate) leaf_data_bytes: u64,
    pub(crate) file_bytes: u64,
}

impl Proofs {
    pub(super) fn of(made: &ProofsMade) -> Self {
        let totals = &made.totals;
        Self {
            from: made.from,
            files: totals.files,
            blocks: totals.blocks,
            coins: totals.targets,
            hashes: totals.hashes,
            proof_bytes: totals.proof_bytes,
            leaf_data_bytes: totals.leaf_bytes,
            file_bytes: totals.file_bytes,
        }
    }
}

impl fmt::Display for Proofs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (blocks, from, files) = (grouped(self.blocks), self.from, grouped(self.files));
        let coins = format!("{}, by {} hashes", grouped(self.coins), grouped(self.hashes));
        for (name, value) in [
            ("proofs", format!("of {blocks} blocks from {from} on, in {files} files")),
            ("coins proved", coins),
            ("bytes of proofs", bytes(self.proof_bytes)),
            ("of leaf data", bytes(self.leaf_data_bytes)),
        ] {
            writeln!(f, "{name:<18} {value}")?;
        }
        Ok(())
    }
}
