//! [`MakeError`]: why an index could not be made, and the checks that all indexes share.

use crate::block::IndexBlock;
use apus_chain::{BlockHash, BlockUndo, Height};
use apus_datadir::DatabaseError;
use apus_storage::Storage;
use std::io;
use std::path::PathBuf;

/// Why an index could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A file could not be written or read.
    #[error("{file}: {source}. Check the disk and its free space, then rerun the command")]
    File {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A database could not be written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// A database that was written has other entries when it is read back.
    #[error(
        "{folder} was written wrongly: {what}. Nothing was changed. Check disk and memory, then rerun the same command"
    )]
    ReadBack {
        /// The folder.
        folder: PathBuf,
        /// The fault.
        what: String,
    },
    /// A block and its undo data do not fit each other, or break a rule that the index relies on.
    #[error(
        "block {height} ({hash}) cannot be indexed: {what}. `apus verify` says whether the block files or the undo \
         data are damaged"
    )]
    Block {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
        /// The fault.
        what: &'static str,
    },
    /// The blocks do not make one chain: a mistake of the program.
    #[error("the blocks to index do not make one chain from genesis on: {what} at height {height}")]
    Chain {
        /// The height.
        height: Height,
        /// What does not fit.
        what: &'static str,
    },
}

impl MakeError {
    /// Returns a function that names the file of an error.
    pub(crate) fn of_file<'s>(
        storage: &'s dyn Storage,
        name: &'s str,
    ) -> impl FnOnce(io::Error) -> Self + 's {
        move |source| Self::File { file: storage.describe(name), source }
    }

    pub(crate) fn of_block(block: &IndexBlock<'_>, what: &'static str) -> Self {
        Self::Block { height: block.height, hash: block.hash, what }
    }
}

/// Returns the coins that a block spends; `None` for genesis, which spends none.
///
/// # Errors
///
/// Fails without undo data, and if they do not have a coin for each input.
pub(crate) fn expect_undo<'b>(
    block: &IndexBlock<'b>,
) -> Result<Option<&'b BlockUndo<'b>>, MakeError> {
    let Some(undo) = block.undo else {
        return match block.height {
            0 => Ok(None),
            _ => Err(MakeError::of_block(block, "its undo data are missing")),
        };
    };
    let fits = undo.tx_count() == block.view.tx_count()
        && (block.view.txs().enumerate().skip(1))
            .all(|(at, tx)| undo.spent_by(at).is_some_and(|it| it.len() == tx.inputs().len()));
    match fits {
        true => Ok(Some(undo)),
        false => Err(MakeError::of_block(block, "its undo data have not one coin for each input")),
    }
}

/// The blocks of a segment or of a whole chain: consecutive, each the parent of the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChainSpan {
    /// Height of the first block.
    pub first: Height,
    /// The parent of the first block.
    pub parent: BlockHash,
    /// The number of blocks, at least one.
    pub blocks: u32,
    /// The last block.
    pub last: BlockHash,
}

impl ChainSpan {
    /// Appends a block to a span, or begins one.
    pub(crate) fn push(span: &mut Option<Self>, block: &IndexBlock<'_>) -> Result<(), MakeError> {
        let parent = block.view.prev();
        let next = Self { first: block.height, parent, blocks: 1, last: block.hash };
        match span {
            None => *span = Some(next),
            Some(span) => span.append(&next)?,
        }
        Ok(())
    }

    fn append(&mut self, next: &Self) -> Result<(), MakeError> {
        let what = match self.first.checked_add(self.blocks) {
            Some(height) if height != next.first => "a block of another height comes",
            Some(_) if self.last != next.parent => "the block has another parent",
            Some(_) => {
                self.blocks += next.blocks;
                self.last = next.last;
                return Ok(());
            }
            None => "there is no such height",
        };
        Err(MakeError::Chain { height: next.first, what })
    }

    /// Joins the spans of all parts, which begin with genesis. `best` is the value of a best block: a
    /// locator whose first block must be the last of the chain.
    pub(crate) fn join(spans: impl Iterator<Item = Self>, best: &[u8]) -> Result<Self, MakeError> {
        let mut chain = None;
        for span in spans {
            match &mut chain {
                None if span.first == 0 && span.parent == BlockHash::ZERO => chain = Some(span),
                None => {
                    let what = "the first block is not genesis, but one";
                    return Err(MakeError::Chain { height: span.first, what });
                }
                Some(chain) => chain.append(&span)?,
            }
        }
        let none = MakeError::Chain { height: 0, what: "there is no block" };
        let chain = chain.ok_or(none)?;
        // A version of four bytes, then a count, which is short.
        if best.get(5..37) != Some(&chain.last.0) {
            let what = "the best block is another one, not that";
            return Err(MakeError::Chain { height: chain.first + chain.blocks - 1, what });
        }
        Ok(chain)
    }
}

/// Returns the key of the entry of the block at a height, in the indexes of filters and of coin statistics:
/// they keep blocks of the chain by height, big-endian (Core `index/db_key.h`, `DBHeightKey`).
pub(crate) fn height_key(height: Height) -> [u8; 5] {
    let [a, b, c, d] = height.to_be_bytes();
    [b't', a, b, c, d]
}
