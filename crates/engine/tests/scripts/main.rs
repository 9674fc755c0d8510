//! Core's interpreter behind the pool, against Core's vectors and real blocks.
//!
//! Left out: Core's `sighash.json`, whose hashes the interpreter never tells; signatures over them
//! are in the other vectors and in the blocks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod assets;
mod blocks;

mod core_scripts;
mod core_txs;
mod long;
mod names;
mod spend;
mod text;
