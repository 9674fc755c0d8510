//! [`read_back()`]: a chainstate read by another implementation of LevelDB than the one that wrote
//! it.
//!
//! It goes through [`DatabaseEntries`], so nothing on disk is written and memory does not grow with the
//! database.
//!
//! It takes every entry, refuses those that a node would stumble over, and hands out the coins.
//! It does not know which coins there should be: count and hash are for the caller to compare. It goes
//! from the first entry to the last; what leads a node to a single one is for a
//! [`CoinSample`](super::CoinSample) to try.

use super::{ChainstateDbError, KEY_BEST_BLOCK, KEY_COIN, KEY_HEAD_BLOCKS, KEY_OBFUSCATION};
use crate::files::Obfuscation;
use crate::independent::DatabaseEntries;
use crate::leveldb::{self, Database};
use apus_chain::{BlockHash, OutPoint, Reader, Txid, check_coin};
use core::ops::ControlFlow;
use std::path::Path;

/// What a chainstate says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainstateSummary {
    /// The block that its coins are at.
    pub best: BlockHash,
    /// What its values were obfuscated by.
    pub key: Obfuscation,
    /// How many coins were read: all, unless `each` broke off.
    pub coins: u64,
}

/// Reads the chainstate in the folder `dir` from start to end. `each` gets every coin in its stored
/// form, txids ascending, outputs as [`vout_order`](apus_chain::vout_order) has it, and may break
/// off.
///
/// Refused are entries that are none of Core's, coins that cannot be read to their last byte, and
/// a set that is at no block, or between two. A node must not write to it meanwhile.
pub fn read_back(
    dir: &Path,
    each: &mut dyn FnMut(OutPoint, &[u8]) -> ControlFlow<()>,
) -> Result<ChainstateSummary, ChainstateDbError> {
    let mut entries = DatabaseEntries::open(dir)?;
    let mut set = SetEntries::new(dir);
    while let Some((key, value)) = entries.next()? {
        if set.entry(key, value, each)?.is_break() {
            break;
        }
    }
    set.finish()
}

/// The entries of a chainstate as they come, by whatever they are read.
pub(super) struct SetEntries<'d> {
    dir: &'d Path,
    key: Obfuscation,
    best: Option<BlockHash>,
    coins: u64,
    value: Vec<u8>,
}

impl<'d> SetEntries<'d> {
    pub(super) fn new(dir: &'d Path) -> Self {
        Self { dir, key: Obfuscation::NONE, best: None, coins: 0, value: Vec::new() }
    }

