//! Bitcoin's consensus data and rules, pure: bytes in, verdicts out.
//!
//! Nothing here does input or output, starts a thread, reads a clock or logs; callers hand in
//! bytes and the time. That makes every rule testable alone, and lets any engine, any source and
//! any number of threads share it.

mod amount;
mod coin;
mod compress;
mod hashes;
mod height;
mod network;
mod outpoint;
mod read;

pub use amount::{COIN, MAX_MONEY, compress_amount, decompress_amount, money_range};
pub use coin::{
    COIN_HEIGHT_MAX, Coin, CoinError, CoinRef, is_unspendable, read_coin, read_coin_strict,
    skip_coin, write_coin,
};
pub use compress::{
    CompressedScript, MAX_SCRIPT_SIZE, StoredScript, compress_script, write_script,
};
pub use hashes::{BlockHash, MerkleRoot, ParseHashError, Txid, Wtxid};
pub use height::{Height, HeightRange};
pub use network::{Network, UnknownNetwork};
pub use outpoint::OutPoint;
pub use read::{COMPACT_SIZE_MAX, ReadError, Reader, write_compact_size, write_varint};
