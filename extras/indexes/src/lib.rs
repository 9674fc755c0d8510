//! Bitcoin Core's optional indexes: txindex, txospenderindex, blockfilterindex and coinstatsindex.
//!
//! They are made from a node's blocks and undo data, in any order of blocks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod block;
mod chain;
mod error;
mod forms;
mod locator;
mod make;
mod pass;
mod rows;
mod salt;
mod spender_index;
mod txindex;

pub use block::{BlockPlace, IndexBlock};
pub use error::IndexesError;
pub use forms::{IndexForm, IndexKind, NodeVersion};
pub use make::{
    INDEXES, IndexMade, IndexesDisk, IndexesMade, IndexesRequest, index_folder, is_scratch_file,
    make_indexes,
};
pub use pass::PassCounts;
pub use salt::Salt;
