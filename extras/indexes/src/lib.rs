//! Bitcoin Core's optional indexes: txindex, txospenderindex, blockfilterindex and coinstatsindex.
//!
//! They are made from a node's blocks and undo data, in any order of blocks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod block;

pub use block::{BlockPlace, IndexBlock};
