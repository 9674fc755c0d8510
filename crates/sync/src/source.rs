//! [`BlockSource`]: where raw blocks come from, as the pipeline sees it.
//!
//! A source is shared; each worker thread has a [`BlockFetcher`] of its own and asks it for whole
//! segments. Nothing promises an order inside a segment. Blocks are data of no standing: the
//! receiver checks each and may turn down a copy that is damaged, whereupon the source looks for
//! another one.

use crate::blocksdir::files_error_kind;
use crate::error::ErrorKind;
use apus_chain::{BlockError, BlockHash, Height, HeightRange};

/// What a receiver made of a raw block.
#[derive(Debug)]
pub enum Taken {
    /// It was taken.
    Yes,
    /// The copy is damaged; another one may be good.
    Damaged(BlockError),
    /// Stop: the receiver has an error of its own to report, or was interrupted.
    Stop,
}

/// Why a source could not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Core's block files.
    #[error(transparent)]
    Files(#[from] apus_datadir::BlkError),
    /// The index of the blocks, where nothing can take its place.
    #[error("{0}")]
    Index(#[from] apus_datadir::IndexError),
    /// No header of the chain has a block: only genesis is known.
    #[error(
        "no block that follows the genesis block of the {chain} chain was found: give the folder \
         that holds blk00000.dat and all files after it"
    )]
    NoChain {
        /// The chain's name.
        chain: &'static str,
    },
    /// The node whose index is followed has connected nothing.
    #[error(
        "by its block index the node of {folder} has connected no block whose undo data it kept: start \
         it and let it connect some blocks first, or give its folder of blocks to `apus sync`, \
         which goes by the blocks alone"
    )]
    NoneConnected {
        /// The folder of its blocks.
        folder: String,
    },
    /// A file with blocks that the node connected is gone.
    #[error(
        "{folder} has no blk{number:05}.dat, in which the node's block index has connected blocks: \
         restore the file, or start the node with -reindex, which downloads what is missing"
    )]
    FileMissing {
        /// The folder of the node's blocks.
        folder: String,
        /// The file's number.
        number: u32,
    },
    /// Every copy of a block is damaged.
    #[error(
        "block {height} ({hash}) in {place}: {error} [{}]: every copy found is damaged; restore \
         the file or let the node download the block again",
        .error.reason()
    )]
    Damaged {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
        /// File and offset of the last copy tried.
        place: String,
        /// What is wrong with it.
        error: BlockError,
    },
    /// A source that gave fewer blocks than it was asked for, and no error.
    #[error(
        "the source of blocks gave not all of heights {} to {}: this is a mistake in the program",
        .range.start, .range.end - 1
    )]
    Incomplete {
        /// The heights asked for.
        range: HeightRange,
    },
    /// Somebody stopped the run.
    #[error("interrupted")]
    Interrupted,
}

impl SourceError {
    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Files(error) => files_error_kind(error),
            Self::Index(_) => ErrorKind::Io,
            Self::NoChain { .. }
            | Self::NoneConnected { .. }
            | Self::FileMissing { .. }
            | Self::Damaged { .. }
            | Self::Incomplete { .. } => ErrorKind::Invalid,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

/// A place that blocks come from.
pub trait BlockSource: Sync {
    /// A fetcher for one thread.
    fn fetcher(&self) -> Box<dyn BlockFetcher + '_>;

    /// About how many bytes the block at `height` has, for dividing work.
    fn block_bytes(&self, height: Height) -> u64;
}

/// Gets blocks for one thread.
pub trait BlockFetcher {
    /// Gives every block of `want` to `each`, in any order, until it was taken or nothing is left
    /// to try. Returns early, without an error, once `each` says [`Taken::Stop`].
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> Taken,
    ) -> Result<(), SourceError>;
}
