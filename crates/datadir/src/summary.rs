//! [`ScanSummary`]: what a scan found besides blocks, and the verdict on it.
//!
//! Its memory is bounded: of each kind of damage the first [`ScanSummary::LISTED_MAX`] places are
//! listed and the rest only counted.

use crate::error::BlkError;
use crate::files::{BlockFiles, BlockLocation};
use apus_chain::Network;

/// Bytes that belong to no block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stretch {
    /// Number of the block file.
    pub file: u32,
    /// Where it begins.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// What a scan saw.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanSummary {
    /// Files gone through.
    pub files: u64,
    /// Records of this chain, repeated blocks counted each time.
    pub records: u64,
    /// Length of their blocks together in bytes.
    pub bytes: u64,
    /// Records whose claimed size was wrong and that were reported with the size they really have.
    pub mended: u64,
    /// Last records of files whose block is not all there: a write that a crash cut short. The
    /// size is the one claimed, and they were not reported.
    pub torn: Vec<BlockLocation>,
    /// How many records are torn, those not listed included.
    pub torn_count: u64,
    /// Stretches that hold neither blocks nor the zeros of preallocated space.
    pub resynced: Vec<Stretch>,
    /// How many such stretches there are, those not listed included.
    pub resynced_count: u64,
    /// Length of all of them together in bytes.
    pub resynced_bytes: u64,
    /// Records of other networks, in the order of [`Network::ALL`].
    pub foreign: [u64; Network::ALL.len()],
}

impl ScanSummary {
    /// How many places of damage of each kind are listed.
    pub const LISTED_MAX: usize = 10_000;

    /// Adds what another scan saw, of other files.
    pub fn merge(&mut self, other: Self) {
        self.files += other.files;
        self.records += other.records;
        self.bytes += other.bytes;
        self.mended += other.mended;
        self.torn.extend(other.torn);
        self.torn.truncate(Self::LISTED_MAX);
        self.torn_count += other.torn_count;
        self.resynced.extend(other.resynced);
        self.resynced.truncate(Self::LISTED_MAX);
        self.resynced_count += other.resynced_count;
        self.resynced_bytes += other.resynced_bytes;
        for (sum, more) in self.foreign.iter_mut().zip(other.foreign) {
            *sum += more;
        }
    }

    /// Fails if there is no block of this chain, with what was found instead.
    pub fn verdict(&self, files: &BlockFiles) -> Result<(), BlkError> {
        if self.records > 0 {
            return Ok(());
        }
        let path = files.dir().to_owned();
        match Network::ALL.into_iter().zip(self.foreign).max_by_key(|&(_, records)| records) {
            Some((found, records)) if records > 0 => {
                Err(BlkError::WrongChain { path, found, records })
            }
            _ => match files.magic_of_signet()? {
                Some(magic) => Err(BlkError::OwnSignet { path, magic }),
                None => Err(BlkError::NoBlocks { path, bytes: files.bytes_total() }),
            },
        }
    }

    pub(crate) fn add_torn(&mut self, location: BlockLocation) {
        self.torn_count += 1;
        if self.torn.len() < Self::LISTED_MAX {
            self.torn.push(location);
        }
    }

    pub(crate) fn add_resynced(&mut self, stretch: Stretch) {
        self.resynced_count += 1;
        self.resynced_bytes += stretch.length;
        if self.resynced.len() < Self::LISTED_MAX {
            self.resynced.push(stretch);
        }
    }

    pub(crate) fn add_foreign(&mut self, network: Network) {
        for (known, count) in Network::ALL.into_iter().zip(&mut self.foreign) {
            *count += u64::from(known == network);
        }
    }
}
