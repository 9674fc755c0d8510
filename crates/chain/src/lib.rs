//! Bitcoin's consensus data and rules, pure: bytes in, verdicts out.
//!
//! Nothing here does input or output, starts a thread, reads a clock or logs; callers hand in
//! bytes and the time. That makes every rule testable alone, and lets any engine, any source and
//! any number of threads share it.

mod hashes;
mod height;
mod network;
mod outpoint;
mod read;

pub use hashes::{BlockHash, MerkleRoot, ParseHashError, Txid, Wtxid};
pub use height::{Height, HeightRange};
pub use network::{Network, UnknownNetwork};
pub use outpoint::OutPoint;
pub use read::{COMPACT_SIZE_MAX, ReadError, Reader, write_compact_size, write_varint};
