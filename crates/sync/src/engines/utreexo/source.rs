//! [`ProofSource`]: where roots, proofs and coins come from. Nothing is expected of them.

use apus_chain::{HeightRange, KnownBlock};
use apus_utreexo::Roots;

/// Where ranges come from: files, or those who have the forest.
pub trait ProofSource: Send + Sync {
    /// What is told of a range, for one thread.
    ///
    /// # Errors
    /// Why nothing is, for people, and where.
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String>;
}

/// Reads entries of one range.
pub trait ProofReader {
    /// Puts the entry of a block in place of what `out` held: the proof of what it spends, then the compact leaves
    /// (`docs/formats/proofs.md`).
    ///
    /// # Errors
    /// Why there is none, for people, and where.
    fn read(&mut self, block: &KnownBlock, out: &mut Vec<u8>) -> Result<(), String>;

    /// Who or what told all this so far, for people: a file, a peer.
    fn origin(&self) -> String;
}

/// What is told of a range.
pub struct ProofRange<'a> {
    /// Its blocks.
    pub heights: HeightRange,
    /// The roots before the first.
    pub before: Roots,
    /// The roots after the last.
    pub after: Roots,
    /// What is told of each.
    pub reader: Box<dyn ProofReader + 'a>,
}
