//! Core's chainstate, a database of all coins: [`ChainstateWriter`] writes one from coins in order,
//! [`read_back()`] reads one through another implementation, and a [`CoinSample`] looks up single
//! coins in it. [`read_node`] reads a node's chainstate.
//!
//! `docs/formats/chainstate.md` describes the format, and how Core reacts to a wrong one. A chainstate names
//! its block and nothing else about itself: no network, no version, no count. Only a hash over all its coins
//! shows whether they are the right ones.

mod read;
mod sample;
#[cfg(test)]
mod tests;

pub use read::{ChainstateSummary, TakeCoin, check_files, node_best_block, read_back, read_node};
pub use sample::{CoinLookUp, CoinSample};

use crate::error::IndexError;
use crate::files::Obfuscation;
use crate::independent::IndependentReadError;
use crate::leveldb::{DatabaseError, DatabaseWriter, NumberedKey, WriterOptions};
use apus_chain::{BlockHash, CoinError, OutPoint, Reader, Txid, check_coin, vout_order};
use apus_storage::Storage;
use std::path::{Path, PathBuf};

/// The folder of a node's second chainstate, next to the first. A node uses it while it continues to sync
/// from a snapshot (Core `node/utxo_snapshot.h`, `SNAPSHOT_CHAINSTATE_SUFFIX`).
pub const SNAPSHOT_CHAINSTATE: &str = "chainstate_snapshot";

/// The first byte of a coin's key (Core `txdb.cpp`, `DB_COIN`); then its txid, then VARINT(vout).
const KEY_COIN: u8 = b'C';

/// The key of the coins' block (Core `txdb.cpp`, `DB_BEST_BLOCK`).
const KEY_BEST_BLOCK: &[u8] = b"B";

/// The key of two blocks: a node that stopped while writing was between them (Core `txdb.cpp`,
/// `DB_HEAD_BLOCKS`).
const KEY_HEAD_BLOCKS: &[u8] = b"H";

/// The key of the obfuscation key: a string prefixed with its length (Core `dbwrapper.cpp`,
/// `OBFUSCATION_KEY`). Its value, the byte 8 and 8 bytes of key, is the only one that is not
/// obfuscated.
const KEY_OBFUSCATION: &[u8] = b"\x0e\0obfuscate_key";

/// Why a chainstate could not be written or read back.
#[derive(Debug, thiserror::Error)]
pub enum ChainstateDbError {
    /// Writing the database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Reading the database back failed.
    #[error("{0}. Rebuild the chainstate")]
    Independent(#[from] IndependentReadError),
    /// A node's database is damaged.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Table {
        /// The file.
        path: PathBuf,
        /// The offset, as precisely as known.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// A file of a node's database is missing: the node may have just deleted it.
    #[error("{path} belongs to the chainstate but is missing")]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The folder has no database.
    #[error("there is no chainstate in {path}")]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// The system failed to read.
    #[error(
        "cannot read {path} at byte {offset}: {source}. Check the file's permissions and the disk"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The offset at which the read began.
        offset: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// The coins to write, or the stored entries, have a form that no node writes.
    #[error("{0}")]
    Invalid(String),
    /// The chainstate names no block, so a node would consider the set empty.
    #[error(
        "the chainstate {path} does not name its block. Do not start a node on it: the node would damage its \
        index"
    )]
    NoBestBlock {
        /// The folder.
        path: PathBuf,
        /// Whether it has coins. If not, its node has not written any yet.
        coins: bool,
    },
    /// A node was stopped while it was writing.
    #[error(
        "the chainstate {path} is between two blocks: a node stopped while it wrote its coins. Start that node \
         once, then stop it"
    )]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// A look-up disagrees with reading in order.
    #[error(
        "the chainstate {path} is inconsistent: a look-up of {entry} {what}. A node would refuse valid blocks, or \
         accept invalid ones. Rebuild the chainstate"
    )]
    LookUp {
        /// The folder.
        path: PathBuf,
        /// The entry looked up.
        entry: String,
        /// How the chainstate answered.
        what: &'static str,
    },
}

impl ChainstateDbError {
    /// Returns whether the content to write or to read is at fault, and not the disk or the program.
    pub fn is_invalid(&self) -> bool {
        !matches!(
            self,
            Self::Database(_)
                | Self::Independent(_)
                | Self::LookUp { .. }
                | Self::Read { .. }
                | Self::Vanished { .. }
        )
    }

    /// Reports an unreadable entry about the whole set.
    fn entry(dir: &Path, about: &str) -> Self {
        let dir = dir.display();
        Self::Invalid(format!(
            "the chainstate {dir}: the entry of {about} is not what Bitcoin Core writes"
        ))
    }
}

impl From<IndexError> for ChainstateDbError {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Missing { path } => Self::Missing { path },
            IndexError::Vanished { path } => Self::Vanished { path },
            IndexError::Open { path, source } => Self::Read { path, offset: 0, source },
            IndexError::Read { path, offset, source } => Self::Read { path, offset, source },
            IndexError::Corrupt { path, offset, what } => Self::Table { path, offset, what },
            IndexError::Entry { path, .. } => {
                let what = "an entry of a block, which does not belong in a chainstate";
                Self::Table { path, offset: 0, what }
            }
        }
    }
}

/// Writes a chainstate from start to end: takes all coins in the order of a snapshot and creates a database
/// in an empty folder.
///
/// It writes three kinds of entries: the obfuscation key, the hash of the coins' block, and the coins. They
/// sort in exactly this order, so it can write everything once and hold nothing back. It parses coins before
/// it writes them, and never completes a chainstate with a coin that a node could not read. It does not check
/// whether they are the right coins or belong to that block.
pub struct ChainstateWriter<'f> {
    database: DatabaseWriter<'f>,
    obfuscation: Obfuscation,
    last_txid: Option<Txid>,
    coins: u64,
    /// Whether an entry was refused, so coins are missing.
    failed: bool,
}

