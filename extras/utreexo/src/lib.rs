//! The Utreexo accumulator (BIP-181, draft) over the coins of a chain, computed in any order.
//!
//! The accumulator is a forest of perfect binary trees over all leaves ever added; only its roots are kept.
//! Deleting a leaf leaves an empty place, so the roots are the same whether a leaf was added and deleted or
//! was never there. A program that knows which coins survive can therefore compute the roots without proofs:
//! survivors are leaves, and all other places are empty.
//!
//! - [`NodeHash`]: the hash of a node, and how two nodes make their parent.
//! - [`leaf_hash`]: the leaf hash of a coin (BIP-182, draft); [`leaf_hashes`] and [`LeafBatch`] hash many at
//!   once.
//! - [`CompactLeaf`]: the data of a spent coin that is sent along with the block (BIP-183, draft).
//! - [`LiveLeaf`]: a leaf that was not deleted.
//! - [`Fragment`]: the part of the forest above a range of leaves. Ranges are computed in any order, on any
//!   number of threads, and adjacent fragments join in any tree order.
//! - [`Roots`]: the state of the accumulator after all leaves from the first on.
//! - [`Proof`]: a proof that leaves are in a forest; [`Roots::verify`] checks it, and [`Roots::update`]
//!   deletes and adds leaves.
//! - [`Position`]: the position of a node, numbered as in proofs.
//! - [`Forest`]: all live leaves, in pages of a store, updated block by block. It makes the [`Proof`] of the
//!   leaves that each block spends.
//! - [`RangeWriter`] and [`RangeFile`]: a file with everything needed to validate a range of blocks from the
//!   roots before it.
//! - [`Lifetimes`] and [`CacheReplay`]: how many bytes of proofs a verifier needs if it remembers some
//!   leaves.
//!
//! The crate sees a block only as the leaves that it spends and adds.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod caches;
mod forest;
mod fragment;
mod leaf;
mod leaf_data;
mod node;
mod position;
mod proof;
mod range_file;
mod roots;
mod verify;

pub use caches::{
    CacheCost, CachePolicy, CacheReplay, CacheRule, CachesError, Lifetimes, ProvedBlock, Spends,
    caches_bytes,
};
pub use forest::{Forest, ForestError, ForestUsage, PageFault, PageId, Pages};
pub use fragment::{Fragment, FragmentError, LiveLeaf};
pub use leaf::{Leaf, LeafBatch, leaf_hash, leaf_hashes};
pub use leaf_data::{CompactLeaf, LeafDataError, LeafScript, Spender, write_compact_leaf};
pub use node::NodeHash;
pub use position::{LEAVES_MAX, PROOF_ROWS, Position, forest_rows};
pub use proof::{Proof, ProofBytesError, TARGETS_MAX};
pub use range_file::{
    ENTRY_BYTES_MAX, RANGE_BLOCKS_MAX, RangeBlock, RangeFile, RangeFileError, RangeHead,
    RangeWriter, range_file_name, range_of_name,
};
pub use roots::{Roots, RootsError};
pub use verify::ProofError;
