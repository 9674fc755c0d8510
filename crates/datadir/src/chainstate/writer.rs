//! [`ChainstateWriter`]: a chainstate from all coins in the order of a snapshot.
//!
//! It writes three kinds of entries: the obfuscation key, the block that the coins are at, the
//! coins. They come out in exactly this order, so everything is written once and nothing is held.
//! Coins are read before they are written, and a chainstate with one that a node could not read
//! never comes to be. Whether they are the right coins, and belong to that block, is not looked
//! at.
//!
//! It makes a new database in an empty folder; it never changes one that exists.

use super::{ChainstateDbError, KEY_BEST_BLOCK, KEY_COIN, KEY_OBFUSCATION};
use crate::files::Obfuscation;
use crate::leveldb::{DatabaseWriter, NumberedKey, WriterOptions};
use apus_chain::{BlockHash, CoinError, OutPoint, Reader, Txid, check_coin, vout_order};
use apus_storage::Storage;

/// Writes a chainstate from start to end.
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

    pub(super) fn with_options(
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