/// The size of a chainstate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainstateSize {
    /// The number of coins.
    pub coins: u64,
    /// The total length of its files in bytes.
    pub bytes: u64,
    /// The number of tables.
    pub tables: u64,
}

impl<'f> ChainstateWriter<'f> {
    /// Starts a chainstate at the block `best` in `folder`, which must be empty. `key` hides the
    /// values from virus scanners; [`Obfuscation::NONE`] leaves them plain.
    pub fn new(
        folder: &'f dyn Storage,
        best: BlockHash,
        key: Obfuscation,
    ) -> Result<Self, ChainstateDbError> {
        Self::with_options(folder, best, key, WriterOptions::default())
    }

    fn with_options(
        folder: &'f dyn Storage,
        best: BlockHash,
        obfuscation: Obfuscation,
        options: WriterOptions,
    ) -> Result<Self, ChainstateDbError> {
        let mut database = DatabaseWriter::new(folder, options)?;
        let mut value = vec![Obfuscation::KEY_SIZE as u8];
        value.extend_from_slice(&obfuscation.key());
        database.put(KEY_OBFUSCATION, &value)?;
        database.put_obfuscated(KEY_BEST_BLOCK, best.as_bytes(), obfuscation)?;
        let (last_txid, coins, failed) = (None, 0, false);
        Ok(Self { database, obfuscation, last_txid, coins, failed })
    }

    /// Adds all coins of one transaction, in the form of a snapshot without the txid: the count,
    /// then for each coin its output number and stored form. Transactions ascend by txid, outputs
    /// in [`vout_order`].
    ///
    /// After an error the chainstate cannot be finished. A later call may be the one to report a disk error.
    pub fn put_group(&mut self, txid: &Txid, group: &[u8]) -> Result<(), ChainstateDbError> {
        // Stays set if anything below fails.
        if core::mem::replace(&mut self.failed, true) {
            return Err(self.database.failed_before().into());
        }
        self.put_coins(txid, group)?;
        self.failed = false;
        Ok(())
    }

    fn put_coins(&mut self, txid: &Txid, group: &[u8]) -> Result<(), ChainstateDbError> {
        if let Some(previous) = self.last_txid
            && !words(txid).gt(words(&previous))
        {
            return Err(ChainstateDbError::Invalid(format!(
                "the coins of transaction {txid} must not follow those of {previous}"
            )));
        }
        self.last_txid = Some(*txid);

        let bad = |error: CoinError| {
            let what = format!(
                "bad coins of transaction {txid}: {error} (byte offsets from the start of this entry)"
            );
            ChainstateDbError::Invalid(what)
        };
        let mut reader = Reader::new(group);
        let count = reader.compact_u64().map_err(|error| bad(error.into()))?;
        if count == 0 {
            let what = format!("transaction {txid} has no coins");
            return Err(ChainstateDbError::Invalid(what));
        }
        let mut last_vout = None;
        for _ in 0..count {
            let vout = reader.compact_max(u64::from(u32::MAX));
            let vout = vout.map_err(|error| bad(error.into()))? as u32;
            if let Some(previous) = last_vout
                && vout_order(previous, vout).is_ge()
            {
                let outpoint = OutPoint { txid: *txid, vout };
                let what = format!("coin {outpoint} must not follow that of output {previous}");
                return Err(ChainstateDbError::Invalid(what));
            }
            last_vout = Some(vout);
            let coin = check_coin(&mut reader).map_err(bad)?;
            let key = NumberedKey { kind: KEY_COIN, hash: &txid.0, number: vout };
            self.database.put_numbered(key, coin, self.obfuscation)?;
            self.coins += 1;
        }
        reader.finish().map_err(|error| bad(error.into()))
    }

    /// Makes everything durable; before this, the folder holds no valid chainstate.
    pub fn finish(self) -> Result<ChainstateSize, ChainstateDbError> {
        if self.failed {
            return Err(self.database.failed_before().into());
        }
        let size = self.database.finish()?;
        Ok(ChainstateSize { coins: self.coins, bytes: size.bytes, tables: size.tables })
    }
}

/// Splits a txid into words that compare in the same order: the first word nearly always decides.
fn words(txid: &Txid) -> impl Iterator<Item = u64> {
    txid.0.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word))
}

/// Upper bound for the bytes of a chainstate on disk, to check the free space. `coin_bytes` is the total
/// length of the coins' stored forms. The actual size is a few percent lower.
pub fn size_bound(coins: u64, coin_bytes: u64) -> u64 {
    // Three lengths of 1 + 1 + 2 bytes; prefix, txid, output number of at most 3 bytes, tag.
    const ENTRY: u64 = 4 + 1 + 32 + 3 + 8;
    // Its index entry with key and handle; restarts and their count; checksums; the rounding of its
    // filter, and the filter's end.
    const BLOCK: u64 = 160;
    const TABLE: u64 = 1 << 10;
    const REST: u64 = 64 << 10;

    let entries = coins.saturating_mul(ENTRY).saturating_add(coin_bytes);
    // A restart for every 16 entries, and ten filter bits for each entry.
    let per_coin = (coins / 4).saturating_add((coins / 4).saturating_mul(5)).saturating_add(8);
    let blocks = (entries / (4 << 10)).saturating_add(1);
    let tables = (entries / (32 << 20)).saturating_add(1);
    entries
        .saturating_add(per_coin)
        .saturating_add(blocks.saturating_mul(BLOCK))
        .saturating_add(tables.saturating_mul(TABLE))
        .saturating_add(REST)
}
