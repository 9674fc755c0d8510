//! [`InvalidError`]: the data is wrong (a block breaks a rule, hints do not match, a chain is too short); and
//! [`ChainGap`], which explains why a chain ends where it does.

use super::{ErrorKind, SyncError};
use crate::engines::in_order::ChainstateError;
use apus_chain::{
    BlockError, BlockHash, Height, KNOTS_CHAIN, KnownBlock, OutPoint, Txid, UtxoSetHash,
};
use apus_datadir::BlockFile;
use std::fmt::{Display, Formatter};
use std::ops::RangeInclusive;

/// An error in the data: in blocks, hints or chains.
#[derive(Debug, thiserror::Error)]
pub enum InvalidError {
    /// A block of the chain breaks a rule.
    #[error("block {height} ({hash}) is invalid: {error} [{}]", .error.reason())]
    InvalidBlock {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
        /// The rule that it breaks.
        error: BlockError,
    },
    /// The hints stop above the chain's tip.
    #[error(
        "the hints stop at height {stop}, but the chain found ends at {tip}{gap}. Choose one: add the missing \
         block files, connect to peers that have more of the chain, or use hints for a height up to {tip}"
    )]
    ChainTooShort {
        /// The height at which the hints stop.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// Why the chain ends there.
        gap: ChainGap,
    },
    /// The requested stop height is above the chain's tip.
    #[error(
        "stop height {stop} was requested, but the chain found ends at {tip}{gap}. Choose one: add the missing \
         block files, connect to peers that have more of the chain, or use --stopatheight {tip}"
    )]
    StopAboveTip {
        /// The requested stop height.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// Why the chain ends there.
        gap: ChainGap,
    },
    /// The block of the hints is not on the chain.
    #[error(
        "the hints are for block {base}, which is not on the most-work chain found. The hints were made on a stale \
         fork or another chain, block files are missing, or the peers have another chain. Use other hints, add the \
         missing files, or connect to other peers"
    )]
    BaseNotOnChain {
        /// The block of the hints.
        base: BlockHash,
    },
    /// Two blocks create the same transaction id, and coins of both survive.
    #[error(
        "two blocks create transaction {txid}, and coins of both survive, which BIP-30 forbids"
    )]
    DuplicateTransaction {
        /// The id.
        txid: Txid,
    },
    /// Core's own table of snapshots has another hash for the stop block.
    #[error(
        "the set's hash_serialized_3 is {found}, but Bitcoin Core's own table of snapshots has {known} for block \
         {stop_hash}: scripts or amounts that this sync assumed valid are invalid, or this is a bug in Apus. The \
         output was not written. Rerun with --assumevalid 0 and without --hints to find out"
    )]
    AssumeUtxo {
        /// The stop block.
        stop_hash: BlockHash,
        /// The hash of the set that the blocks produce.
        found: UtxoSetHash,
        /// The hash in the table.
        known: UtxoSetHash,
    },
    /// A coin of a snapshot claims a height outside the chain up to the snapshot's block.
    #[error(
        "{file}: coin {outpoint} claims to be from block {height}, which is not between 1 and the \
         snapshot's own block: the snapshot is damaged"
    )]
    CoinHeight {
        /// The snapshot.
        file: String,
        /// The coin.
        outpoint: OutPoint,
        /// The height that it claims.
        height: Height,
    },
    /// A snapshot given as hints changed while the sync read it.
    #[error(
        "{file} changed while Apus read it: stop the program that writes to it, then rerun the same command"
    )]
    HintsChanged {
        /// The snapshot.
        file: String,
    },
}

impl InvalidError {
    /// Returns what the error means for the user.
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidBlock { .. } | Self::DuplicateTransaction { .. } => ErrorKind::Invalid,
            Self::ChainTooShort { gap, .. } | Self::StopAboveTip { gap, .. }
                if !gap.invalid.is_empty() =>
            {
                ErrorKind::Invalid
            }
            Self::ChainTooShort { .. }
            | Self::StopAboveTip { .. }
            | Self::BaseNotOnChain { .. }
            | Self::AssumeUtxo { .. }
            | Self::CoinHeight { .. }
            | Self::HintsChanged { .. } => ErrorKind::Wrong,
        }
    }

    /// See [`SyncError::spoils_progress`](super::SyncError::spoils_progress).
    pub(super) fn spoils_progress(&self) -> bool {
        matches!(self, Self::DuplicateTransaction { .. } | Self::AssumeUtxo { .. })
    }
}

impl InvalidBlock {
    /// Returns the block, if the error is that a block breaks a rule.
    pub fn of(error: &SyncError) -> Option<Self> {
        let (block, mut why) = match error {
            SyncError::Invalid(InvalidError::InvalidBlock { height, hash, error }) => {
                let block = KnownBlock { height: *height, hash: *hash };
                (block, format!("{error} [{}]", error.reason()))
            }
            SyncError::Run(error) => return error.invalid_block(),
            SyncError::Chainstate { error } => match &**error {
                ChainstateError::Invalid { block, error } => (*block, error.with_reason()),
                _ => return None,
            },
            _ => return None,
        };
        why.truncate(why.floor_char_boundary(Self::WHY_BYTES_MAX));
        Some(Self { block, why })
    }
}

/// At most this many invalid blocks or block files are listed.
const SHOWN_MAX: usize = 3;

