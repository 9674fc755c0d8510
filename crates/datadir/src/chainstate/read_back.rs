//! [`read_back()`]: a chainstate read by another implementation of LevelDB than the one that wrote
//! it.
//!
//! It goes through [`Entries`], so nothing on disk is written and memory does not grow with the
//! database.
//!
//! It takes every entry, refuses those that a node would stumble over, and hands out the coins.
//! It does not know which coins there should be: count and hash are for the caller to compare. It goes
//! from the first entry to the last; what leads a node to a single one is for a
//! [`CoinSample`](super::CoinSample) to try.

use super::{ChainstateError, KEY_BEST_BLOCK, KEY_COIN, KEY_HEAD_BLOCKS, KEY_OBFUSCATION};
use crate::foreign::Entries;
use crate::obfuscation::Obfuscation;
use apus_chain::{BlockHash, OutPoint, Reader, Txid, check_coin};
use core::ops::ControlFlow;
use std::path::Path;

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
    ) -> Result<ControlFlow<()>, ChainstateError> {
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
            return Err(ChainstateError::Unfinished { path: dir.to_path_buf() });
        }
        let outpoint = outpoint(dir, name)?;
        if best.is_none() {
            let path = dir.to_path_buf();
            return Err(ChainstateError::NoBestBlock { path, coins: true });
        }
        check_whole(value).map_err(|source| {
            let path = dir.to_path_buf();
            ChainstateError::Coin { path, outpoint, source }
        })?;
        *coins += 1;
        Ok(each(outpoint, value))
    }

    /// What they say of themselves.
    pub(super) fn finish(self) -> Result<ReadBack, ChainstateError> {
        let Self { dir, key, best, coins, .. } = self;
        let path = dir.to_path_buf();
        let best = best.ok_or(ChainstateError::NoBestBlock { path, coins: false })?;
        Ok(ReadBack { best, key, coins })
    }
}

pub(super) fn obfuscation(dir: &Path, value: &[u8]) -> Result<Obfuscation, ChainstateError> {
    let key = value.strip_prefix(&[Obfuscation::KEY_SIZE as u8]);
    let key = key.and_then(|key| key.try_into().ok()).map(Obfuscation::new);
    let entry = "the obfuscation key";
    key.ok_or_else(|| ChainstateError::Entry { path: dir.to_owned(), entry })
}

pub(super) fn block(dir: &Path, value: &[u8]) -> Result<BlockHash, ChainstateError> {
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
