//! [`InvalidError`]: the data is wrong: a block breaks a rule, hints do not fit, a chain is too short; and [`ChainGap`]: what
//! a chain lacks, and why, to explain where it ends.

use super::{ErrorKind, SyncError};
use crate::engines::in_order::ChainstateError;
use apus_chain::{
    BlockError, BlockHash, Height, KNOTS_CHAIN, KnownBlock, OutPoint, Txid, UtxoSetHash,
};
use apus_datadir::BlockFile;
use std::fmt::{Display, Formatter};
use std::ops::RangeInclusive;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum InvalidError {
    /// A block of the chain breaks a rule.
    #[error("block {height} ({hash}) is invalid: {error} [{}]", .error.reason())]
    InvalidBlock {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
        /// The rule.
        error: BlockError,
    },
    /// The hints end above the chain.
    #[error(
        "the hints stop at height {stop}, but the chain that was found ends at {tip}{gap}: add the \
         missing block files, or connect to peers that have more of it, or use hints for a height up \
         to {tip}"
    )]
    ChainTooShort {
        /// The hints' stop height.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// What lies beyond.
        gap: ChainGap,
    },
    /// The run is to end above the chain.
    #[error(
        "the run is to stop at height {stop}, but the chain that was found ends at {tip}{gap}: add \
         the missing block files, or connect to peers that have more of it, or stop at a height up \
         to {tip}"
    )]
    StopAboveTip {
        /// What was asked for.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// What lies beyond.
        gap: ChainGap,
    },
    /// The hints are bound to a block that is not on the chain.
    #[error(
        "the hints are for block {base}, which is not on the most-work chain that was found: they \
         were made on a stale fork or another chain, or block files are missing, or the peers \
         have another chain"
    )]
    BaseNotOnChain {
        /// The block.
        base: BlockHash,
    },
    /// One transaction id in two blocks, with coins of both surviving.
    #[error(
        "two blocks create transaction {txid}, and coins of both survive, which BIP-30 forbids"
    )]
    DuplicateTransaction {
        /// The id.
        txid: Txid,
    },
    /// Core's own table of snapshots has another set for the stop block.
    #[error(
        "the set's hash_serialized_3 is {found}, but Bitcoin Core's own table of snapshots has \
         {known} for block {stop_hash}: either scripts or amounts that are assumed valid here are \
         not, or this is a mistake in the program; nothing was written under the output's name"
    )]
    AssumeUtxo {
        /// The stop block.
        stop_hash: BlockHash,
        /// What the blocks lead to.
        found: UtxoSetHash,
        /// What the table has.
        known: UtxoSetHash,
    },
    /// A coin of a snapshot that claims a height outside the chain up to the snapshot's block.
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
    /// A snapshot given as hints was written to while it was read.
    #[error("{file} changed while it was read: start again with a file that no program writes to")]
    HintsChanged {
        /// The snapshot.
        file: String,
    },
}

impl InvalidError {
    /// What it means.
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

    /// As [`SyncError::spoils_progress`](super::SyncError::spoils_progress).
    pub(super) fn spoils_progress(&self) -> bool {
        matches!(self, Self::DuplicateTransaction { .. } | Self::AssumeUtxo { .. })
    }
}

impl InvalidBlock {
    /// The block that an error is about, if the error is that a block breaks a rule.
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

/// So many blocks that are put aside are told.
const TOLD: usize = 3;

/// What lies beyond the end of the chain, to explain why it is too short.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainGap {
    /// Blocks whose ancestors are missing.
    pub orphans: usize,
    /// Those of them below which a block is in no file, and none that was put aside.
    pub unjoined: usize,
    /// Numbers of block files that are not there, though later ones are.
    pub files: Vec<RangeInclusive<u32>>,
    /// The missing ancestors. The first few by hash.
    pub missing: Vec<BlockHash>,
    /// How many ancestors are missing.
    pub missing_count: usize,
    /// Headers that were refused: where, and why. The first few.
    pub refused: Vec<String>,
    /// How many headers were refused.
    pub refused_count: u64,
    /// Blocks of Bitcoin Knots' own proof of work.
    pub knots: GapStretch,
    /// Blocks that an index says are stored, and whose files are not there or end below them.
    pub absent: GapStretch,
    /// Height of the highest header that an index has without its block.
    pub headers: Option<Height>,
    /// Numbers of block files in which no block can be read, though something is in them.
    pub unreadable: Vec<u32>,
    /// Blocks that are there, proved invalid, and were put aside with what descends from them.
    pub invalid: Vec<InvalidBlock>,
}

/// Some blocks, of which the highest is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GapStretch {
    /// How many.
    pub count: u64,
    /// Height of the highest, where that is known.
    pub highest: Option<Height>,
}

impl GapStretch {
    /// Notes one more.
    pub fn add(&mut self, height: Option<Height>) {
        self.count += 1;
        self.highest = self.highest.max(height);
    }

    /// How high they reach, for people.
    fn up_to(&self) -> String {
        self.highest.map_or_else(String::new, |height| format!(", up to height {height},"))
    }
}

fn file_name(number: &u32) -> String {
    format!("blk{number:05}.dat")
}

impl ChainGap {
    /// What the names of block files tell.
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

    /// What a user should know who takes the end of the chain for the end of the blocks; none where no block lies
    /// beyond but those that were put aside.
    pub fn unjoined(&self) -> Option<Self> {
        let is_any = self.unjoined > 0
            || self.refused_count > 0
            || self.knots.count > 0
            || self.absent.count > 0
            || self.headers.is_some()
            || !self.unreadable.is_empty();
        is_any.then(|| Self { orphans: self.unjoined, invalid: Vec::new(), ..self.clone() })
    }

    /// Names of the block files that are not there, the first few; none where there are none.
    pub fn missing_files(&self) -> Option<String> {
        let shown = |range: &RangeInclusive<u32>| match range.start() == range.end() {
            true => file_name(range.start()),
            false => format!("{} to {}", file_name(range.start()), file_name(range.end())),
        };
        let told: Vec<String> = self.files.iter().take(TOLD).map(shown).collect();
        let more = if self.files.len() > TOLD { ", and further files," } else { "" };
        let is = match &self.files[..] {
            [] => return None,
            [one] if one.start() == one.end() => "is",
            _ => "are",
        };
        Some(format!("{}{more} {is} not in the folder", told.join(", ")))
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
        for invalid in self.invalid.iter().take(TOLD) {
            write!(f, "; {invalid}")?;
        }
        if self.invalid.len() > TOLD {
            write!(f, "; and {} further blocks are invalid", self.invalid.len() - TOLD)?;
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
                "; by the node's block index there are {} further block(s){up_to} whose files are not there or end too early",
                self.absent.count
            )?;
        }
        if let Some(height) = self.headers {
            write!(
                f,
                "; the node's block index has headers up to height {height}, without their blocks"
            )?;
        }
        if !self.unreadable.is_empty() {
            let shown: Vec<String> = self.unreadable.iter().take(TOLD).map(file_name).collect();
            let more = if self.unreadable.len() > TOLD { ", and in further files" } else { "" };
            write!(
                f,
                "; no block can be read in {}{more}: damaged, or obfuscated with another key than that in xor.dat",
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
    /// Why a block is invalid takes no more bytes.
    pub const WHY_BYTES_MAX: usize = 1000;
}
