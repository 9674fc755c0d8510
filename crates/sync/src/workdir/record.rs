//! The record of a sync that connects blocks in order: what the sync computes, and its progress.
//!
//! The sync makes the record when it first starts, and rewrites it before each flush of the coins. The record
//! then holds the totals at the store's block and at the block that the flush leads to. So after a crash, the
//! totals are known at whichever of these blocks the store is, and so is the sum of all coins there, under a
//! key that is secret to this sync.
//!
//! ```text
//! 8     41 50 55 53 43 4f 4e 4e   "APUSCONN"
//! 4     version, 5
//! 4     magic of the network
//! 32    hash of the assumed-valid block; zeros if all scripts are run
//! 4     last block whose witnesses are skipped; 0 if all are checked
//! 4     first height that is connected: 1, or the one above the hints
//! 1     1 if a sync took the coins up from servers by a record that lay there with them
//! 16    key of the coins' sum
//! 1     number of entries, 1 or 2
//! 101   each: height (4), hash (32), blocks, bytes, transactions, inputs, outputs, blocks with scripts run,
//!       coins (8 each), whether the sum is known (1), the sum of the coins (8)
//! 32    SHA-256 of all bytes before
//! ```
//!
//! The sum is modulo 2^64. A coin's part is SipHash-1-3 under the key over its txid (32), output (4), length of
//! its stored form (4) and stored form. The sum is unknown only while a store is filled with the coins produced
//! by hints.

use super::names;
use super::names::RECORD;
use super::plan::unseen_difference;
use crate::engines::in_order::Totals;
use crate::engines::pass::Counts;
use crate::error::{StorageResult, SyncError};
use crate::system::random_bytes;
use apus_chain::{BlockHash, CoinSum, CoinSumKey, Height, KnownBlock, Network, Reader};
use apus_storage::{Storage, write_atomically};

const MAGIC: &[u8; 8] = b"APUSCONN";

const VERSION: u32 = 5;

/// Far more than the length of any record.
const BYTES_MAX: u64 = 4096;

/// Everything that distinguishes two syncs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub network: Network,
    /// The block up to which scripts are assumed valid, if any.
    pub assume_valid: Option<BlockHash>,
    /// The last block whose witnesses are skipped; 0 if all are checked.
    pub unseen: Height,
    /// The first block that this engine connects: the coins below come from hints.
    pub from: u32,
}

/// The totals at a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectedAt {
    pub block: KnownBlock,
    pub totals: Totals,
    /// The sum of the coins; `None` while a store is filled with the coins produced by hints.
    pub sum: Option<CoinSum>,
}

/// The record of one sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub identity: Identity,
    /// Whether this sync, or one before it, took the coins up from servers without the work folder of the sync that
    /// stored them: anyone who can write to the servers could have changed both the coins and their record.
    pub taken_up: bool,
    /// The key of the coins' sum, secret to this sync.
    pub key: CoinSumKey,
    /// The blocks at which the store may be. The last one is the target of the last flush.
    pub at: Vec<ConnectedAt>,
}

impl Identity {
    /// Describes the first difference to `other`, for messages; `None` if they are equal.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let shown = |hash: Option<BlockHash>| {
            hash.map_or_else(|| "no block".to_owned(), |hash| format!("block {hash}"))
        };
        if self.network != other.network {
            return Some(format!("chain {}, not {}", self.network, other.network));
        }
        if self.assume_valid != other.assume_valid {
            return Some(format!(
                "scripts assumed valid up to {}, not {}",
                shown(self.assume_valid),
                shown(other.assume_valid)
            ));
        }
        if self.unseen != other.unseen {
            return Some(unseen_difference(self.unseen, other.unseen));
        }
        (self.from != other.from).then(|| "with other hints, or without hints".to_owned())
    }
}

impl Record {
    /// Makes the record of a new sync, with a key from the system.
    pub fn new(identity: Identity) -> Result<Self, SyncError> {
        let key = CoinSumKey::new(random_bytes()?);
        Ok(Self { identity, taken_up: false, key, at: Vec::new() })
    }

    /// Reads the record of an earlier start, if there is one.
    pub fn read(storage: &dyn Storage) -> Result<Option<Self>, SyncError> {
        names::read_listed(storage, RECORD, BYTES_MAX, Self::from_bytes)
    }

    /// Makes the record durable.
    pub fn write(&self, storage: &dyn Storage) -> Result<(), SyncError> {
        write_atomically(storage, RECORD, &self.to_bytes()).at(storage, RECORD)
    }

    /// Returns the entry for `block`, the store's actual block. Discards any other entry: the store is not
    /// there, and the next flush begins at `block`.
    pub fn found_at(&mut self, block: &KnownBlock) -> Option<ConnectedAt> {
        let found = self.at.iter().rev().find(|at| at.block == *block).copied()?;
        self.at = vec![found];
        Some(found)
    }

