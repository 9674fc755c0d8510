//! Core's chainstate, a database of all coins: [`ChainstateWriter`] makes one from coins in order,
//! [`read_back()`] reads one through another implementation, and a [`CoinSample`] asks that one for
//! single coins. [`read_node`] reads that of a node.
//!
//! `docs/formats/chainstate.md` has the format, and what Core makes of a wrong one. A chainstate
//! states the block that it is at and nothing else about itself: no network, no version, no count.
//! Whether its coins are the right ones only a hash over all of them tells.

mod read;
mod sample;
#[cfg(test)]
mod tests;

pub use read::{ChainstateSummary, check_files, node_best_block, read_back, read_node};
pub use sample::{CoinSample, LookedUp};

use crate::error::IndexError;
use crate::files::Obfuscation;
use crate::independent::IndependentReadError;
use crate::leveldb::{DatabaseError, DatabaseWriter, NumberedKey, WriterOptions};
use apus_chain::{BlockHash, CoinError, OutPoint, Reader, Txid, check_coin, vout_order};
use apus_storage::Storage;
use std::path::{Path, PathBuf};

/// The folder of a node's second set of coins, beside the first, while it goes on from a snapshot (Core
/// `node/utxo_snapshot.h`, `SNAPSHOT_CHAINSTATE_SUFFIX`).
pub const SNAPSHOT_CHAINSTATE: &str = "chainstate_snapshot";

/// The first byte of a coin's key (Core `txdb.cpp`, `DB_COIN`); then its txid, then VARINT(vout).
const KEY_COIN: u8 = b'C';

/// The key of the block that the coins are at (Core `txdb.cpp`, `DB_BEST_BLOCK`).
const KEY_BEST_BLOCK: &[u8] = b"B";

/// The key of the blocks between which a node was writing when it was stopped (Core `txdb.cpp`,
/// `DB_HEAD_BLOCKS`).
const KEY_HEAD_BLOCKS: &[u8] = b"H";

/// The key of the obfuscation key: a string with its length before it (Core `dbwrapper.cpp`,
/// `OBFUSCATION_KEY`). Its value, 8 and as many bytes, is the one that is not obfuscated.
const KEY_OBFUSCATION: &[u8] = b"\x0e\0obfuscate_key";

/// Why a chainstate could not be written or read back.
#[derive(Debug, thiserror::Error)]
pub enum ChainstateDbError {
    /// The database could not be written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The database could not be read back.
    #[error("{0}; write the chainstate anew")]
    Independent(#[from] IndependentReadError),
    /// The database of a node could not be read.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Table {
        /// The file.
        path: PathBuf,
        /// Where, as precisely as is known.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A file of a node's database is gone: the node may have replaced it meanwhile.
    #[error("{path} belongs to the chainstate but is not there")]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// There is no database.
    #[error("there is no chainstate in {path}")]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// The system could not read.
    #[error(
        "cannot read {path} at byte {offset}: {source}; see that it may be read, and check the disk"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// What the system said.
        source: std::io::Error,
    },
    /// The coins are none that can be written, or what is stored is none of what a node writes.
    #[error("{0}")]
    Invalid(String),
    /// No block is stated, so a node would take the set for empty.
    #[error(
        "the chainstate {path} does not say at which block it is; a node would damage its index"
    )]
    NoBestBlock {
        /// The folder.
        path: PathBuf,
        /// Whether there are coins. Without any it is that of a node which has written none yet.
        coins: bool,
    },
    /// A node was stopped while it wrote.
    #[error(
        "the chainstate {path} is between two blocks: a node was stopped while it wrote; start and \
         stop that node once"
    )]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// What is read in order is not what is found when a node asks for it.
    #[error(
        "the chainstate {path}, asked for {entry} as a node asks, {what}: a node would refuse valid \
         blocks, or worse; write the chainstate anew"
    )]
    LookUp {
        /// The folder.
        path: PathBuf,
        /// What was asked for.
        entry: String,
        /// What it answered.
        what: &'static str,
    },
}

impl ChainstateDbError {
    /// Whether what is stored, or was to be, is at fault, and not the disk or the program.
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

