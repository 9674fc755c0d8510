//! The record of a run that connects blocks in order: what it computes, and how far it is.
//!
//! Made when the run first starts, and written anew before each flush of the coins: it then holds
//! the totals at the block where the store is and at the block where it goes. Whichever of the two
//! a crash leaves the store at, the totals are known, and the sum of all coins there, under a key that
//! is this run's secret.
//!
//! ```text
//! 8     41 50 55 53 43 4f 4e 4e   "APUSCONN"
//! 4     version, 4
//! 4     magic of the network
//! 32    hash of the assumed-valid block; zeros where all scripts are run
//! 4     last block whose witnesses are skipped; 0 where all are checked
//! 4     first height that is connected: 1, or the one above the hints
//! 16    key of the coins' sum
//! 1     number of entries, 1 or 2
//! 101   each: height (4), hash (32), blocks, bytes, transactions, inputs, outputs, blocks whose scripts were run, coins (8 each),
//!       whether the sum is known (1), the sum of the coins (8)
//! 32    SHA-256 of all bytes before
//! ```
//!
//! The sum is modulo 2^64. A coin's part is SipHash-1-3 under the key of its txid (32), output (4), length of its stored
//! form (4) and stored form. The sum is unknown only while a store is filled with the coins that hints led to.

use super::names;
use super::names::RECORD;
use super::plan::unseen_difference;
use crate::engines::in_order::Totals;
use crate::error::{IoError, StorageResult, SyncError};
use crate::system::random_bytes;
use apus_chain::{BlockHash, CoinSum, CoinSumKey, Height, KnownBlock, Network, Reader};
use apus_storage::{Storage, read_whole, write_atomically};

const MAGIC: &[u8; 8] = b"APUSCONN";

const VERSION: u32 = 4;

/// Far more than any record has.
const BYTES_MAX: u64 = 4096;

/// What makes two runs the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub network: Network,
    /// The block up to which scripts are taken for valid, if any.
    pub assume_valid: Option<BlockHash>,
    /// The last block whose witnesses are left alone; 0 where all are checked.
    pub unseen: Height,
    /// The first block that this engine connects: what lies below came from elsewhere.
    pub from: u32,
}

/// The totals at a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectedAt {
    pub block: KnownBlock,
    pub totals: Totals,
    /// The sum of the coins; none while a store is filled with those that hints led to.
    pub sum: Option<CoinSum>,
}

/// The record of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub identity: Identity,
    /// Under which coins are added up. It is this run's secret.
    pub key: CoinSumKey,
    /// Where the store may be; the last one is where it was headed.
    pub at: Vec<ConnectedAt>,
}

impl Identity {
    /// In which way `other` is another run, for people; `None` if it is the same.
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
        (self.from != other.from).then(|| "other hints, or none".to_owned())
    }
}

impl Record {
    /// The record of a new run, and a key from the system.
    pub fn new(identity: Identity) -> Result<Self, SyncError> {
        Ok(Self { identity, key: CoinSumKey::new(random_bytes()?), at: Vec::new() })
    }

    /// Reads the record of an earlier start, if there is one.
    pub fn read(storage: &dyn Storage) -> Result<Option<Self>, SyncError> {
        if !storage.names().at(storage, "")?.iter().any(|name| name == RECORD) {
            return Ok(None);
        }
        let bytes = read_whole(storage, RECORD, BYTES_MAX).at(storage, RECORD)?;
        let damaged = || SyncError::Io(IoError::WorkdirDamaged { file: storage.describe(RECORD) });
        Self::from_bytes(&bytes).map(Some).ok_or_else(damaged)
    }

    /// Makes the record durable.
    pub fn write(&self, storage: &dyn Storage) -> Result<(), SyncError> {
        write_atomically(storage, RECORD, &self.to_bytes()).at(storage, RECORD)
    }

