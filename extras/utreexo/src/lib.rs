//! The Utreexo accumulator (BIP-181, draft) over the coins of a chain, computed in any order.
//!
//! The accumulator is a forest of perfect binary trees over all leaves ever added; what is kept of it are the
//! roots. A leaf that is deleted leaves an empty place, and the roots are the same whether a leaf was added and
//! deleted or was never there. A program that knows which coins survive can so compute the roots without a proof:
//! survivors are leaves, and all others are empty.
//!
//! - [`NodeHash`]: a node, and how two make their parent.
//! - [`leaf_hash`]: the leaf of a coin (BIP-182, draft); [`leaf_hashes`] and [`LeafBatch`]: of many at once.
//! - [`CompactLeaf`]: what of a coin that a block spends is sent beside the block (BIP-183, draft).
//! - [`LiveLeaf`]: one that was not deleted.
//! - [`Fragment`]: what a range of leaves makes of the forest. Ranges are computed in any order, on any number of
//!   threads, and fragments next to each other join, in any tree order.
//! - [`Roots`]: what is left of all leaves from the first on.
//! - [`Proof`]: that leaves are in a forest; [`Roots::verify`] checks it, and [`Roots::update`] deletes and adds.
//! - [`Position`]: where nodes stand, as proofs say it.
//! - [`Forest`]: all live leaves, in pages of a store, block by block. It makes the [`Proof`] of what each spends.
//! - [`RangeWriter`] and [`RangeFile`]: a file of what it takes to judge a range of blocks from the roots before it.
//! - [`Lifetimes`] and [`CacheReplay`]: how many bytes of proofs a verifier needs that remembers some leaves.
//!
//! It knows a block only as the leaves that it spends and adds.

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
pub use proof::{Proof, ProofBytesError};
pub use range_file::{
    ENTRY_BYTES_MAX, RANGE_BLOCKS_MAX, RangeBlock, RangeFile, RangeFileError, RangeHead,
    RangeWriter, range_file_name, range_of_name,
};
pub use roots::{Roots, RootsError};
pub use verify::ProofError;
