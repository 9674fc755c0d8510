//! Blocks in any order against the engine that connects them one after the other: the same set, the same
//! undo data, and of invalid chains the same block for the same reason.

mod blame;
mod borders;
pub(crate) mod counted;
pub(crate) mod harness;
mod numbers;
mod repeats;
mod undo_data;
mod valid;
