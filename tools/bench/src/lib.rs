//! Measuring Apus: everything that a stranger needs to get the numbers that are claimed.
//!
//! - [`chainstate`]: writing a chainstate, beside copying its bytes.
//! - [`maker`]: a regtest chain shaped after the real one, valid under every rule, from a seed.
//! - [`manifest`]: what such a chain is, in a file beside its blocks.
//! - [`decorate`]: what it takes to look up the coins of a block through a batcher.
//! - [`floor`]: the limits of the machine at hand, and from them the least time a chain can take.
//! - [`prevouts`]: what fetching the coins of a block on several threads gains.
//! - [`run`]: runs of Apus and of Bitcoin Core on the same blocks, interleaved, with ratios.
//! - [`peers`]: blocks from nodes on this machine: Apus, a bare reader and Bitcoin Core in turns.
//!
//! Each is a command of the program `apus-bench`, which shows results through [`terminal`]. Nothing here is needed to validate blocks.

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
