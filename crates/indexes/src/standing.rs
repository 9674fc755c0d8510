//! [`index_standings`]: what a node does with its indexes when it starts.
//!
//! A node compares the best block of an index with its block index, and nothing else (Core `index/base.cpp`,
//! `BaseIndex::Init`). So an index that other coins left behind may be fine, cost hours, or keep the node from
//! starting.

use crate::forms::{IndexForm, index_folder};
use crate::found::forms_in;
use apus_chain::{BlockHash, HeaderChain, Height, KnownBlock, Reader};
use apus_datadir::{BlocksFolder, DatabaseLookUps, IndependentReadError};
use std::path::Path;

/// Where an index stands beside a chain, the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexStanding {
    /// At the chain's last block: the node starts with it as it is.
    Current,
    /// At a lower block of the chain: the node indexes the blocks above.
    Behind(Height),
    /// At a block that the node knows but the chain does not have: it is above the last one, or on a branch that the
    /// node left. The node goes back to the chain with the blocks that it has of the branch.
    Elsewhere(KnownBlock),
    /// At a block that the node does not know: the node ends with an error.
    Unknown(BlockHash),
    /// At no block, or its database is damaged: the node builds it from genesis on what is there, or ends with an error.
    Unusable,
}

/// Returns how each index in a node's folder for a chain stands beside the chain, whose blocks are in `blocks`.
///
/// # Errors
/// If the node's block index cannot be read.
pub fn index_standings(
    folder: &Path,
    blocks: &BlocksFolder,
    chain: &HeaderChain,
) -> Result<Vec<(IndexForm, IndexStanding)>, IndependentReadError> {
    let index = blocks.index();
    let mut known = None;
    let mut standings = Vec::new();
    let forms = forms_in(folder);
    let best =
        |form: &IndexForm| best_block(&index_folder(folder, *form).join(form.database()), *form);
    let has_txindex =
        [IndexForm::TxIndex, IndexForm::TxIndexV2].iter().any(|form| best(form).is_some());
    for form in forms {
        let standing = match best(&form) {
            // One folder may have either form, or both.
            None if form == IndexForm::TxIndexV2 || form == IndexForm::TxIndex && has_txindex => {
                continue;
            }
            None => IndexStanding::Unusable,
            Some(hash) if hash == *chain.tip_hash() => IndexStanding::Current,
            Some(hash) => match chain.height_of(&hash) {
                Some(height) => IndexStanding::Behind(height),
                None => {
                    let known = match &mut known {
                        Some(known) => known,
                        none => none.insert(DatabaseLookUps::open(&index)?),
                    };
                    let height = height_of(known, &hash)?;
                    let elsewhere = |height| IndexStanding::Elsewhere(KnownBlock { height, hash });
                    height.map_or(IndexStanding::Unknown(hash), elsewhere)
                }
            },
        };
        standings.push((form, standing));
    }
    Ok(standings)
}

/// Reads the best block of an index; `None` if it has none that a node can read.
fn best_block(database: &Path, form: IndexForm) -> Option<BlockHash> {
    let locator = DatabaseLookUps::open(database).ok()?.get(form.best_block_key()).ok()??;
    let mut reader = Reader::new(&locator);
    let _version = reader.u32().ok()?;
    let count = reader.compact_size().ok()?;
    (count > 0).then(|| reader.array().ok().map(|hash| BlockHash(*hash)))?
}

/// Looks up the height of a block in a node's block index (Core `txdb.cpp`, `CBlockTreeDB`).
fn height_of(
    index: &mut DatabaseLookUps<'_>,
    hash: &BlockHash,
) -> Result<Option<Height>, IndependentReadError> {
    let key = [&b"b"[..], hash.as_bytes()].concat();
    let Some(entry) = index.get(&key)? else { return Ok(None) };
    let mut reader = Reader::new(&entry);
    let height = reader.varint().and_then(|_version| reader.varint()).ok();
    Ok(height.and_then(|height| height.try_into().ok()))
}
