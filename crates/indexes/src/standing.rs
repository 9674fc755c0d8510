//! [`index_standings`]: what a node does with its indexes when it starts.
//!
//! A node compares the best block of an index with its block index, and nothing else (Core `index/base.cpp`,
//! `BaseIndex::Init`). So an index that other coins left behind may be fine, cost hours, or keep the node from
//! starting.

use crate::forms::{IndexForm, index_folder};
use crate::found::forms_in;
use crate::locator::{best_block_of, height_in};
use apus_chain::{BlockHash, HeaderChain, Height, KnownBlock};
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
    /// Not known: a node with much cache left a log in its database that is too long to be read here.
    NotRead,
}

/// Returns how each index in a node's folder for a chain stands beside the chain, whose blocks are in `blocks`.
///
/// # Errors
/// If the node's block index cannot be read, and if the system fails to read an index.
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
    let has_txindex = [IndexForm::TxIndex, IndexForm::TxIndexV2]
        .iter()
        .any(|form| matches!(best(form), Ok(BestBlock::Of(_))));
    for form in forms {
        let standing = match best(&form)? {
            // One folder may have either form, or both.
            BestBlock::None | BestBlock::NotRead if form == IndexForm::TxIndexV2 => continue,
            BestBlock::None if form == IndexForm::TxIndex && has_txindex => continue,
            BestBlock::None => IndexStanding::Unusable,
            BestBlock::NotRead => IndexStanding::NotRead,
            BestBlock::Of(hash) if hash == *chain.tip_hash() => IndexStanding::Current,
            BestBlock::Of(hash) => match chain.height_of(&hash) {
                Some(height) => IndexStanding::Behind(height),
                None => {
                    let known = match &mut known {
                        Some(known) => known,
                        none => none.insert(DatabaseLookUps::open(&index)?),
                    };
                    let height = height_in(known, &hash)?;
                    let elsewhere = |height| IndexStanding::Elsewhere(KnownBlock { height, hash });
                    height.map_or(IndexStanding::Unknown(hash), elsewhere)
                }
            },
        };
        standings.push((form, standing));
    }
    Ok(standings)
}

/// The best block that an index has.
enum BestBlock {
    Of(BlockHash),
    /// None that a node can read.
    None,
    NotRead,
}

/// Reads the best block of an index.
fn best_block(database: &Path, form: IndexForm) -> Result<BestBlock, IndependentReadError> {
    let read =
        DatabaseLookUps::open(database).and_then(|mut index| index.get(form.best_block_key()));
    match read {
        Ok(locator) => Ok(locator
            .and_then(|locator| best_block_of(&locator))
            .map_or(BestBlock::None, BestBlock::Of)),
        Err(IndependentReadError::LongLog { .. }) => Ok(BestBlock::NotRead),
        Err(error @ IndependentReadError::Read { .. }) => Err(error),
        Err(_) => Ok(BestBlock::None),
    }
}
