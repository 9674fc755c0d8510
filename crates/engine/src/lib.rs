//! The parts that all engines share: the rules of connecting a block, scripts, and the coins with
//! their cache and stores.
//!
//! The engines themselves, and the code that drives them, are in `apus-sync`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod coin;
pub mod connect;
mod salt;
pub mod script;
pub mod sort;
pub mod tx_table;
pub mod utxo;
