//! [`BlockSource`]: where raw blocks come from, as the pipeline sees it.
//!
//! A source is shared; each worker thread has a [`BlockFetcher`] of its own and asks it for whole
//! segments. Nothing promises an order inside a segment. Blocks are data of no standing: the
//! receiver checks each and may turn down a copy that is damaged, whereupon the source looks for
//! another one.

use crate::blocksdir::{BlockHead, Gap, files_error_kind};
use crate::error::{ErrorKind, SyncError};
use apus_chain::{BlockError, BlockHash, HeaderChain, Height, HeightRange, KeyedCoinSum};
use apus_datadir::{Obfuscation, SpentCoins};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// What a receiver made of a raw block.
#[derive(Debug)]
pub enum Taken {
    /// It was taken.
    Yes,
    /// The copy is damaged; another one may be good.
    Damaged(BlockError),
    /// It is no part of what was asked for, or was taken before: nobody looked at it, so nothing is
    /// known of this copy.
    NotWanted,
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
    /// Peers know of nothing but the genesis block.
    #[error(
        "no peer knows a block that follows the genesis block of the {chain} chain: see that they are \
         of that chain"
    )]
    NoHeaders {
        /// The chain's name.
        chain: &'static str,
    },
    /// A block that was kept cannot be had, or not kept.
    #[error(transparent)]
    Kept(#[from] Box<SyncError>),
    /// Nothing comes from peers.
    #[error(transparent)]
    Network(#[from] apus_p2p::network::NetworkError),
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
    /// Every copy of a block that peers sent is damaged.
    #[error(
        "block {height} ({hash}): {error} [{}]: {peers} peer{} sent damaged copies of it, and nobody \
         a sound one: connect to other peers, and start the same run again",
        .error.reason(), if *.peers == 1 { "" } else { "s" }
    )]
    DamagedCopies {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
        /// How many peers sent some, by their addresses.
        peers: usize,
        /// What is wrong with the last copy.
        error: BlockError,
    },
    /// Nobody gives a block, and there is a chain that does without it.
    #[error(
        "no peer gives block {height} ({hash}), and peers have another chain, which does without it: \
         start the same run again; if it ends here again, give the hints of a block that is on \
         their chain, or connect to other peers"
    )]
    ChainLeft {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
    },
    /// The chain with the most work goes far on from an invalid block.
    #[error(
        "block {height} ({hash}) is invalid: {why}, but the chain with the most work goes on from it \
         up to height {tip}: others take it for valid. If they are right, this program or this \
         machine is at fault; if not, wait until the chain with the most work is another one"
    )]
    Disputed {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
        /// The rule that it breaks.
        why: String,
        /// Height of the chain's tip.
        tip: Height,
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
            Self::Index(_)
            | Self::Network(_)
            | Self::DamagedCopies { .. }
            | Self::ChainLeft { .. } => ErrorKind::Io,
            Self::Kept(error) => error.kind(),
            Self::NoChain { .. }
            | Self::NoHeaders { .. }
            | Self::NoneConnected { .. }
            | Self::FileMissing { .. }
            | Self::Damaged { .. }
            | Self::Disputed { .. }
            | Self::Incomplete { .. } => ErrorKind::Invalid,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

/// Blocks that were kept, with an index that finds them.
#[derive(Debug)]
pub struct KeptWhole {
    /// Their folder.
    pub folder: PathBuf,
    /// The sums of the coins that those with undo data spent, by height.
    pub spent: Vec<Option<KeyedCoinSum>>,
}

/// A place that blocks come from.
pub trait BlockSource: Sync {
    /// A fetcher for one thread. Once `halt` is set nobody waits for its blocks any more: one that
    /// itself waits for blocks then returns early, without an error.
    fn fetcher<'a>(&'a self, halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a>;

    /// Makes durable what it keeps of the blocks that were given.
    fn sync(&self) -> Result<(), SyncError> {
        Ok(())
    }

    /// Whether [`block_bytes`](Self::block_bytes) is good enough to tell how far a run is.
    fn knows_sizes(&self) -> bool {
        true
    }

    /// How many fetchers keep this source busy, where `threads` are to work on what they give.
    fn fetchers(&self, threads: usize) -> usize {
        threads
    }

    /// About how many bytes the block at `height` has, for dividing work.
    fn block_bytes(&self, height: Height) -> u64;
}

/// A source that has settled on a chain.
pub trait ChainSource: BlockSource {
    /// The most-work chain whose blocks can be had.
    fn chain(&self) -> &HeaderChain;

    /// Whether the chain is one that an index of blocks told of, which may be older than the blocks.
    fn is_by_index(&self) -> bool {
        false
    }

    /// What lies beyond the chain's end.
    fn gap(&self) -> &Gap;

    /// The key for block files that are written from this source.
    fn obfuscation(&self) -> Obfuscation {
        Obfuscation::NONE
    }

    /// Whoever takes its blocks can go on with another chain: where one cannot be had and others do
    /// without it, its fetchers end with [`SourceError::ChainLeft`], and wait no longer. He may
    /// `follow` the tip, which means that he does not end where he gets to.
    fn may_be_left(&self, _follow: bool) {}

    /// The lowest block whose undo data a run needs that is at height `tip`, should a block above prove
    /// invalid; none where it would go on from there.
    fn undo_needed(&self, _tip: Height) -> Option<Height> {
        None
    }

    /// All its blocks were connected: others may have them.
    fn reached_tip(&self) {}

    /// Whether it keeps blocks, and wants the undo data of those that are connected.
    fn keeps_undo(&self) -> bool {
        false
    }

    /// Keeps the undo data of a connected block.
    fn put_undo(&self, _: &BlockHash, _: &BlockHash, _: SpentCoins<'_>) -> Result<(), SyncError> {
        Ok(())
    }

    /// Blocks of `range` that are to be kept, and of which no undo data is.
    fn without_undo(&self, _range: HeightRange) -> Vec<HeightRange> {
        Vec::new()
    }

    /// Blocks up to `last` that are to be kept and are not: an earlier start may have taken them
    /// without being asked to.
    fn not_kept(&self, _last: Height) -> Vec<HeightRange> {
        Vec::new()
    }

    /// Blocks up to `last` that have to be taken before [`heads`](Self::heads).
    fn not_counted(&self, _last: Height) -> Vec<HeightRange> {
        Vec::new()
    }

    /// All that is to be kept of the blocks up to `last` was given: makes it whole. The folder of the
    /// blocks, if any are kept, and the sums of the coins that those with undo data spent, by height.
    fn complete(&self, _last: Height) -> Result<Option<KeptWhole>, SyncError> {
        Ok(None)
    }

    /// Gives the copies of a block that need not be on the chain to `take`, until it takes one.
    /// Tells whether one was taken.
    fn block_by_hash(
        &self,
        hash: &BlockHash,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError>;

    /// The heads of the blocks of heights 1 to `last`, ascending. `reached` is told of heights on
    /// the way, and ends it with an error.
    fn heads(
        &self,
        last: Height,
        reached: &mut dyn FnMut(Height) -> Result<(), SourceError>,
    ) -> Result<Vec<BlockHead>, SourceError>;
}

/// Gets blocks for one thread.
pub trait BlockFetcher {
    /// Gives every block of `want` to `each`, in any order, until it was taken, is not wanted or nothing
    /// is left to try. Returns early, without an error, once `each` says [`Taken::Stop`].
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> Taken,
    ) -> Result<(), SourceError>;
}
