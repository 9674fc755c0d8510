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
//! At each checkpoint, before the segments are made durable, a second file of this form gets all entries that the
//! first one lacks. So after a kill, no block is requested again just for its number. Once the second file has a
//! 128th of all entries, and at least 1,000, the first one gets all of them.

use crate::error::{StorageResult, SyncError};
use crate::workdir::names::{self, COUNTS, NEW_COUNTS};
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

/// The minimum number of new entries for which the first file is rewritten.
const NEW_MIN: usize = 1_000;

/// The part of all entries that must be new. So all rewrites together write 1.4 GB for the main chain.
const NEW_PART: usize = 128;

/// Numbers of transactions by the first eight bytes of the block's hash. To find two blocks with the same eight
/// bytes would take four billion times the work of a block.
///
/// Until [`TxCounts::begin`] nothing is remembered, and the file of an earlier start is not touched.
#[derive(Debug, Default)]
pub(super) struct TxCounts(Mutex<Option<CountsInner>>);

type Counts = HashMap<[u8; 8], u32>;

#[derive(Debug, Default)]
struct CountsInner {
    counts: Counts,
    /// Entries that the first file may lack.
    new: Counts,
    /// Whether some entries are in neither file.
    is_unsaved: bool,
}

fn key(hash: &BlockHash) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = hash.0;
    [a, b, c, d, e, f, g, h]
}

impl TxCounts {
    /// Starts remembering, and reads the entries of an earlier start.
    pub(super) fn begin(&self, storage: &dyn Storage, network: Network) -> Result<(), SyncError> {
        let [mut counts, new] =
            [read(storage, COUNTS, network)?, read(storage, NEW_COUNTS, network)?];
        counts.extend(&new);
        self.0.lock().get_or_insert(CountsInner { counts, new, is_unsaved: false });
        Ok(())
    }

    /// Remembers the number for a checked block.
    pub(super) fn put(&self, hash: &BlockHash, count: u32) {
        let mut inner = self.0.lock();
        let Some(inner) = &mut *inner else { return };
        if inner.counts.len() < BLOCKS_MAX && inner.counts.insert(key(hash), count).is_none() {
            inner.new.insert(key(hash), count);
            inner.is_unsaved = true;
        }
    }

    /// Returns the number of transactions of a block, if known.
    pub(super) fn get(&self, hash: &BlockHash) -> Option<u32> {
        self.0.lock().as_ref()?.counts.get(&key(hash)).copied()
    }

    /// Makes all entries durable.
    pub(super) fn store(&self, storage: &dyn Storage, network: Network) -> Result<(), SyncError> {
        let (name, bytes, new) = {
            let mut inner = self.0.lock();
            let Some(inner) = inner.as_mut().filter(|inner| inner.is_unsaved) else {
                return Ok(());
            };
            inner.is_unsaved = false;
            let enough = NEW_MIN.max(inner.counts.len() / NEW_PART);
            match inner.new.len() < enough {
                true => (NEW_COUNTS, to_bytes(&inner.new, network), Counts::new()),
                false => {
                    let new = std::mem::take(&mut inner.new);
                    (COUNTS, to_bytes(&inner.counts, network), new)
                }
            }
        };
        write_atomically(storage, name, &bytes).at(storage, name).inspect_err(|_| {
            if let Some(inner) = &mut *self.0.lock() {
                inner.new.extend(new);
                inner.is_unsaved = true;
            }
        })
    }
}

/// Reads a file.
fn read(storage: &dyn Storage, name: &str, network: Network) -> Result<Counts, SyncError> {
    let bytes = present(read_whole(storage, name, (FRAME + ENTRY * BLOCKS_MAX) as u64));
    let bytes = bytes.at(storage, name)?;
    Ok(bytes.and_then(|bytes| from_bytes(&bytes, network)).unwrap_or_default())
}

fn to_bytes(counts: &Counts, network: Network) -> Vec<u8> {
    let mut out = names::begin(MAGIC, VERSION);
    out.extend_from_slice(&network.magic());
    out.extend_from_slice(&(counts.len() as u32).to_le_bytes());
    for (hash, count) in counts {
        out.extend_from_slice(hash);
        out.extend_from_slice(&count.to_le_bytes());
    }
    names::seal(out)
}

fn from_bytes(bytes: &[u8], network: Network) -> Option<Counts> {
    let mut reader = names::open(bytes, MAGIC, VERSION)?;
    let is_ours = *reader.array().ok()? == network.magic();
    let count = reader.u32().ok().filter(|_| is_ours)? as usize;
    if bytes.len() != FRAME + ENTRY * count {
        return None;
    }
    let mut counts = Counts::with_capacity(count);
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

    fn all(counts: &TxCounts) -> Counts {
        counts.0.lock().as_ref().unwrap().counts.clone()
    }

    fn hash(number: u32) -> BlockHash {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&number.to_le_bytes());
        BlockHash(hash)
    }

    fn put(counts: &TxCounts, numbers: std::ops::Range<u32>) {
        numbers.for_each(|number| counts.put(&hash(number), number + 1));
    }

    fn some() -> TxCounts {
        let counts = begun(&CrashStorage::new(), Network::Regtest);
        put(&counts, 0..9);
        counts
    }

    #[test]
    fn each_entry_comes_back_after_a_crash() {
        let (storage, network) = (CrashStorage::new(), Network::Regtest);
        let counts = begun(&storage, network);
        let enough = NEW_MIN as u32;
        let (mut next, mut both) = (0, 0);
        for more in [9, enough - 10, 1, 7, enough, 1, 1] {
            put(&counts, next..next + more);
            next += more;
            counts.store(&storage, network).unwrap();
            let image = storage.durable_image();
            let read = begun(&image, network);
            assert_eq!(all(&read), all(&counts), "{next}");
            assert_eq!(read.get(&hash(next - 1)), Some(next));
            assert_eq!(read.get(&hash(next)), None);
            both += u32::from(image.names().unwrap().len() == 2);
        }
        assert_eq!(both, 5, "few entries are added to those in the first file");
        assert_eq!(begun(&storage, Network::Main).get(&hash(8)), None);
        // Calling `begin` twice loses no entry.
        put(&counts, next..next + 1);
        counts.begin(&storage, network).unwrap();
        assert_eq!(counts.get(&hash(next)), Some(next + 1));
    }

    #[test]
    fn a_run_that_needs_none_remembers_none() {
        let storage = CrashStorage::new();
        some().store(&storage, Network::Regtest).unwrap();
        let counts = TxCounts::default();
        put(&counts, 20..21);
        assert_eq!(counts.get(&hash(20)), None);
        counts.store(&storage, Network::Regtest).unwrap();
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
