//! [`read_back()`]: a chainstate read by another implementation of LevelDB than the one that wrote
//! it.
//!
//! What a writer and a reader of the same hand agree on can still be wrong. So this goes through
//! the library `rusty-leveldb`, opened over an [`Overlay`]: nothing on disk is written and no lock
//! is taken. Memory does not grow with the database; in it are the index of the table being read
//! and what the library writes on opening.
//!
//! It takes every entry, refuses those that a node would stumble over, and hands out the coins.
//! It does not know which coins there should be: count and hash are for the caller to compare.
//! Filters are not looked at.

use super::overlay::Overlay;
use super::{ChainstateError, KEY_BEST_BLOCK, KEY_COIN, KEY_HEAD_BLOCKS, KEY_OBFUSCATION};
use crate::obfuscation::Obfuscation;
use apus_chain::{BlockHash, OutPoint, Reader, Txid, check_coin};
use core::ops::ControlFlow;
use rusty_leveldb::{DB, DBIterator, LdbIterator, Options, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

/// Tables whose indexes and filters the library keeps, a megabyte each, and ten that it subtracts.
const OPEN_FILES: usize = 10 + 4;

/// Nothing is read twice.
const CACHE_BYTES: usize = 64 << 10;

/// What a chainstate says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBack {
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
) -> Result<ReadBack, ChainstateError> {
    let mut entries = Entries::open(dir)?;
    let (mut key, mut best, mut coins) = (Obfuscation::NONE, None, 0);
    let mut value = Vec::new();
    while entries.next()? {
        let (name, stored) = (&entries.key[..], &entries.value[..]);
        if name == KEY_OBFUSCATION {
            key = obfuscation(dir, stored)?;
            continue;
        }
        value.clear();
        value.extend_from_slice(stored);
        key.apply(&mut value, 0);
        // The order of the keys puts all that follows behind the key and the block.
        if name == KEY_BEST_BLOCK {
            best = Some(block(dir, &value)?);
            continue;
        }
        if name == KEY_HEAD_BLOCKS {
            return Err(ChainstateError::Unfinished { path: dir.to_owned() });
        }
        let outpoint = outpoint(dir, name)?;
        if best.is_none() {
            break;
        }
        check_whole(&value).map_err(|source| {
            let path = dir.to_owned();
            ChainstateError::Coin { path, outpoint, source }
        })?;
        coins += 1;
        if each(outpoint, &value).is_break() {
            break;
        }
    }
    let best = best.ok_or_else(|| ChainstateError::NoBestBlock { path: dir.to_owned() })?;
    Ok(ReadBack { best, key, coins })
}

fn obfuscation(dir: &Path, value: &[u8]) -> Result<Obfuscation, ChainstateError> {
    let key = value.strip_prefix(&[Obfuscation::KEY_SIZE as u8]);
    let key = key.and_then(|key| key.try_into().ok()).map(Obfuscation::new);
    let entry = "the obfuscation key";
    key.ok_or_else(|| ChainstateError::Entry { path: dir.to_owned(), entry })
}

fn block(dir: &Path, value: &[u8]) -> Result<BlockHash, ChainstateError> {
    let entry = "the best block";
    let hash = value.try_into().map(BlockHash);
    hash.map_err(|_| ChainstateError::Entry { path: dir.to_owned(), entry })
}

fn outpoint(dir: &Path, key: &[u8]) -> Result<OutPoint, ChainstateError> {
    let parse = || {
        let (&KEY_COIN, name) = key.split_first()? else { return None };
        let mut reader = Reader::new(name);
        let txid = Txid(*reader.array().ok()?);
        let vout = u32::try_from(reader.varint().ok()?).ok()?;
        reader.finish().ok()?;
        Some(OutPoint { txid, vout })
    };
    parse().ok_or_else(|| {
        let key = key.iter().take(40).copied().collect();
        ChainstateError::Key { path: dir.to_owned(), key }
    })
}

fn check_whole(bytes: &[u8]) -> Result<(), apus_chain::CoinError> {
    let mut reader = Reader::new(bytes);
    check_coin(&mut reader)?;
    Ok(reader.finish()?)
}

/// The entries of a database as the library gives them, one at a time.
struct Entries<'d> {
    key: Vec<u8>,
    value: Vec<u8>,
    dir: &'d Path,
    overlay: Overlay,
    iterator: DBIterator,
    /// What the iterator reads from.
    _database: DB,
}

impl<'d> Entries<'d> {
    fn open(dir: &'d Path) -> Result<Self, ChainstateError> {
        let overlay = Overlay::default();
        let options = Options {
            env: Rc::new(Box::new(overlay.clone())),
            create_if_missing: false,
            max_open_files: OPEN_FILES,
            block_cache_capacity_bytes: CACHE_BYTES,
            // A manifest and log of its own: those that are there are not appended to.
            reuse_logs: true,
            reuse_manifest: false,
            ..Options::default()
        };
        let open = || -> Result<(DB, DBIterator), Status> {
            let mut database = DB::open(dir, options)?;
            let iterator = database.new_iter()?;
            Ok((database, iterator))
        };
        match told(dir, &overlay, open)? {
            Ok((_database, iterator)) => {
                let (key, value) = (Vec::new(), Vec::new());
                Ok(Self { key, value, dir, overlay, iterator, _database })
            }
            Err(status) => {
                Err(ChainstateError::Open { path: dir.to_owned(), what: status.to_string() })
            }
        }
    }

    /// Moves to the next one; false where there is none.
    fn next(&mut self) -> Result<bool, ChainstateError> {
        let Self { key, value, iterator, .. } = self;
        told(self.dir, &self.overlay, || {
            let entry = if iterator.advance() { iterator.current() } else { None };
            let Some((its_key, its_value)) = entry else { return false };
            key.clear();
            key.extend_from_slice(&its_key);
            value.clear();
            value.extend_from_slice(&its_value);
            true
        })
    }
}

/// Lets the library work; a fault that the overlay found ends it, and so does one that the
/// library did not expect.
fn told<T>(dir: &Path, overlay: &Overlay, work: impl FnOnce() -> T) -> Result<T, ChainstateError> {
    // After a fault nothing of the library's is used any more.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        overlay.fault.borrow_mut().take().unwrap_or_else(|| {
            let what = "it is damaged in a way that stopped the library that reads it".to_owned();
            ChainstateError::Open { path: dir.to_owned(), what }
        })
    })
}
