//! [`read_back()`]: reads a chainstate with an implementation of LevelDB that shares no code with
//! the one that wrote it.
//!
//! It reads through [`DatabaseEntries`], so it writes nothing to disk and its memory does not grow with the
//! database.
//!
//! It reads every entry, refuses entries that a node could not handle, and passes on the coins. It does not
//! know the right coins: the caller compares count and hash. It reads from the first entry to the last;
//! [`CoinSample`](super::CoinSample) tests the paths on which a node looks up a single entry.

use super::{ChainstateDbError, KEY_BEST_BLOCK, KEY_COIN, KEY_HEAD_BLOCKS, KEY_OBFUSCATION};
use crate::files::Obfuscation;
use crate::independent::DatabaseEntries;
use crate::leveldb::{self, Database};
use apus_chain::{BlockHash, OutPoint, Reader, Txid, check_coin};
use core::ops::ControlFlow;
use std::path::Path;

/// What a chainstate says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainstateSummary {
    /// The block of its coins.
    pub best: BlockHash,
    /// The key that obfuscates its values.
    pub key: Obfuscation,
    /// The number of coins read: all, unless `each` cancelled.
    pub coins: u64,
}

/// Reads the chainstate in the folder `dir` from start to end. `each` gets every coin in its stored
/// form, txids ascending, outputs in [`vout_order`](apus_chain::vout_order), and may cancel.
///
/// Refuses entries that Core does not write, coins with invalid or extra bytes, and a set that names no block
/// or is between two blocks. No node may write to the chainstate during the call.
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

/// Processes the entries of a chainstate in order. The entries may come from either reader.
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

    /// Takes the next entry, and passes it to `each` if it is a coin.
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
        // In key order, everything else follows the obfuscation key and the best block.
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
            let what = format!("the chainstate {dir}: coin {outpoint} cannot be read: {error}");
            ChainstateDbError::Invalid(what)
        })?;
        *coins += 1;
        Ok(each(outpoint, value))
    }

    /// Returns the chainstate's description of itself, once all entries are read.
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
            "the chainstate {} has an entry {:02x?} that Bitcoin Core does not write: a node would refuse or \
             ignore that entry",
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

/// Checks that the files of a node's chainstate in the folder `dir` exist and fit together, without
/// reading the content of its tables. Takes a second, regardless of its size.
///
/// # Errors
/// [`ChainstateDbError::Table`], `Vanished`, `Missing` and `Read`, like [`read_node`].
pub fn check_files(dir: &Path) -> Result<(), ChainstateDbError> {
    Ok(leveldb::check_files(dir)?)
}

/// Receives a coin in its stored form.
pub type TakeCoin<'a, E> = dyn FnMut(OutPoint, &[u8]) -> Result<(), E> + 'a;

/// Reads a node's chainstate in the folder `dir` from start to end, like [`read_back()`]. An error of `each` ends the
/// reading.
///
/// # Errors
/// Errors of `each`; [`ChainstateDbError::Table`] if a file is damaged or missing; otherwise like [`read_back()`].
///
/// It reads through `Database`, which only opens files for reading and takes no lock. It verifies every
/// checksum, including those of the filters, which a node uses to look up a coin. It sees a concurrent write
/// of a node completely or not at all. If the node removes a table before it was read, reading fails; then
/// start again.
pub fn read_node<E: From<ChainstateDbError>>(
    dir: &Path,
    each: &mut TakeCoin<'_, E>,
) -> Result<ChainstateSummary, E> {
    let (mut set, mut result) = (SetEntries::new(dir), Ok(()));
    let read = Database::open(dir).and_then(|database| {
        database.with_filters().for_each(&mut |key, value| {
            let mut coin = |outpoint, bytes: &[u8]| {
                result = each(outpoint, bytes);
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            Ok(set.entry(key, value, &mut coin).unwrap_or_else(|error| {
                result = Err(error.into());
                ControlFlow::Break(())
            }))
        })
    });
    result?;
    read.map_err(ChainstateDbError::from)?;
    Ok(set.finish()?)
}

/// Reads which block a node's coins in the folder `dir` are at; `None` while they are between two blocks.
///
/// # Errors
/// Like [`read_node`].
pub fn node_best_block(dir: &Path) -> Result<Option<BlockHash>, ChainstateDbError> {
    let (mut key, mut best) = (Obfuscation::NONE, Ok(None));
    Database::open(dir)?.for_each(&mut |name, stored| {
        // Both keys sort before the coins.
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
