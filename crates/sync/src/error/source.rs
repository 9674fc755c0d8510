//! [`SourceError`]: why a source of blocks could not give what was asked for.

use crate::error::{ErrorKind, SyncError};
use apus_chain::{BlockError, BlockHash, HeaderChain, Height, HeightRange, KnownBlock, utc};
use apus_datadir::{BlkError, IndexError};

/// Why a source could not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Core's block files.
    #[error(transparent)]
    Files(#[from] apus_datadir::BlkError),
    /// The index of the blocks, where nothing can take its place.
    #[error(
        "{0}. Where the index is of no use, `bitcoind -reindex` makes it anew from the block files, and `apus \
         sync --blocksdir DIR --out datadir:DIR` makes a data directory from these alone"
    )]
    Index(#[from] apus_datadir::IndexError),
    /// Blocks are of the future, by this machine's clock.
    #[error(transparent)]
    Clock(#[from] Box<ClockError>),
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
    /// What the folder of a node lacks, in words.
    #[error("{0}")]
    Node(String),
    /// A block of a chain that was settled elsewhere is not in the folder.
    #[error("{folder} has no block {height} ({hash}): get it, or give a folder that has it")]
    NotInFolder {
        /// The folder.
        folder: String,
        /// The block's height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
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
        "block {height} ({hash}): {error} [{}]: {peers} peer{} sent damaged copies of it, and none \
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
    /// No peer gives a block, and there is a chain that does without it.
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
    /// The run was stopped.
    #[error("interrupted")]
    Interrupted,
}

impl SourceError {
    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Files(error) => files_error_kind(error),
            Self::Index(IndexError::Open { .. } | IndexError::Read { .. })
            | Self::Clock(_)
            | Self::NotInFolder { .. }
            | Self::Network(_)
            | Self::DamagedCopies { .. }
            | Self::ChainLeft { .. }
            | Self::Incomplete { .. } => ErrorKind::Io,
            Self::Kept(error) => error.kind(),
            Self::Index(_)
            | Self::NoChain { .. }
            | Self::NoHeaders { .. }
            | Self::Node(_)
            | Self::Damaged { .. } => ErrorKind::Wrong,
            Self::Disputed { .. } => ErrorKind::Invalid,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

/// What an error of the block files means for a run.
fn files_error_kind(error: &BlkError) -> ErrorKind {
    match error {
        BlkError::WrongChain { .. } | BlkError::OwnSignet { .. } => ErrorKind::Usage,
        BlkError::NoBlocks { .. } | BlkError::Plain { .. } => ErrorKind::Wrong,
        _ => ErrorKind::Io,
    }
}

// [`ClockError`]: this machine's clock and the times of blocks do not fit each other.

/// A chain that the clock alone keeps out. No shorter one takes its place: where the clock is behind, the shorter one
/// would look like the whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this machine's clock says {}, and block {} ({}) is of {}, more than two hours later{}: set the clock, and give the \
     same command again. If the clock is right, that block is not valid yet: {}",
    utc(*.now), .block.height, .block.hash, utc((*.time).into()), .evidence, .remedy
)]
pub struct ClockError {
    /// The clock, in seconds since 1970.
    pub now: i64,
    /// The first block of the future.
    pub block: KnownBlock,
    /// Its time.
    pub time: u32,
    /// What else speaks against the clock, or nothing.
    pub evidence: String,
    /// What helps if the clock is right.
    pub remedy: &'static str,
}

impl ClockError {
    /// That no block of a chain is of the future.
    pub fn expect_past(chain: &HeaderChain, now: i64) -> Result<(), Self> {
        let Some(height) = chain.first_too_new(now) else { return Ok(()) };
        let hash = chain.hash(height).copied().unwrap_or_default();
        Err(Self {
            now,
            block: KnownBlock { height, hash },
            time: chain.time(height).unwrap_or_default(),
            evidence: String::new(),
            remedy: "wait until its time has come, or give blocks of which none is of the future",
        })
    }
}
