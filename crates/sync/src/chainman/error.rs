//! [`ChainManagerError`]: what ends the work; an invalid block does not.

use super::TipCoinsError;
use crate::error::ErrorKind;
use apus_chain::{BlockHash, Height};
use std::io;

/// Why a [`ChainManager`](super::ChainManager) cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ChainManagerError {
    /// The log could not be read or written.
    #[error("{file}: {error}")]
    Storage {
        /// The file.
        file: String,
        /// What the system says.
        error: io::Error,
    },
    /// The log is not as it was written.
    #[error("{file} is damaged ({what}): remove the folder to start anew")]
    Damaged {
        /// The file.
        file: String,
        /// What was found.
        what: String,
    },
    /// The log was written by a later version of this program.
    #[error(
        "{file} has format {found}, and this program knows up to {known}: use the version that \
         wrote it, or remove the folder to start anew"
    )]
    Newer {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
        /// The latest format known here.
        known: u32,
    },
    /// The log is of another chain, or of other activation heights.
    #[error(
        "{file} holds blocks of another chain, or under other activation heights: give the \
         options that it was begun with, or name another folder"
    )]
    OtherChain {
        /// The file.
        file: String,
    },
    /// The coins are at a block that the log does not hold.
    #[error(
        "the coins are at block {hash} (height {height}), which is not among the blocks: the \
         folder is damaged; remove it to start anew"
    )]
    UnknownTip {
        /// The block's hash.
        hash: BlockHash,
        /// Its height.
        height: Height,
    },
    /// A block of ours no longer is what was checked.
    #[error(
        "block {hash} cannot be read back ({what}): the folder is damaged; remove it to start anew"
    )]
    BlockDamaged {
        /// The block.
        hash: BlockHash,
        /// What was found.
        what: String,
    },
    /// The coins could not be moved.
    #[error("block {hash}: {error}")]
    Coins {
        /// The block that was to be connected or disconnected.
        hash: BlockHash,
        /// What went wrong.
        error: TipCoinsError,
    },
}

impl ChainManagerError {
    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Newer { .. } | Self::OtherChain { .. } => ErrorKind::Usage,
            Self::Storage { .. }
            | Self::Damaged { .. }
            | Self::UnknownTip { .. }
            | Self::BlockDamaged { .. }
            | Self::Coins { .. } => ErrorKind::Io,
        }
    }
}