    /// Takes the next entry, and gives it to `each` if it is a coin.
    pub(super) fn entry(
        &mut self,
        name: &[u8],
        stored: &[u8],
        each: &mut dyn FnMut(OutPoint, &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, ChainstateDbError> {
        let Self { dir, key, best, coins, value } = self;
        if name == KEY_OBFUSCATION {
            *key = obfuscation(dir, stored)?;
            return Ok(ControlFlow::Continue(()));
        }
        value.clear();
        value.extend_from_slice(stored);
        key.apply(value, 0);
        // The order of the keys puts all that follows behind the key and the block.
        if name == KEY_BEST_BLOCK {
            *best = Some(block(dir, value)?);
            return Ok(ControlFlow::Continue(()));
        }
        if name == KEY_HEAD_BLOCKS {
            return Err(ChainstateDbError::Unfinished { path: dir.to_path_buf() });
        }
        let outpoint = outpoint(dir, name)?;
        if best.is_none() {
            let path = dir.to_path_buf();
            return Err(ChainstateDbError::NoBestBlock { path, coins: true });
        }
        check_whole(value).map_err(|error| {
            let dir = dir.display();
            let what = format!("in the chainstate {dir} coin {outpoint} cannot be read: {error}");
            ChainstateDbError::Invalid(what)
        })?;
        *coins += 1;
        Ok(each(outpoint, value))
    }

    /// What they say of themselves.
    pub(super) fn finish(self) -> Result<ChainstateSummary, ChainstateDbError> {
        let Self { dir, key, best, coins, .. } = self;
        let path = dir.to_path_buf();
        let best = best.ok_or(ChainstateDbError::NoBestBlock { path, coins: false })?;
        Ok(ChainstateSummary { best, key, coins })
    }
}

pub(super) fn obfuscation(dir: &Path, value: &[u8]) -> Result<Obfuscation, ChainstateDbError> {
    let key = value.strip_prefix(&[Obfuscation::KEY_SIZE as u8]);
    let key = key.and_then(|key| key.try_into().ok()).map(Obfuscation::new);
    key.ok_or_else(|| ChainstateDbError::entry(dir, "the obfuscation key"))
}

pub(super) fn block(dir: &Path, value: &[u8]) -> Result<BlockHash, ChainstateDbError> {
    let hash = value.try_into().map(BlockHash);
    hash.map_err(|_| ChainstateDbError::entry(dir, "the best block"))
}

fn outpoint(dir: &Path, key: &[u8]) -> Result<OutPoint, ChainstateDbError> {
    let parse = || {
        let (&KEY_COIN, name) = key.split_first()? else { return None };
        let mut reader = Reader::new(name);
        let txid = Txid(*reader.array().ok()?);
        let vout = u32::try_from(reader.varint().ok()?).ok()?;
        reader.finish().ok()?;
        Some(OutPoint { txid, vout })
    };
    parse().ok_or_else(|| {
        ChainstateDbError::Invalid(format!(
            "the chainstate {} has an entry {:02x?}, which is none of Bitcoin Core's; a node \
             would refuse it or overlook it",
            dir.display(),
            &key[..key.len().min(40)]
        ))
    })
}

fn check_whole(bytes: &[u8]) -> Result<(), apus_chain::CoinError> {
    let mut reader = Reader::new(bytes);
    check_coin(&mut reader)?;
    Ok(reader.finish()?)
}

/// Sees that the files of a node's chainstate in the folder `dir` are there and fit together, without
/// reading what is in its tables: in a second, whatever its size.
///
/// # Errors
/// [`ChainstateDbError::Table`], `Vanished`, `Missing` and `Read`, as [`read_node`] would end with.
pub fn check_files(dir: &Path) -> Result<(), ChainstateDbError> {
    Ok(leveldb::check_files(dir)?)
}

/// Reads a node's chainstate in the folder `dir` from start to end, as [`read_back()`](super::read_back())
/// reads one that was written here.
///
/// # Errors
/// [`ChainstateDbError::Table`] where a file is damaged or gone; otherwise as there.
///
/// It is read through `Database`, which opens files for reading and takes no lock; every checksum is
/// compared, those of filters too, which a node goes by when it looks for a coin. What a node is writing
/// meanwhile is seen whole or not at all, but a table that is gone before it was read ends the reading:
/// reading again from the start helps.
pub fn read_node(
    dir: &Path,
    each: &mut dyn FnMut(OutPoint, &[u8]) -> ControlFlow<()>,
) -> Result<ChainstateSummary, ChainstateDbError> {
    let mut set = SetEntries::new(dir);
    let mut failed = None;
    Database::open(dir)?.with_filters().for_each(&mut |key, value| {
        Ok(set.entry(key, value, each).unwrap_or_else(|error| {
            failed = Some(error);
            ControlFlow::Break(())
        }))
    })?;
    failed.map_or_else(|| set.finish(), Err)
}

/// The block that a node's coins in the folder `dir` are at; none while it is between two.
///
/// # Errors
/// As [`read_node`].
pub fn node_best_block(dir: &Path) -> Result<Option<BlockHash>, ChainstateDbError> {
    let (mut key, mut best) = (Obfuscation::NONE, Ok(None));
    Database::open(dir)?.for_each(&mut |name, stored| {
        // Both come before the coins.
        match name {
            KEY_OBFUSCATION => match obfuscation(dir, stored) {
                Ok(found) => key = found,
                Err(error) => best = Err(error),
            },
            KEY_BEST_BLOCK => {
                let mut value = stored.to_vec();
                key.apply(&mut value, 0);
                best = block(dir, &value).map(Some);
            }
            _ => {}
        }
        let is_over = best.is_err() || name >= KEY_BEST_BLOCK;
        Ok(if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    best
}
