//! Blocks that proved invalid: a sync over block files leaves them out when it chooses its chain.
//!
//! A node stores blocks before it connects them, so its own files may end with an invalid one. That block and
//! its descendants are marked as failed, and the chain is chosen again, by the same rule, among the remaining
//! blocks. Only this program's own verdict marks a block as failed: the node's index does not matter.
//!
//! The verdict is durable before the sync continues without the block, so every later start makes the same
//! choice, even if this one is killed.
//!
//! ```text
//! 8     41 50 55 53 49 4e 56 44   "APUSINVD"
//! 4     version, 1
//! 4     magic of the network
//! 4     number of blocks, at most 1,024
//!       for each: height (4), hash (32), length of the text (4, at most 1,000), the rule that it breaks (UTF-8)
//! 32    SHA-256 of all bytes before
//! ```
//!
//! The whole file is rewritten after the blocks connected below the invalid block are durable, and before a
//! block of another chain is connected. A file of another network counts as empty; an incomplete one is an
//! error.

use super::names::INVALID;
use super::{Workdir, names};
use crate::error::{InvalidBlock, StorageResult, SyncError};
use apus_chain::{BlockHash, KnownBlock, Network};
use apus_storage::{Storage, write_atomically};

pub const MAGIC: &[u8; 8] = b"APUSINVD";

const VERSION: u32 = 1;

/// Maximum number of failed blocks. Each took the work of a block to make, and choosing a chain without it
/// costs a scan of all headers.
pub const INVALID_MAX: usize = 1024;

/// More than the length of the longest file.
const BYTES_MAX: u64 = 64 + (INVALID_MAX * (InvalidBlock::WHY_BYTES_MAX + 64)) as u64;

/// The blocks that proved invalid so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailedBlocks(Vec<InvalidBlock>);

impl FailedBlocks {
    pub fn all(&self) -> &[InvalidBlock] {
        &self.0
    }

    /// Adds a block, unless [`INVALID_MAX`] is reached; returns whether it was added.
    pub fn add(&mut self, block: InvalidBlock) -> bool {
        let has_room = self.0.len() < INVALID_MAX;
        self.0.extend(has_room.then_some(block));
        has_room
    }

    /// Reads the list that earlier starts in a work folder made for a network.
    pub fn read(storage: &dyn Storage, network: Network) -> Result<Self, SyncError> {
        // In a folder of another program, a file of this name is not a list.
        Workdir::read_plan(storage)?;
        let read = names::read_listed(storage, INVALID, BYTES_MAX, Self::from_bytes)?;
        // The other files of another network's sync are reported as an error.
        let of_network = read.filter(|(of, _)| *of == network);
        Ok(of_network.map(|(_, invalid)| invalid).unwrap_or_default())
    }

    /// Makes the list durable.
    pub fn write(&self, storage: &dyn Storage, network: Network) -> Result<(), SyncError> {
        write_atomically(storage, INVALID, &self.to_bytes(network)).at(storage, INVALID)
    }

    fn to_bytes(&self, network: Network) -> Vec<u8> {
        let mut out = names::begin(MAGIC, VERSION);
        out.extend_from_slice(&network.magic());
        out.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        for InvalidBlock { block, why } in &self.0 {
            out.extend_from_slice(&block.height.to_le_bytes());
            out.extend_from_slice(&block.hash.0);
            out.extend_from_slice(&(why.len() as u32).to_le_bytes());
            out.extend_from_slice(why.as_bytes());
        }
        names::seal(out)
    }

    fn from_bytes(bytes: &[u8]) -> Option<(Network, Self)> {
        let mut reader = names::open(bytes, MAGIC, VERSION)?;
        let network = Network::from_magic(*reader.array().ok()?)?;
        let mut blocks = Vec::new();
        for _ in 0..reader.u32().ok()? {
            let height = reader.u32().ok()?;
            let block = KnownBlock { height, hash: BlockHash(*reader.array().ok()?) };
            let bytes = reader.u32().ok()? as usize;
            let why = String::from_utf8(reader.take(bytes).ok()?.to_vec()).ok()?;
            blocks.push(InvalidBlock { block, why });
        }
        reader.finish().ok()?;
        Some((network, Self(blocks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::IoError;
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;

    fn blocks(of: Vec<(u32, [u8; 32], String)>) -> FailedBlocks {
        let one = |(height, hash, why)| InvalidBlock {
            block: KnownBlock { height, hash: BlockHash(hash) },
            why,
        };
        FailedBlocks(of.into_iter().map(one).collect())
    }

    proptest! {
        #[test]
        fn the_next_start_knows_invalid_blocks(
            of in proptest::collection::vec((any::<u32>(), any::<[u8; 32]>(), ".{0,40}"), 0..5),
        ) {
            let (storage, invalid) = (CrashStorage::new(), blocks(of));
            let empty = FailedBlocks::default();
            prop_assert_eq!(&FailedBlocks::read(&storage, Network::Regtest).unwrap(), &empty);
            invalid.write(&storage, Network::Regtest).unwrap();
            let durable = storage.durable_image();
            prop_assert_eq!(&FailedBlocks::read(&durable, Network::Regtest).unwrap(), &invalid);
            prop_assert_eq!(&FailedBlocks::read(&durable, Network::Main).unwrap(), &empty);
        }
    }

    #[test]
    fn damaged_notes_are_refused() {
        let bytes = blocks(vec![(7, [7; 32], "why".to_owned()), (8, [8; 32], String::new())])
            .to_bytes(Network::Regtest);
        for length in 0..bytes.len() {
            assert_eq!(FailedBlocks::from_bytes(&bytes[..length]), None, "{length}");
        }
        for place in 0..bytes.len() {
            let mut copy = bytes.clone();
            copy[place] ^= 1 << (place % 8);
            assert_eq!(FailedBlocks::from_bytes(&copy), None, "{place}");
        }
        assert_eq!(FailedBlocks::from_bytes(&[&bytes[..], &[0]].concat()), None);
        let storage = CrashStorage::holding([(INVALID.to_owned(), bytes[..60].to_vec())].into());
        let error = FailedBlocks::read(&storage, Network::Regtest).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::WorkdirDamaged { .. })), "{error}");
    }

    /// The longest possible list fits the longest file that is read.
    #[test]
    fn all_failed_blocks_can_be_read_again() {
        let why = "w".repeat(InvalidBlock::WHY_BYTES_MAX);
        let all = (0..INVALID_MAX as u32).map(|height| (height, [9; 32], why.clone())).collect();
        let (storage, invalid) = (CrashStorage::new(), blocks(all));
        invalid.write(&storage, Network::Regtest).unwrap();
        assert_eq!(FailedBlocks::read(&storage, Network::Regtest).unwrap(), invalid);
    }
}