    /// What is known of `block`, where the store turned out to be. Where else it was headed is
    /// forgotten: it never came there, and the next flush begins here.
    pub fn found_at(&mut self, block: &KnownBlock) -> Option<ConnectedAt> {
        let found = self.at.iter().rev().find(|at| at.block == *block).copied()?;
        self.at = vec![found];
        Some(found)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = names::begin(MAGIC, VERSION);
        out.extend_from_slice(&self.identity.network.magic());
        out.extend_from_slice(&self.identity.assume_valid.unwrap_or(BlockHash::ZERO).0);
        out.extend_from_slice(&self.identity.unseen.to_le_bytes());
        out.extend_from_slice(&self.identity.from.to_le_bytes());
        out.extend_from_slice(&self.key.to_bytes());
        out.push(self.at.len() as u8);
        for ConnectedAt { block, totals, sum } in &self.at {
            out.extend_from_slice(&block.height.to_le_bytes());
            out.extend_from_slice(&block.hash.0);
            for number in numbers(totals) {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.push(u8::from(sum.is_some()));
            out.extend_from_slice(&sum.unwrap_or_default().to_bytes());
        }
        names::seal(out)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = names::open(bytes, MAGIC, VERSION)?;
        let network = Network::from_magic(*reader.array().ok()?)?;
        let assume_valid = BlockHash(*reader.array().ok()?);
        let assume_valid = (assume_valid != BlockHash::ZERO).then_some(assume_valid);
        let (unseen, from) = (reader.u32().ok()?, reader.u32().ok()?);
        let identity = Identity { network, assume_valid, unseen, from };
        let key = CoinSumKey::new(*reader.array().ok()?);
        let mut at = Vec::new();
        for _ in 0..reader.u8().ok()? {
            let height = reader.u32().ok()?;
            let block = KnownBlock { height, hash: BlockHash(*reader.array().ok()?) };
            let totals = read_totals(&mut reader)?;
            let (known, sum) = (reader.u8().ok()?, CoinSum::from_bytes(*reader.array().ok()?));
            let sum = match known {
                0 => None,
                1 => Some(sum),
                _ => return None,
            };
            at.push(ConnectedAt { block, totals, sum });
        }
        reader.finish().ok()?;
        Some(Self { identity, key, at })
    }
}

fn numbers(totals: &Totals) -> [u64; 7] {
    let Totals { blocks, bytes, transactions, inputs, outputs, scripts, coins } = *totals;
    [blocks, bytes, transactions, inputs, outputs, scripts, coins]
}

fn read_totals(reader: &mut Reader<'_>) -> Option<Totals> {
    let mut number = || reader.u64().ok();
    Some(Totals {
        blocks: number()?,
        bytes: number()?,
        transactions: number()?,
        inputs: number()?,
        outputs: number()?,
        scripts: number()?,
        coins: number()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;

    fn record(numbers: [u64; 7], blocks: usize, assume_valid: Option<BlockHash>) -> Record {
        let [blocks_done, bytes, transactions, inputs, outputs, scripts, coins] = numbers;
        let totals =
            Totals { blocks: blocks_done, bytes, transactions, inputs, outputs, scripts, coins };
        let at = |index| ConnectedAt {
            block: KnownBlock { height: index as u32, hash: BlockHash([index as u8 + 1; 32]) },
            totals: Totals { blocks: blocks_done.wrapping_add(index as u64), ..totals },
            sum: (index != 1).then(|| CoinSum::from_bytes([index as u8; 8])),
        };
        let identity = Identity { network: Network::Regtest, assume_valid, unseen: 5, from: 1 };
        let at = (0..blocks).map(at).collect();
        Record { at, ..Record::new(identity).unwrap() }
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
                // A flush that did not arrive before a crash is not where the next one begins.
                prop_assert_eq!(&read.at, &[*at]);
            }
            let elsewhere = KnownBlock { height: 0, hash: BlockHash([99; 32]) };
            prop_assert_eq!(record.clone().found_at(&elsewhere), None);
        }
    }

    #[test]
    fn a_record_that_is_not_as_it_was_written_is_refused() {
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
    fn what_makes_a_run_another_one_is_told() {
        let mine = record([0; 7], 0, None).identity;
        assert_eq!(mine.difference(&mine), None);
        let other = Identity { network: Network::Main, ..mine.clone() };
        assert!(mine.difference(&other).unwrap().contains("regtest, not main"));
        let other = Identity { assume_valid: Some(BlockHash([1; 32])), ..mine.clone() };
        assert!(mine.difference(&other).unwrap().contains("up to no block, not block 0101"));
        let other = Identity { unseen: 0, ..mine.clone() };
        let told = "witnesses of blocks above 5 alone checked, not of all blocks (--witnesses)";
        assert!(mine.difference(&other).unwrap().contains(told));
        let other = Identity { from: 2, ..mine.clone() };
        assert!(mine.difference(&other).unwrap().contains("hints"));
    }
}
