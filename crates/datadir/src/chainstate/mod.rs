//! Core's chainstate, a database of all coins: [`ChainstateWriter`] makes one from coins in order,
//! [`read_back()`] reads one through another implementation, and a [`CoinSample`] asks that one for
//! single coins. [`read_node`] reads that of a node.
//!
//! `docs/formats/chainstate.md` has the format, and what Core makes of a wrong one. A chainstate
//! states the block that it is at and nothing else about itself: no network, no version, no count.
//! Whether its coins are the right ones only a hash over all of them tells.

mod error;
mod node;
mod read_back;
mod sample;
#[cfg(test)]
mod tests;
mod writer;

pub use error::ChainstateError;
pub use node::{check_files, node_best_block, read_node};
pub use read_back::{ReadBack, read_back};
pub use sample::{CoinSample, LookedUp};
pub use writer::{ChainstateWriter, Written, size_bound};

/// The folder of a node's second set of coins, beside the first, while it goes on from a snapshot (Core
/// `node/utxo_snapshot.h`, `SNAPSHOT_CHAINSTATE_SUFFIX`).
pub const SNAPSHOT_CHAINSTATE: &str = "chainstate_snapshot";

/// The first byte of a coin's key (Core `txdb.cpp`, `DB_COIN`); then its txid, then VARINT(vout).
const KEY_COIN: u8 = b'C';

/// The key of the block that the coins are at (Core `txdb.cpp`, `DB_BEST_BLOCK`).
const KEY_BEST_BLOCK: &[u8] = b"B";

/// The key of the blocks between which a node was writing when it was stopped (Core `txdb.cpp`,
/// `DB_HEAD_BLOCKS`).
const KEY_HEAD_BLOCKS: &[u8] = b"H";

/// The key of the obfuscation key: a string with its length before it (Core `dbwrapper.cpp`,
/// `OBFUSCATION_KEY`). Its value, 8 and as many bytes, is the one that is not obfuscated.
const KEY_OBFUSCATION: &[u8] = b"\x0e\0obfuscate_key";
