//! [`TxCounts`]: the numbers of transactions of blocks, on any chain.
//!
//! An index of pruned blocks needs all of them. A sync that writes one keeps them in memory, 27 MB for the main
//! chain, and in the work folder, so that a resumed sync requests no block again. If the file is unreadable,
//! the sync requests the blocks again.
//!
//! ```text
//! 8     41 50 55 53 54 58 4e 53   "APUSTXNS"
//! 4     version, 1
//! 4     magic of the network
//! 4     number of entries
//! 12    each: first 8 bytes of the block's hash, number of its transactions (4)
//! 32    SHA-256 of all bytes before
//! ```
//!
//! The file is rewritten at a checkpoint when a 128th of it is new, and at least 1,000 entries; and when a sync
//! fails or is interrupted. A killed sync requests at most the other blocks again: the main chain's last 7,000 have
//! 12 GB.

use crate::error::{StorageResult, SyncError};
use crate::workdir::names::{self, COUNTS};
use crate::workdir::present;
use apus_chain::{BlockHash, Height, Network, Params};
use apus_p2p::network::BlockProvider;
use apus_storage::{Storage, read_whole, write_atomically};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

const MAGIC: &[u8; 8] = b"APUSTXNS";

const VERSION: u32 = 1;

/// Bytes besides the entries.
const FRAME: usize = 52;
const ENTRY: usize = 12;

/// Maximum number of remembered blocks: more than twice the main chain.
const BLOCKS_MAX: usize = 1 << 21;

/// The file is rewritten when there are this many new entries, and when the sync ends.
const STORED_EVERY: usize = 1_000;

/// It is rewritten when this part of its entries is new. So all rewrites together write 1.4 GB for the main chain.
const STORED_PART: usize = 128;

/// Numbers of transactions by the first eight bytes of the block's hash. To find two blocks with the same eight
/// bytes would take four billion times the work of a block.
///
/// Until [`TxCounts::begin`] nothing is remembered, and the file of an earlier start is not touched.
#[derive(Debug, Default)]
pub(super) struct TxCounts(Mutex<Option<CountsInner>>);

#[derive(Debug, Default)]
struct CountsInner {
    counts: HashMap<[u8; 8], u32>,
    unsaved: usize,
}

fn key(hash: &BlockHash) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    [a, b, c, d, e, f, g, h]
}

impl TxCounts {
    /// Starts remembering, and reads the entries of an earlier start.
    pub(super) fn begin(&self, storage: &dyn Storage, network: Network) -> Result<(), SyncError> {
        let counts = read(storage, network)?;
        self.0.lock().get_or_insert(CountsInner { counts, unsaved: 0 });
        Ok(())
    }

    /// Remembers the number for a checked block.
    pub(super) fn put(&self, hash: &BlockHash, count: u32) {
        let mut inner = self.0.lock();
        let Some(inner) = &mut *inner else { return };
        if inner.counts.len() < BLOCKS_MAX && inner.counts.insert(key(hash), count).is_none() {
            inner.unsaved += 1;
        }
    }

    /// Returns the number of transactions of a block, if known.
    pub(super) fn get(&self, hash: &BlockHash) -> Option<u32> {
        self.0.lock().as_ref()?.counts.get(&key(hash)).copied()
    }

    /// Makes the entries durable if enough of them are new, or if `all` is set.
    pub(super) fn store(
        &self,
        storage: &dyn Storage,
        network: Network,
        all: bool,
    ) -> Result<(), SyncError> {
        let bytes = {
            let mut inner = self.0.lock();
            let Some(inner) = &mut *inner else { return Ok(()) };
            let enough = STORED_EVERY.max(inner.counts.len() / STORED_PART);
            if inner.unsaved == 0 || !all && inner.unsaved < enough {
                return Ok(());
            }
            inner.unsaved = 0;
            to_bytes(&inner.counts, network)
        };
        write_atomically(storage, COUNTS, &bytes).at(storage, COUNTS)
    }
}

/// Reads the file.
fn read(storage: &dyn Storage, network: Network) -> Result<HashMap<[u8; 8], u32>, SyncError> {
    let bytes = present(read_whole(storage, COUNTS, (FRAME + ENTRY * BLOCKS_MAX) as u64));
    let bytes = bytes.at(storage, COUNTS)?;
    Ok(bytes.and_then(|bytes| from_bytes(&bytes, network)).unwrap_or_default())
}

fn to_bytes(counts: &HashMap<[u8; 8], u32>, network: Network) -> Vec<u8> {
    let mut out = names::begin(MAGIC, VERSION);
    out.extend_from_slice(&network.magic());
    out.extend_from_slice(&(counts.len() as u32).to_le_bytes());
    for (hash, count) in counts {
        out.extend_from_slice(hash);
        out.extend_from_slice(&count.to_le_bytes());
    }
    names::seal(out)
}

fn from_bytes(bytes: &[u8], network: Network) -> Option<HashMap<[u8; 8], u32>> {
    let mut reader = names::open(bytes, MAGIC, VERSION)?;
    let is_ours = *reader.array().ok()? == network.magic();
    let count = reader.u32().ok().filter(|_| is_ours)? as usize;
    if bytes.len() != FRAME + ENTRY * count {
        return None;
    }
    let mut counts = HashMap::with_capacity(count);
    for _ in 0..count {
        counts.insert(*reader.array().ok()?, reader.u32().ok()?);
    }
    Some(counts)
}

