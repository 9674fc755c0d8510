//! Engines: state machines that turn checked blocks into a UTXO set.
//!
//! An engine learns neither where blocks come from nor where coins go.

mod bip30;
pub mod coin;
pub mod connect;
pub mod mergesync;
pub mod pass;
mod salt;
pub mod script;
pub mod sort;
pub mod swiftsync;
mod tx_table;
pub mod utreexo;
pub mod utxo;
