//! The hand-over to a real node: whatever folder the program makes, bitcoind starts on it, finds the
//! same coins, and lives on; and what would ruin a node is never in one.
//!
//! Which folders a node takes, which it refuses and which quietly ruin it was found out by
//! experiments with one. Each finding is a test here: [`written`] and [`reindex`] are those that must
//! work, [`last`] takes nodes back over all that they keep, [`absent`] looks for those that must
//! not be with readers of its own, [`refusals`] holds that no node's coins are touched unasked, and
//! [`kills`] ends runs at any moment. `invalid` is about blocks that a node stored and refused, `verify` about what a node believes, `lies` about what its index says.
//! [`soak`] has nodes live on every kind of folder for as long as wanted.

mod absent;
mod database;
mod elsewhere;
#[cfg(feature = "kernel")]
mod invalid;
mod judge;
mod kills;
mod last;
#[cfg(feature = "kernel")]
mod lies;
#[cfg(feature = "kernel")]
mod own_signet;
mod refusals;
mod reindex;
mod soak;
#[cfg(feature = "kernel")]
mod undo_data;
#[cfg(feature = "kernel")]
mod verify;
mod written;
