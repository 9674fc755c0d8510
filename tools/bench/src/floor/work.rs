//! [`Work`]: what an order-free sync of a chain cannot avoid, counted exactly.
//!
//! The chain is gone through once, found by its headers as in a run, and every block's parts are
//! counted; nothing is hashed and no rule is checked, so the counts are those of the chain that a
//! run then finds to be valid. Survivors come from the hints, which are believed here.

use super::counter::Counter;
use apus_chain::{BlockHash, DecodeError, Height, HeightRange, Params};
use apus_datadir::{BlkError, BlockFiles};
use apus_sync::engines::swiftsync::hints::{
    HintsError, HintsErrorKind, HintsFile, HintsOptions, RangeHints,
};
use apus_sync::{
    BlockSource, BlocksDir, ChainSource, ErrorKind, Silent, SourceError, Taken, UseIndex,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks read together: so few that their hints fit in memory.
const BATCH: u32 = 64;

/// Counts over the heights 1 to the stop height of the hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Whether the files are obfuscated.
    pub obfuscated: bool,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
    pub outputs: u64,
    /// Outputs that never become a coin.
    pub unspendable: u64,
    /// Coins that survive.
    pub coins: u64,
    /// Their bytes as a run of coins stores them, with a txid for each transaction.
    pub coin_bytes: u64,
    /// Their bytes as the hashes of a set cover them.
    pub element_bytes: u64,
    /// What has to be hashed of the blocks.
    pub compressions: Compressions,
}

/// SHA-256 compressions, by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compressions {
    /// Block hashes.
    pub headers: u64,
    /// Transaction ids.
    pub txids: u64,
    /// Inner nodes of the trees over them.
    pub merkle: u64,
    /// Ids with witness, in blocks that commit to witnesses.
    pub wtxids: u64,
    /// Inner nodes of the trees over them, and the commitments.
    pub witness_merkle: u64,
}

/// Why a chain's work could not be counted.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The blocks could not be had.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The hints could not be read.
    #[error("{file}: {error}", file = .file.display())]
    Hints {
        /// The hintsfile.
        file: PathBuf,
        /// What is wrong.
        error: HintsError,
    },
    /// The chain ends before the hints do.
    #[error(
        "{file}: the hints stop at height {stop}, but the chain found ends at {tip}: give the \
         blocks that belong to the hints", file = .file.display()
    )]
    Short {
        /// The hintsfile.
        file: PathBuf,
        /// Its stop height.
        stop: Height,
        /// The chain's tip.
        tip: Height,
    },
    /// A block is none.
    #[error("block {height} cannot be read: {error}: run `apus sync` to find out more")]
    Decode {
        /// Its height.
        height: Height,
        /// What is wrong.
        error: DecodeError,
    },
    /// The hints name outputs that a block does not have.
    #[error(
        "{file}: block {height} has fewer outputs than the hints say: they belong to another chain",
        file = .file.display()
    )]
    Indices {
        /// The hintsfile.
        file: PathBuf,
        /// The block.
        height: Height,
    },
}

impl From<BlkError> for WorkError {
    fn from(error: BlkError) -> Self {
        Self::Source(error.into())
    }
}

impl WorkError {
    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Source(error) => error.kind(),
            Self::Hints { error, .. } => match error.kind() {
                HintsErrorKind::Io => ErrorKind::Io,
                HintsErrorKind::Invalid => ErrorKind::Wrong,
            },
            Self::Short { .. } => ErrorKind::Usage,
            Self::Indices { .. } | Self::Decode { .. } => ErrorKind::Wrong,
        }
    }
}

/// A chain's work, and some of its blocks to measure with.
#[derive(Debug, Clone)]
pub struct Counted {
    /// The counts.
    pub work: Work,
    /// Raw blocks from all over the chain, a few megabytes at most.
    pub samples: Vec<Vec<u8>>,
}

/// Counts the work of the chain in `blocksdir` up to the stop height of `hints`. Witnesses of blocks up to
/// `assumed` are left alone, as runs leave them where scripts are assumed valid; where the chain has no such
/// block, all count. `now` is the time in seconds since 1970.
pub fn count(
    params: &Params,
    blocksdir: &Path,
    hints: &Path,
    assumed: Option<&BlockHash>,
    now: i64,
    interrupt: &AtomicBool,
) -> Result<Counted, WorkError> {
    let named = |error| WorkError::Hints { file: hints.to_owned(), error };
    let dir = BlocksDir::open(blocksdir, params, now, UseIndex::IfPresent, &Silent, interrupt)?;
    let survivors = HintsFile::open_path(hints, &HintsOptions::default()).map_err(named)?;
    let (stop, tip) = (survivors.info().stop_height, dir.chain().tip_height());
    if stop > tip {
        return Err(WorkError::Short { file: hints.to_owned(), stop, tip });
    }
    let bytes = (1..=stop).map(|height| dir.block_bytes(height)).sum();
    let unseen = assumed.and_then(|hash| dir.chain().height_of(hash)).unwrap_or(0);
    let mut counter = Counter::new(params, hints, unseen, bytes);
    let never = AtomicBool::new(false);
    let mut fetcher = dir.fetcher(&never);
    let mut start = 1;
    while start <= stop {
        if interrupt.load(Ordering::Relaxed) {
            return Err(SourceError::Interrupted.into());
        }
        let batch = HeightRange::new(start, (stop + 1).min(start.saturating_add(BATCH)));
        let survivors = indices(survivors.range(batch).map_err(named)?).map_err(named)?;
        let mut failure = None;
        fetcher.fetch(batch, &mut |height, raw| {
            let survivors = survivors.get(&height).map(Vec::as_slice).unwrap_or_default();
            match counter.block(height, raw, survivors) {
                Ok(()) => Taken::Yes,
                Err(error) => {
                    failure = Some(error);
                    Taken::Stop
                }
            }
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        start = batch.end;
    }
    let mut counted = counter.finish();
    let files = BlockFiles::open(blocksdir, params.network.magic())?;
    counted.work.obfuscated = !files.obfuscation().is_none();
    Ok(counted)
}

/// The hints of a range by height.
fn indices(mut range: RangeHints) -> Result<BTreeMap<Height, Vec<u32>>, HintsError> {
    let mut all = BTreeMap::new();
    while let Some(block) = range.next()? {
        all.insert(block.height, block.indices.to_vec());
    }
    Ok(all)
}