/// Evidence of blocks beyond the end of the chain, which explains why the chain is too short.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainGap {
    /// Number of blocks whose ancestors are missing.
    pub orphans: usize,
    /// Number of these blocks that miss an ancestor which is in no file, and have no invalid block below them.
    pub unjoined: usize,
    /// Numbers of missing block files that have later files after them.
    pub files: Vec<RangeInclusive<u32>>,
    /// The missing ancestors; the first few by hash.
    pub missing: Vec<BlockHash>,
    /// Number of missing ancestors.
    pub missing_count: usize,
    /// Rejected headers, with place and reason; the first few.
    pub refused: Vec<String>,
    /// Number of rejected headers.
    pub refused_count: u64,
    /// Blocks with Bitcoin Knots' own proof of work.
    pub knots: GapRange,
    /// Blocks that an index says are stored, but whose files are missing or end before them.
    pub absent: GapRange,
    /// Height of the highest header in the index whose block is not stored.
    pub headers: Option<Height>,
    /// Numbers of block files that have content but no readable block.
    pub unreadable: Vec<u32>,
    /// Stored blocks that proved invalid; they and their descendants are marked as failed.
    pub invalid: Vec<InvalidBlock>,
}

/// A number of blocks, and the height of the highest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GapRange {
    /// Number of blocks.
    pub count: u64,
    /// Height of the highest, if known.
    pub highest: Option<Height>,
}

impl GapRange {
    /// Counts one more block.
    pub fn add(&mut self, height: Option<Height>) {
        self.count += 1;
        self.highest = self.highest.max(height);
    }

    /// Describes how high the blocks reach, for people.
    fn up_to(&self) -> String {
        self.highest.map_or_else(String::new, |height| format!(", up to height {height},"))
    }
}

fn file_name(number: &u32) -> String {
    format!("blk{number:05}.dat")
}

impl ChainGap {
    /// Finds the gaps in the numbering of block files.
    pub fn between(files: &[BlockFile]) -> Self {
        let (mut next, mut missing) = (0, Vec::new());
        for file in files {
            if file.number > next {
                missing.push(next..=file.number - 1);
            }
            next = file.number.saturating_add(1);
        }
        Self { files: missing, ..Self::default() }
    }

    /// Returns the gap if blocks beyond the chain's end do not connect to it, so that the user may be missing
    /// some; `None` if all of them are marked as failed.
    pub fn unjoined(&self) -> Option<Self> {
        let is_any = self.unjoined > 0
            || self.refused_count > 0
            || self.knots.count > 0
            || self.absent.count > 0
            || self.headers.is_some()
            || !self.unreadable.is_empty();
        is_any.then(|| Self { orphans: self.unjoined, invalid: Vec::new(), ..self.clone() })
    }

    /// Names the missing block files, at most the first few; `None` if no file is missing.
    pub fn missing_files(&self) -> Option<String> {
        let shown = |range: &RangeInclusive<u32>| match range.start() == range.end() {
            true => file_name(range.start()),
            false => format!("{} to {}", file_name(range.start()), file_name(range.end())),
        };
        let shown_files: Vec<String> = self.files.iter().take(SHOWN_MAX).map(shown).collect();
        let more = if self.files.len() > SHOWN_MAX { ", and further files," } else { "" };
        let is = match &self.files[..] {
            [] => return None,
            [one] if one.start() == one.end() => "is",
            _ => "are",
        };
        Some(format!("{}{more} {is} not in the folder", shown_files.join(", ")))
    }
}

impl std::fmt::Display for ChainGap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.missing[..] {
            [] => {}
            _ if !self.invalid.is_empty() => write!(
                f,
                "; {} further blocks descend from blocks that are missing, damaged or invalid",
                self.orphans
            )?,
            [missing] => write!(
                f,
                "; {} further blocks descend from block {missing}, which is missing or damaged",
                self.orphans
            )?,
            some => {
                let some: Vec<String> = some.iter().map(BlockHash::to_string).collect();
                write!(
                    f,
                    "; {} further blocks descend from {} blocks that are missing or damaged, \
                     among them {}",
                    self.orphans,
                    self.missing_count,
                    some.join(", ")
                )?;
            }
        }
        for invalid in self.invalid.iter().take(SHOWN_MAX) {
            write!(f, "; {invalid}")?;
        }
        if self.invalid.len() > SHOWN_MAX {
            write!(f, "; {} further blocks are invalid", self.invalid.len() - SHOWN_MAX)?;
        }
        if self.refused_count > 0 {
            write!(f, "; {} header(s) refused: {}", self.refused_count, self.refused.join("; "))?;
        }
        if self.knots.count > 0 {
            write!(f, "; {} block(s){} are {KNOTS_CHAIN}", self.knots.count, self.knots.up_to())?;
        }
        if self.absent.count > 0 {
            let up_to = self.absent.up_to();
            write!(
                f,
                "; the node's block index lists {} further block(s){up_to} whose files are missing or end too early",
                self.absent.count
            )?;
        }
        if let Some(height) = self.headers {
            write!(
                f,
                "; the node's block index has headers up to height {height} without their blocks"
            )?;
        }
        if !self.unreadable.is_empty() {
            let shown: Vec<String> =
                self.unreadable.iter().take(SHOWN_MAX).map(file_name).collect();
            let more =
                if self.unreadable.len() > SHOWN_MAX { ", and in further files" } else { "" };
            write!(
                f,
                "; no block can be read in {}{more}: damaged, or obfuscated with a key other than the one in xor.dat",
                shown.join(", ")
            )?;
        }
        match self.missing_files() {
            Some(files) => write!(f, "; {files}"),
            None => Ok(()),
        }
    }
}

/// A block that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidBlock {
    /// The block.
    pub block: KnownBlock,
    /// The rule that it breaks, with Core's reject reason.
    pub why: String,
}

impl Display for InvalidBlock {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let KnownBlock { height, hash } = self.block;
        write!(f, "block {height} ({hash}) is invalid: {}", self.why)
    }
}

impl InvalidBlock {
    /// Maximum length of [`why`](Self::why), in bytes.
    pub const WHY_BYTES_MAX: usize = 1000;
}