    /// Encodes the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = names::begin(MAGIC, VERSION);
        out.extend_from_slice(&self.identity.network.magic());
        out.extend_from_slice(&self.identity.assume_valid.unwrap_or(BlockHash::ZERO).0);
        out.extend_from_slice(&self.identity.unseen.to_le_bytes());
        out.extend_from_slice(&self.identity.from.to_le_bytes());
        out.push(u8::from(self.taken_up));
        out.extend_from_slice(&self.key.to_bytes());
        out.push(self.at.len() as u8);
        for ConnectedAt { block, totals, sum } in &self.at {
            out.extend_from_slice(&block.height.to_le_bytes());
            out.extend_from_slice(&block.hash.0);
            totals.counts.write(&mut out);
            out.extend_from_slice(&totals.scripts.to_le_bytes());
            out.extend_from_slice(&totals.coins.to_le_bytes());
            out.push(u8::from(sum.is_some()));
            out.extend_from_slice(&sum.unwrap_or_default().to_bytes());
        }
        names::seal(out)
    }

    /// Whether the bytes are an intact record that another version of this program wrote.
    pub fn is_of_other_version(bytes: &[u8]) -> bool {
        names::version(bytes, MAGIC).is_some_and(|version| version != VERSION)
    }

    /// Decodes a record; `None` if it is not intact.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = names::open(bytes, MAGIC, VERSION)?;
        let network = Network::from_magic(*reader.array().ok()?)?;
        let assume_valid = BlockHash(*reader.array().ok()?);
        let assume_valid = (assume_valid != BlockHash::ZERO).then_some(assume_valid);
        let (unseen, from) = (reader.u32().ok()?, reader.u32().ok()?);
        let identity = Identity { network, assume_valid, unseen, from };
        let taken_up = names::flag(&mut reader)?;
        let key = CoinSumKey::new(*reader.array().ok()?);
        let mut at = Vec::new();
        for _ in 0..reader.u8().ok()? {
            let height = reader.u32().ok()?;
            let block = KnownBlock { height, hash: BlockHash(*reader.array().ok()?) };
            let totals = read_totals(&mut reader)?;
            let known = names::flag(&mut reader)?;
            let sum = CoinSum::from_bytes(*reader.array().ok()?);
            at.push(ConnectedAt { block, totals, sum: known.then_some(sum) });
        }
        reader.finish().ok()?;
        Some(Self { identity, taken_up, key, at })
    }
}

fn read_totals(reader: &mut Reader<'_>) -> Option<Totals> {
    let counts = Counts::read(reader)?;
    Some(Totals { counts, scripts: reader.u64().ok()?, coins: reader.u64().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;

    fn record(numbers: [u64; 7], blocks: usize, assume_valid: Option<BlockHash>) -> Record {
        let [blocks_done, bytes, transactions, inputs, outputs, scripts, coins] = numbers;
        let counts = Counts { blocks: blocks_done, bytes, transactions, inputs, outputs };
        let at = |index| ConnectedAt {
            block: KnownBlock { height: index as u32, hash: BlockHash([index as u8 + 1; 32]) },
            totals: Totals {
                counts: Counts { blocks: blocks_done.wrapping_add(index as u64), ..counts },
                scripts,
                coins,
            },
            sum: (index != 1).then(|| CoinSum::from_bytes([index as u8; 8])),
        };
        let identity = Identity { network: Network::Regtest, assume_valid, unseen: 5, from: 1 };
        let at = (0..blocks).map(at).collect();
        Record { at, taken_up: blocks == 2, ..Record::new(identity).unwrap() }
    }

    proptest! {
        #[test]
        fn a_record_comes_back(numbers: [u64; 7], blocks in 0usize..4, assumed: bool) {
            let record = record(numbers, blocks, assumed.then_some(BlockHash([7; 32])));
            let storage = CrashStorage::new();
            prop_assert_eq!(Record::read(&storage).unwrap(), None);
            record.write(&storage).unwrap();
            prop_assert_eq!(Record::read(&storage.durable_image()).unwrap(), Some(record.clone()));
            for at in &record.at {
                let mut read = Record::read(&storage).unwrap().unwrap();
                prop_assert_eq!(read.found_at(&at.block), Some(*at));
                // If a flush was lost in a crash, the next one does not begin at its block.
                prop_assert_eq!(&read.at, &[*at]);
            }
            let other = KnownBlock { height: 0, hash: BlockHash([99; 32]) };
            prop_assert_eq!(record.clone().found_at(&other), None);
        }
    }

    #[test]
    fn damaged_records_are_refused() {
        let bytes = record([3; 7], 2, None).to_bytes();
        for length in 0..bytes.len() {
            assert_eq!(Record::from_bytes(&bytes[..length]), None, "{length}");
        }
        for place in 0..bytes.len() {
            let mut copy = bytes.clone();
            copy[place] ^= 1 << (place % 8);
            assert_eq!(Record::from_bytes(&copy), None, "{place}");
        }
        assert_eq!(Record::from_bytes(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn an_intact_record_of_another_version_is_recognized() {
        let bytes = record([3; 7], 2, None).to_bytes();
        let mut body = bytes[..bytes.len() - 32].to_vec();
        body[8] += 1;
        let other = names::seal(body.clone());
        assert!(Record::is_of_other_version(&other) && Record::from_bytes(&other).is_none());
        body[0] ^= 1;
        let kinds = [&bytes, &other[1..].to_vec(), &names::seal(body), &Vec::new()];
        assert!(!kinds.iter().any(|bytes| Record::is_of_other_version(bytes)));
    }

    #[test]
    fn differences_between_syncs_are_described() {
        let mine = record([0; 7], 0, None).identity;
        assert_eq!(mine.difference(&mine), None);
        let other = Identity { network: Network::Main, ..mine.clone() };
        assert!(mine.difference(&other).unwrap().contains("regtest, not main"));
        let other = Identity { assume_valid: Some(BlockHash([1; 32])), ..mine.clone() };
        assert!(mine.difference(&other).unwrap().contains("up to no block, not block 0101"));
        let other = Identity { unseen: 0, ..mine.clone() };
        let expected = "witnesses checked for blocks above 5, not for all blocks (--witnesses)";
        assert!(mine.difference(&other).unwrap().contains(expected));
        let other = Identity { from: 2, ..mine.clone() };
        assert!(mine.difference(&other).unwrap().contains("hints"));
    }
}