    /// An entry about the whole set cannot be read.
    fn entry(dir: &Path, about: &str) -> Self {
        let dir = dir.display();
        Self::Invalid(format!(
            "in the chainstate {dir} the entry of {about} is not what Bitcoin Core writes"
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
                let what = "an entry of a block, which no chainstate has";
                Self::Table { path, offset: 0, what }
            }
        }
    }
}

/// Writes a chainstate from start to end, from all coins in the order of a snapshot, as a new database in an empty folder.
///
/// It writes three kinds of entries: the obfuscation key, the block that the coins are at, the
/// coins. They come out in exactly this order, so everything is written once and nothing is held.
/// Coins are read before they are written, and a chainstate with one that a node could not read
/// never comes to be. Whether they are the right coins, and belong to that block, is not looked
/// at.
pub struct ChainstateWriter<'f> {
    database: DatabaseWriter<'f>,
    obfuscation: Obfuscation,
    last_txid: Option<Txid>,
    coins: u64,
    /// Whether something was refused, so that coins are missing.
    failed: bool,
}

/// What a chainstate takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainstateSize {
    /// How many coins it has.
    pub coins: u64,
    /// Length of its files together, in bytes.
    pub bytes: u64,
    /// How many tables there are.
    pub tables: u64,
}

impl<'f> ChainstateWriter<'f> {
    /// Begins a chainstate at the block `best` in `folder`, which must be empty. `key` hides the
    /// values from virus scanners; [`Obfuscation::NONE`] leaves them as they are.
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

    /// Adds all coins of one transaction, in the form of a snapshot without the txid: how many,
    /// then for each the number of the output and the coin as it is stored. Transactions ascend by
    /// txid, outputs as [`vout_order`] has it.
    ///
    /// After an error the chainstate cannot be finished. What a disk refuses may be told by a later
    /// call.
    pub fn put_group(&mut self, txid: &Txid, group: &[u8]) -> Result<(), ChainstateDbError> {
        // Stays so where anything below fails.
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
            let what =
                format!("bad coins of transaction {txid}: {error} (counted from their count)");
            ChainstateDbError::Invalid(what)
        };
        let mut reader = Reader::new(group);
        let count = reader.compact_u64().map_err(|error| bad(error.into()))?;
        if count == 0 {
            let what = format!("transaction {txid} comes without a coin");
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

    /// Makes everything durable; after this it is a chainstate.
    pub fn finish(self) -> Result<ChainstateSize, ChainstateDbError> {
        if self.failed {
            return Err(self.database.failed_before().into());
        }
        let size = self.database.finish()?;
        Ok(ChainstateSize { coins: self.coins, bytes: size.bytes, tables: size.tables })
    }
}

/// A txid in words that are in its order: the first nearly always decides.
fn words(txid: &Txid) -> impl Iterator<Item = u64> {
    txid.0.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word))
}

/// At most how many bytes a chainstate takes on disk, for a check of the free space: of so many
/// coins, whose stored forms have `coin_bytes` together. Some percent more than it will be.
pub fn size_bound(coins: u64, coin_bytes: u64) -> u64 {
    // Three lengths of 1 + 1 + 2 bytes; prefix, txid, output number of at most 3 bytes, tag.
    const ENTRY: u64 = 4 + 1 + 32 + 3 + 8;
    // Its place in the index with key and handle; restarts and their count; checksums; what
    // rounding up adds to its filter and the ends of that.
    const BLOCK: u64 = 160;
    const TABLE: u64 = 1 << 10;
    const REST: u64 = 64 << 10;

    let entries = coins.saturating_mul(ENTRY).saturating_add(coin_bytes);
    // A restart for 16 entries, ten bits of a filter for each.
    let per_coin = (coins / 4).saturating_add((coins / 4).saturating_mul(5)).saturating_add(8);
    let blocks = (entries / (4 << 10)).saturating_add(1);
    let tables = (entries / (32 << 20)).saturating_add(1);
    entries
        .saturating_add(per_coin)
        .saturating_add(blocks.saturating_mul(BLOCK))
        .saturating_add(tables.saturating_mul(TABLE))
        .saturating_add(REST)
}
