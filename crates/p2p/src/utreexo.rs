//! [`UtreexoMessage`]: proofs of coins, and roots, from a bridge node of Utreexo.
//!
//! BIP-183 is a draft, and what is spoken differs from its text: here all is as **utreexod 0.6.0** speaks it, and
//! all that depends on that version is here. `docs/formats/utreexo-wire.md` has the layouts, where the two differ, and
//! what 0.6.0 answers to which request.
//!
//! A [`Proof`] is numbers and bytes: nothing in it is checked against anything, and parts of it may have been left out
//! as asked. Counts are held against what a block can hold before memory is taken.

mod codec;
#[cfg(test)]
mod tests;

pub use codec::{
    HASHES_MAX, LEAF_BYTES_MAX, LEAF_SCRIPT_BYTES_MAX, LEAVES_MAX, ROOT_PROOF_MAX, UtreexoError,
    decode, encode, write_leaves,
};

use crate::services::Services;
use apus_chain::BlockHash;

/// Proofs of new blocks (`NODE_UTREEXO`).
pub const UTREEXO: Services = Services(1 << 12);
/// Proofs of all blocks (`NODE_UTREEXO_ARCHIVE`).
pub const UTREEXO_ARCHIVE: Services = Services(1 << 13);

/// What a bridge node offers that keeps the proof of each block.
pub const BRIDGE: Services = UTREEXO.with(UTREEXO_ARCHIVE);

/// A node's hash. Zeros stand for a root whose leaves are all deleted.
pub type NodeHash = [u8; 32];

/// What is said about Utreexo. Transactions with proofs, and times to live, are not listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UtreexoMessage {
    /// A request for a block's proof: `getuproof`.
    GetProof(ProofRequest),
    /// What was asked for: `uproof`. Of a block that the peer has no proof of there is no answer at all.
    Proof(Proof),
    /// A request for the roots after a block: `geturoot`.
    GetRoots(BlockHash),
    /// What was asked for: `uroot`.
    Roots(Roots),
}

/// Which parts of a block's proof are asked for.
///
/// Two of the fields do not do what they say when utreexod 0.6.0 answers: `all_hashes` gives none, and
/// `all_leaves` gives all hashes too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofRequest {
    /// The block.
    pub block: BlockHash,
    /// Whether to tell the targets: all or none.
    pub targets: bool,
    /// Whether to give all hashes.
    pub all_hashes: bool,
    /// Whether to give all leaves.
    pub all_leaves: bool,
    /// Which hashes to give besides.
    pub hashes: Wanted,
    /// Which leaves to give besides.
    pub leaves: Wanted,
}

impl ProofRequest {
    /// A request for all that there is.
    #[must_use]
    pub fn whole(block: BlockHash) -> Self {
        let (hashes, leaves) = (Wanted::default(), Wanted::default());
        Self { block, targets: true, all_hashes: true, all_leaves: true, hashes, leaves }
    }

    /// A request for the targets alone. They say how many leaves there are.
    #[must_use]
    pub fn targets(block: BlockHash) -> Self {
        Self { targets: true, ..Self::parts(block, Wanted::default(), Wanted::default()) }
    }

    /// A request for some hashes and some leaves, by their places in the whole proof, and not for targets.
    #[must_use]
    pub const fn parts(block: BlockHash, hashes: Wanted, leaves: Wanted) -> Self {
        Self { block, targets: false, all_hashes: false, all_leaves: false, hashes, leaves }
    }
}

/// Places in a list: bit `n % 8` of byte `n / 8` stands for place `n`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted(Vec<u8>);

impl Wanted {
    /// Whether the thing at a place is wanted.
    #[must_use]
    pub fn has(&self, place: usize) -> bool {
        self.0.get(place / 8).is_some_and(|byte| byte >> (place % 8) & 1 == 1)
    }

    /// The bits as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromIterator<usize> for Wanted {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut bytes = Vec::new();
        for place in places {
            if bytes.len() <= place / 8 {
                bytes.resize(place / 8 + 1, 0);
            }
            bytes[place / 8] |= 1 << (place % 8);
        }
        Self(bytes)
    }
}

/// A block's proof, or the parts of it that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The block.
    pub block: BlockHash,
    /// Hashes that the roots are computed with, by ascending position.
    pub hashes: Vec<NodeHash>,
    /// Positions of the coins that the block spends, in the order of its inputs without those that it made itself. They
    /// count as in a forest of 63 rows, whatever the number of leaves.
    pub targets: Vec<u64>,
    /// Those coins, in the same order.
    pub leaves: Vec<Leaf>,
}

/// What a spender needs to know of a coin; the rest stands in the block that spends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Twice the height of the block that made it, and one more if a coinbase did.
    pub header_code: u32,
    /// Its satoshi, at most all there can be.
    pub amount: u64,
    /// Its script.
    pub script: LeafScript,
}

/// A coin's script, or how it is made from the input that spends it. That it can be made is the sender's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafScript {
    /// The script itself.
    Other(Vec<u8>),
    /// P2PKH of the last push of the input's script.
    PubkeyHash,
    /// P2WPKH of the last item of the witness.
    WitnessPubkeyHash,
    /// P2SH of the last push of the input's script.
    ScriptHash,
    /// P2WSH of the last item of the witness.
    WitnessScriptHash,
}

/// The forest after a block, and where the peer's forest of such states has this one. The latter is of use only to
/// who has that forest's roots from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// The block.
    pub block: BlockHash,
    /// Leaves that there have ever been.
    pub leaves: u64,
    /// Roots, that of the highest tree first: one for each one bit of `leaves`.
    pub roots: Vec<NodeHash>,
    /// Position of this state among the states.
    pub target: u64,
    /// Proof of it.
    pub proof: Vec<NodeHash>,
}
