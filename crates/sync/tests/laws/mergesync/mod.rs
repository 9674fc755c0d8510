//! Compares blocks in any order with the in-order engine: the same set, the same undo data, and for invalid
//! chains the same block for the same reason.

mod blame;
mod borders;
pub(crate) mod counted;
pub(crate) mod harness;
mod numbers;
mod repeats;
mod undo_data;
mod valid;
