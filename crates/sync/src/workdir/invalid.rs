//! Blocks that proved invalid: what a run over block files leaves out when it chooses its chain.
//!
//! A node stores blocks before it connects them, so its own files may hold an invalid one on top. That
//! block and what descends from it are put aside, and the chain is chosen anew, by the same rule, among
//! the blocks that are left. Only this program's own verdict puts a block aside: what the node's index
//! says of it plays no part.
//!
//! The verdict is durable before the run goes on without the block, so every later start chooses as
//! this one did, wherever it is stopped.
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
//! The file is written anew as a whole, after what is connected below the block is durable and before a block of another
//! chain is connected. One of another network counts as empty; one that is not whole is an error.

use super::names::INVALID;
use super::{Workdir, names};
use crate::error::{InvalidBlock, IoError, StorageResult, SyncError};
use apus_chain::{BlockHash, KnownBlock, Network};
use apus_storage::{Storage, read_whole, write_atomically};

pub const MAGIC: &[u8; 8] = b"APUSINVD";

const VERSION: u32 = 1;

/// So many blocks are put aside at most. Each took the work of a block to make, and what is chosen
/// without it costs a look at all headers.
pub const INVALID_MAX: usize = 1024;

/// More than the longest file has.
const BYTES_MAX: u64 = 64 + (INVALID_MAX * (InvalidBlock::WHY_BYTES_MAX + 64)) as u64;

/// The blocks that proved invalid so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PutAsideBlocks(Vec<InvalidBlock>);

impl PutAsideBlocks {
    pub fn all(&self) -> &[InvalidBlock] {
        &self.0
    }

    /// Puts one more aside, where [`INVALID_MAX`] is not reached yet.
    pub fn add(&mut self, block: InvalidBlock) -> bool {
        let has_room = self.0.len() < INVALID_MAX;
        self.0.extend(has_room.then_some(block));
        has_room
    }

    /// What earlier starts in a work folder found out about blocks of a network.
    pub fn read(storage: &dyn Storage, network: Network) -> Result<Self, SyncError> {
        // In a folder that is not ours a file of this name says nothing.
        Workdir::read_plan(storage)?;
        if !storage.names().at(storage, "")?.iter().any(|name| name == INVALID) {
            return Ok(Self::default());
        }
        let bytes = read_whole(storage, INVALID, BYTES_MAX).at(storage, INVALID)?;
        let damaged = || SyncError::Io(IoError::WorkdirDamaged { file: storage.describe(INVALID) });
        let (of, invalid) = Self::from_bytes(&bytes).ok_or_else(damaged)?;
        // Another network's run is told of as such by what else it left.
        Ok(if of == network { invalid } else { Self::default() })
    }

    /// Makes them durable.
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
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;

    fn blocks(of: Vec<(u32, [u8; 32], String)>) -> PutAsideBlocks {
        let one = |(height, hash, why)| InvalidBlock {
            block: KnownBlock { height, hash: BlockHash(hash) },
            why,
        };
        PutAsideBlocks(of.into_iter().map(one).collect())
    }

    proptest! {
        #[test]
        fn what_proved_invalid_is_known_to_the_next_start(
            of in proptest::collection::vec((any::<u32>(), any::<[u8; 32]>(), ".{0,40}"), 0..5),
        ) {
            let (storage, invalid) = (CrashStorage::new(), blocks(of));
            let empty = PutAsideBlocks::default();
            prop_assert_eq!(&PutAsideBlocks::read(&storage, Network::Regtest).unwrap(), &empty);
            invalid.write(&storage, Network::Regtest).unwrap();
            let durable = storage.durable_image();
            prop_assert_eq!(&PutAsideBlocks::read(&durable, Network::Regtest).unwrap(), &invalid);
            prop_assert_eq!(&PutAsideBlocks::read(&durable, Network::Main).unwrap(), &empty);
        }
    }

    #[test]
    fn a_note_that_is_not_as_it_was_written_is_refused() {
        let bytes = blocks(vec![(7, [7; 32], "why".to_owned()), (8, [8; 32], String::new())])
            .to_bytes(Network::Regtest);
        for length in 0..bytes.len() {
            assert_eq!(PutAsideBlocks::from_bytes(&bytes[..length]), None, "{length}");
        }
        for place in 0..bytes.len() {
            let mut copy = bytes.clone();
            copy[place] ^= 1 << (place % 8);
            assert_eq!(PutAsideBlocks::from_bytes(&copy), None, "{place}");
        }
        assert_eq!(PutAsideBlocks::from_bytes(&[&bytes[..], &[0]].concat()), None);
        let storage = CrashStorage::holding([(INVALID.to_owned(), bytes[..60].to_vec())].into());
        let error = PutAsideBlocks::read(&storage, Network::Regtest).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::WorkdirDamaged { .. })), "{error}");
    }

    /// The most that is ever noted fits the longest file that is read.
    #[test]
    fn all_that_is_put_aside_can_be_read_again() {
        let why = "w".repeat(InvalidBlock::WHY_BYTES_MAX);
        let all = (0..INVALID_MAX as u32).map(|height| (height, [9; 32], why.clone())).collect();
        let (storage, invalid) = (CrashStorage::new(), blocks(all));
        invalid.write(&storage, Network::Regtest).unwrap();
        assert_eq!(PutAsideBlocks::read(&storage, Network::Regtest).unwrap(), invalid);
    }
}
