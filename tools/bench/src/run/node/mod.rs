//! Bitcoin Core's `bitcoind` beside Apus: found, given the same blocks, timed, and asked for its set.
//!
//! - [`find()`]: which program; [`version()`]: what it says that it is.
//! - [`Folder`]: a data directory with the chain's blocks, prepared once; timed runs on it.
//! - [`Served`]: nodes that hand out its blocks; [`Folder::download`]: one that takes them.
//! - `bip30`: whether it does what no node does on the main chain.
//! - [`Log`]: what `debug.log` tells of a run.
//! - `rpc`: the few questions that are asked.
//!
//! The node computes the set with everything that makes it comparable: `-reindex-chainstate` on
//! blocks that it has or from peers on this machine, scripts skipped by `-assumevalid` or all of them run, no other peers, no wallet, no RPC, and without
//! the internal consistency checks that are on by default on regtest alone.

mod bip30;
mod download;
mod find;
mod folder;
mod log;
mod rpc;
mod serve;

pub use find::find;
pub(crate) use folder::CHAIN_DIR;
pub use folder::{Folder, TimedRun, version};
pub use log::{Log, LogError};
pub use serve::Served;
