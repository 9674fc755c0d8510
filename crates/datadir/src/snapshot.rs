//! UTXO snapshots: the files of `dumptxoutset`, format version 2.
//!
//! A [`SnapshotHeader`], then the coins of one transaction after the other: txid, how many coins,
//! and for each the number of the output and the coin as the chainstate stores it. Transactions
//! ascend by txid, outputs by the bytes of their VARINTs ([`vout_order`]), so a set has exactly one
//! file, and every reader and writer here insists on it. A file is taken as a stream of any length,
//! in bounded memory. Whether its coins are the right ones only their hash tells
//! ([`snapshot_info`]); whether that hash is known is for the caller.

mod error;
mod group;
mod info;
mod reader;
mod sequence;
#[cfg(test)]
mod tests;
mod writer;

use apus_chain::{BlockHash, Network, Reader};

pub use apus_chain::vout_order;
pub use error::SnapshotError;
pub use group::write_group;
pub use info::{SnapshotInfo, snapshot_info};
pub use reader::{SnapshotCoin, SnapshotReader};
pub use sequence::OUTPUTS_MAX;
pub use writer::SnapshotWriter;

/// The first bytes of every snapshot (Core `node/utxo_snapshot.h`, `SNAPSHOT_MAGIC_BYTES`).
const MAGIC: [u8; 5] = *b"utxo\xff";

/// The one format version (Core `node/utxo_snapshot.h`, `SnapshotMetadata::VERSION`).
const VERSION: u16 = 2;

/// What a snapshot says of itself (Core `node/utxo_snapshot.h`, `SnapshotMetadata`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotHeader {
    /// The chain that the coins belong to.
    pub network: Network,
    /// The block after which the set is as stated.
    pub base_hash: BlockHash,
    /// How many coins follow.
    pub coins: u64,
}

impl SnapshotHeader {
    /// Length of the stored form.
    pub const SIZE: usize = 51;

    /// The stored form.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..5].copy_from_slice(&MAGIC);
        bytes[5..7].copy_from_slice(&VERSION.to_le_bytes());
        bytes[7..11].copy_from_slice(&self.network.magic());
        bytes[11..43].copy_from_slice(self.base_hash.as_bytes());
        bytes[43..].copy_from_slice(&self.coins.to_le_bytes());
        bytes
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Result<Self, SnapshotError> {
        let mut reader = Reader::new(bytes);
        let short = |_| SnapshotError::Header { bytes: bytes.len() };
        let magic = *reader.array().map_err(short)?;
        if magic != MAGIC {
            return Err(SnapshotError::Magic { found: magic });
        }
        let version = reader.u16().map_err(short)?;
        if version != VERSION {
            return Err(SnapshotError::Version { found: version });
        }
        let magic = *reader.array().map_err(short)?;
        let network = Network::from_magic(magic).ok_or(SnapshotError::UnknownNetwork { magic })?;
        let base_hash = BlockHash(*reader.array().map_err(short)?);
        let coins = reader.u64().map_err(short)?;
        Ok(Self { network, base_hash, coins })
    }

    /// Fails, naming both, unless the snapshot is of this chain.
    pub fn expect_network(&self, expected: Network) -> Result<(), SnapshotError> {
        if self.network == expected {
            Ok(())
        } else {
            Err(SnapshotError::OtherNetwork { found: self.network, expected })
        }
    }
}