// [`RecentBlocks`]: the latest blocks, for peers that request them, and for reorganizations.

/// Maximum bytes of these blocks.
const BYTES_MAX: usize = 32 << 20;

/// The latest blocks, in memory.
#[derive(Debug, Default)]
pub(super) struct RecentBlocks {
    inner: Mutex<RecentInner>,
}

#[derive(Debug, Default)]
struct RecentInner {
    order: VecDeque<BlockHash>,
    blocks: HashMap<BlockHash, Vec<u8>>,
    bytes: usize,
}

impl RecentBlocks {
    pub(super) fn put(&self, hash: BlockHash, raw: &[u8]) {
        let mut inner = self.inner.lock();
        if inner.blocks.contains_key(&hash) {
            return;
        }
        inner.bytes += raw.len();
        inner.order.push_back(hash);
        inner.blocks.insert(hash, raw.to_vec());
        while inner.bytes > BYTES_MAX
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.bytes -= inner.blocks.remove(&oldest).map_or(0, |raw| raw.len());
        }
    }
}

impl BlockProvider for RecentBlocks {
    fn block(&self, hash: &BlockHash) -> Option<Vec<u8>> {
        self.inner.lock().blocks.get(hash).cloned()
    }

    fn has(&self, hash: &BlockHash) -> bool {
        self.inner.lock().blocks.contains_key(hash)
    }

    fn keeps_all(&self) -> bool {
        false
    }
}

// Approximate sizes of blocks that are known only by their headers.

/// Heights in a step of [`MAIN_KB`].
const STEP: Height = 50_000;

/// Mean size of the main chain's blocks in each step, in kilobytes, rounded from the growth of the block files.
/// Good enough for dividing work and showing progress.
const MAIN_KB: [u64; 19] = [
    1, 1, 12, 60, 130, 200, 280, 480, 840, 1000, 900, 1000, 1200, 1100, 1200, 1500, 1700, 1750,
    1700,
];

/// Assumed size of a block on other chains.
const OTHER_BYTES: u64 = 256 << 10;

/// Estimates the size of a block, in bytes.
pub(super) fn block_bytes(params: &Params, height: Height, with_witness: bool) -> u64 {
    if params.network != Network::Main {
        return OTHER_BYTES;
    }
    let step = ((height / STEP) as usize).min(MAIN_KB.len() - 1);
    // About two fifths are witnesses.
    let tenths = if with_witness || height < params.segwit_height { 10 } else { 6 };
    MAIN_KB[step] * 100 * tenths
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::storage::CrashStorage;

    fn begun(storage: &dyn Storage, network: Network) -> TxCounts {
        let counts = TxCounts::default();
        counts.begin(storage, network).unwrap();
        counts
    }

    fn all(counts: &TxCounts) -> HashMap<[u8; 8], u32> {
        counts.0.lock().as_ref().unwrap().counts.clone()
    }

    fn some() -> TxCounts {
        let counts = begun(&CrashStorage::new(), Network::Regtest);
        (0..9).for_each(|number| counts.put(&BlockHash([number; 32]), u32::from(number) + 1));
        counts
    }

    #[test]
    fn they_come_back() {
        let storage = CrashStorage::new();
        let counts = some();
        counts.store(&storage, Network::Regtest, false).unwrap();
        assert!(storage.names().unwrap().is_empty(), "too few to write");
        counts.store(&storage, Network::Regtest, true).unwrap();
        let storage = storage.durable_image();
        let read = begun(&storage, Network::Regtest);
        assert_eq!(read.get(&BlockHash([8; 32])), Some(9));
        assert_eq!(read.get(&BlockHash([9; 32])), None);
        assert_eq!(all(&read), all(&counts));
        assert_eq!(begun(&storage, Network::Main).get(&BlockHash([8; 32])), None);
        // Calling `begin` twice loses no entry.
        read.put(&BlockHash([9; 32]), 1);
        read.begin(&storage, Network::Regtest).unwrap();
        assert_eq!(read.get(&BlockHash([9; 32])), Some(1));
    }

    #[test]
    fn a_run_that_needs_none_remembers_none() {
        let storage = CrashStorage::new();
        some().store(&storage, Network::Regtest, true).unwrap();
        let counts = TxCounts::default();
        counts.put(&BlockHash([20; 32]), 1);
        assert_eq!(counts.get(&BlockHash([20; 32])), None);
        counts.store(&storage, Network::Regtest, true).unwrap();
        assert!(counts.0.lock().is_none());
        assert_eq!(all(&begun(&storage, Network::Regtest)).len(), 9, "the file is as it was");
    }

    #[test]
    fn damaged_counts_are_ignored() {
        let bytes = to_bytes(&all(&some()), Network::Regtest);
        assert!(from_bytes(&bytes, Network::Regtest).is_some());
        for length in 0..bytes.len() {
            assert_eq!(from_bytes(&bytes[..length], Network::Regtest), None, "{length}");
        }
        for place in 0..bytes.len() {
            let mut copy = bytes.clone();
            copy[place] ^= 1 << (place % 8);
            assert_eq!(from_bytes(&copy, Network::Regtest), None, "{place}");
        }
    }
}
