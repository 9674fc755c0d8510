//! [`SourceError`]: why a source could not provide its blocks.

use crate::error::{ErrorKind, SyncError};
use apus_chain::{BlockError, BlockHash, HeaderChain, Height, HeightRange, KnownBlock, utc};
use apus_datadir::{BlkError, IndexError};

/// Why a source could not provide its blocks.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Core's block files failed.
    #[error(transparent)]
    Files(#[from] apus_datadir::BlkError),
    /// The block index is unusable, and blocks cannot be found without it.
    #[error(
        "{0}. If the index is unusable, `bitcoind -reindex` rebuilds it from the block files, and `apus \
         sync --blocksdir DIR --out datadir:DIR` makes a data directory from the block files alone"
    )]
    Index(#[from] apus_datadir::IndexError),
    /// Blocks are in the future by this machine's clock.
    #[error(transparent)]
    Clock(#[from] Box<ClockError>),
    /// Only the genesis block is known.
    #[error(
        "no block after genesis found for the {chain} chain: give the folder that holds blk00000.dat \
         and all files after it"
    )]
    NoChain {
        /// The chain's name.
        chain: &'static str,
    },
    /// Peers know only the genesis block.
    #[error(
        "no peer has a block after genesis of the {chain} chain: check that the peers are on that chain"
    )]
    NoHeaders {
        /// The chain's name.
        chain: &'static str,
    },
    /// Reading or writing a kept block failed.
    #[error(transparent)]
    Kept(#[from] Box<SyncError>),
    /// The network failed.
    #[error(transparent)]
    Network(#[from] apus_p2p::network::NetworkError),
    /// A node's folder lacks something; the text says what.
    #[error("{0}")]
    Node(String),
    /// The folder lacks a block of a chain that was chosen before.
    #[error(
        "{folder}: block {height} ({hash}) is missing: get the block file that holds it, or give a folder that \
        has it"
    )]
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
        "block {height} ({hash}) in {place}: {error} [{}]: every copy found is damaged. Restore the file, or let \
         the node download the block again",
        .error.reason()
    )]
    Damaged {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
        /// File and offset of the last copy tried.
        place: String,
        /// What is invalid.
        error: BlockError,
    },
    /// Every copy of a block that peers sent is damaged.
    #[error(
        "block {height} ({hash}): {error} [{}]: {peers} peer{} sent damaged copies, and no peer sent an intact \
         copy. Connect to other peers, then rerun the same command",
        .error.reason(), if *.peers == 1 { "" } else { "s" }
    )]
    DamagedCopies {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
        /// Number of peers, by address, that sent damaged copies.
        peers: usize,
        /// What is invalid in the last copy.
        error: BlockError,
    },
    /// No peer sends a block, but peers have another chain without it.
    #[error(
        "no peer sends block {height} ({hash}), and peers have another chain without this block. Rerun the same \
         command. If it stops here again, use hints for a block on their chain, or connect to other peers"
    )]
    ChainLeft {
        /// The block's height.
        height: Height,
        /// The block's hash.
        hash: BlockHash,
    },
    /// The most-work chain extends far beyond an invalid block.
    #[error(
        "block {height} ({hash}) is invalid: {why}, but the most-work chain builds on it up to height {tip}, so \
         other nodes accept it. If they are right, Apus or this machine is at fault. If they are wrong, wait until \
         another chain has the most work"
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
    /// A source provided fewer blocks than requested, without an error.
    #[error(
        "the source did not provide all blocks from {} to {}. This is a bug in Apus: please report it",
        .range.start, .range.end - 1
    )]
    Incomplete {
        /// The requested heights.
        range: HeightRange,
    },
    /// The user stopped the sync.
    #[error("interrupted")]
    Interrupted,
}

impl SourceError {
    /// Returns what the error means for the user.
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

/// Returns what an error of the block files means for the user.
fn files_error_kind(error: &BlkError) -> ErrorKind {
    match error {
        BlkError::WrongChain { .. } | BlkError::OwnSignet { .. } => ErrorKind::Usage,
        BlkError::NoBlocks { .. } | BlkError::Plain { .. } => ErrorKind::Wrong,
        _ => ErrorKind::Io,
    }
}

// [`ClockError`]: this machine's clock and the times of blocks do not match.

/// Blocks are in the future by this machine's clock. No shorter chain takes their place: if the clock is
/// behind, the shorter chain would look complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this machine's clock says {}, but block {} ({}) has time {}, more than two hours later{}. Set the clock, then \
     rerun the same command. If the clock is right, that block is not valid yet: {}",
    utc(*.now), .block.height, .block.hash, utc((*.time).into()), .evidence, .remedy
)]
pub struct ClockError {
    /// The clock, in seconds since 1970.
    pub now: i64,
    /// The first block in the future.
    pub block: KnownBlock,
    /// Its time.
    pub time: u32,
    /// Other evidence against the clock, or empty.
    pub evidence: String,
    /// What to do if the clock is right.
    pub remedy: &'static str,
}

impl ClockError {
    /// Checks that no block of a chain is in the future.
    pub fn expect_past(chain: &HeaderChain, now: i64) -> Result<(), Self> {
        let Some(height) = chain.first_too_new(now) else { return Ok(()) };
        let hash = chain.hash(height).copied().unwrap_or_default();
        Err(Self {
            now,
            block: KnownBlock { height, hash },
            time: chain.time(height).unwrap_or_default(),
            evidence: String::new(),
            remedy: "wait until that time, or give blocks whose times are not in the future",
        })
    }
}
