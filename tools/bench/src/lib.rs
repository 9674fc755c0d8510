//! Benchmarks of Apus: everything needed to reproduce the published numbers.
//!
//! - [`chainstate`]: writing a chainstate, compared with copying its bytes.
//! - [`maker`]: regtest chains shaped like the main chain, valid under every rule, from a seed; in files, or from
//!   a peer that makes the blocks as they are asked for.
//! - [`manifest`]: the description of such a chain, in a file next to its blocks.
//! - [`decorate`]: looking up the coins of a block through a batcher.
//! - [`floor`]: the limits of this machine, and the lower bound they set on the time of a chain.
//! - [`prevouts`]: the gain from fetching the coins of a block on several threads.
//! - [`run`]: Apus and Bitcoin Core on the same blocks, interleaved, with ratios.
//! - [`peers`]: blocks from nodes on this machine: Apus, a bare reader and Bitcoin Core in turn.
//!
//! Each is a command of the program `apus-bench`, which shows results through [`terminal`]. Validating blocks
//! needs none of this.

mod chain;
pub mod chainstate;
mod commands;
#[cfg(feature = "remote-coins")]
pub mod decorate;
mod error;
pub mod floor;
mod machine;
pub mod maker;
pub mod manifest;
pub mod peers;
pub mod prevouts;
mod process;
pub mod run;
mod table;
pub mod terminal;

pub use error::{BenchError, ErrorKind};
pub use table::MeasuredSpread;
pub use table::TextTable;
