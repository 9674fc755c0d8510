//! The Utreexo accumulator (BIP-181, draft) over the coins of a chain, computed in any order.
//!
//! The accumulator is a forest of perfect binary trees over all leaves ever added; what is kept of it are the
//! roots. A leaf that is deleted leaves an empty place, and the roots are the same whether a leaf was added and
//! deleted or was never there. Whoever knows which coins survive can so compute the roots without a proof:
//! survivors are leaves, and all others are empty.
//!
//! - [`NodeHash`]: a node, and how two make their parent.
//! - [`leaf_hash`]: the leaf of a coin (BIP-182, draft).
//! - [`LiveLeaf`]: one that was not deleted, and how those of a range are written down.
//! - [`Fragment`]: what a range of leaves makes of the forest. Ranges are computed in any order, on any number of
//!   threads, and fragments next to each other join, in any tree order.
//! - [`Roots`]: what is left of all leaves from the first on.
//! - [`Forest`]: all live leaves, in pages of a store, block by block. It makes the [`Proof`] of what each spends.
//!
//! It knows a block only as the leaves that it spends and adds.

mod forest;
mod fragment;
mod leaf;
mod live;
mod node;
mod proof;
mod roots;

pub use forest::{Forest, ForestError, ForestUsage, PageFault, PageId, Pages};
pub use fragment::{Fragment, FragmentError, LEAVES_MAX};
pub use leaf::leaf_hash;
pub use live::{LiveLeaf, read_live, write_live};
pub use node::NodeHash;
pub use proof::Proof;
pub use roots::{Roots, RootsError};
