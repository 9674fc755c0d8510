//! The hand-over to a real node: bitcoind starts on every folder that the program writes, finds the same coins, and
//! continues from there; and no folder contains anything that would ruin a node.
//!
//! Experiments with a node showed which folders it accepts, which it refuses and which silently ruin it. Each finding
//! is a test here. [`written`] and [`reindex`] test the folders that must work. [`last`] makes nodes disconnect all the
//! blocks that they keep. [`absent`] checks with its own readers that the harmful contents are absent. [`refusals`]
//! checks that Apus never touches a node's coins unasked. [`kills`] kills runs at any moment. `invalid` tests blocks
//! that a node stored and refused, `verify` tests what a node takes for granted, and `lies` tests a wrong block index.
//! [`soak`] runs nodes on every kind of folder for any length of time.

mod absent;
pub(crate) mod database;
#[cfg(feature = "kernel")]
mod invalid;
mod kills;
mod last;
#[cfg(feature = "kernel")]
mod lies;
mod node_checks;
mod other_folders;
#[cfg(feature = "kernel")]
mod own_signet;
mod refusals;
mod reindex;
mod soak;
#[cfg(feature = "kernel")]
mod undo_data;
#[cfg(feature = "kernel")]
mod verify;
#[cfg(feature = "kernel")]
mod verify_indexes;
mod written;
