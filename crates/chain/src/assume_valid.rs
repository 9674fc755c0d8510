//! [`ScriptChecks`]: the blocks of a chain whose scripts must be run.
//!
//! Core skips the scripts of a block if a trusted block (set by the user or the program) builds on
//! it, the chain that contains both is the best one with enough work, and the block lies deep in
//! that chain (Core `validation.cpp`, `ConnectBlock`). If any of this is unknown, scripts run.
//! Every other rule applies to every block.

use crate::hashes::BlockHash;
use crate::header::Height;
use crate::header_chain::{BlockPlace, HeaderChain};
use crate::header_tree::HeaderTree;
use crate::params::Params;
use crate::work::{U256, block_work};

/// The minimum burial, in time at the tip's difficulty: the scripts of a block with less work on top are
/// checked anyway (Core `validation.cpp`, `TWO_WEEKS_IN_SECONDS`).
const BURIED_SECONDS: u32 = 60 * 60 * 24 * 7 * 2;

/// Why a block's scripts are run, in the order in which Core checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScriptCheckReason {
    /// No block is assumed to be valid.
    #[error("no block is assumed to be valid")]
    NoAssumedValid,
    /// The assumed-valid block is not among the headers, or, if only the best chain is known, not
    /// in that chain.
    #[error("the block assumed to be valid is not in the best chain of headers")]
    NotInHeaders,
    /// The block is above the assumed-valid one.
    #[error("the block is above the one assumed to be valid")]
    AboveAssumedValid,
    /// The assumed-valid block is on another branch, which forks off below this block.
    #[error("the block assumed to be valid is on another branch")]
    OtherBranch,
    /// The best chain of headers does not contain the block.
    #[error("the block is not in the best chain of headers")]
    NotInBestChain,
    /// The best chain of headers has too little work.
    #[error("the best chain of headers has less work than the real chain is known to have")]
    TooLittleWork,
    /// The block has too little work on top of it.
    #[error("the block has less than two weeks of work on top of it")]
    TooRecent,
}

/// Decides which blocks of the best header chain have their scripts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptChecks {
    assumed: AssumedValidBlock,
    /// Height of the best chain's tip.
    tip_height: Height,
    enough_work: bool,
    /// The first height with too little work on top of it.
    recent_from: Height,
}

/// Facts about the assumed-valid block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AssumedValidBlock {
    None,
    Unknown,
    /// `height` is the block's own height, `shared_height` that of the last block that its branch shares with
    /// the best chain.
    Known {
        height: Height,
        shared_height: Height,
    },
}

impl ScriptChecks {
    /// Creates the checks for blocks of `best`, the best header chain. Treats an assumed-valid
    /// block outside of it as unknown; [`of_tree`](Self::of_tree) knows more.
    pub fn new(params: &Params, best: &HeaderChain, assume_valid: Option<BlockHash>) -> Self {
        let assumed = match assume_valid.map(|hash| best.height_of(&hash)) {
            None => AssumedValidBlock::None,
            Some(None) => AssumedValidBlock::Unknown,
            Some(Some(height)) => AssumedValidBlock::Known { height, shared_height: height },
        };
        Self::with(params, best, assumed)
    }

    /// Creates the checks for blocks of `best`, the best chain of `tree`. The assumed-valid block
    /// may be on another branch: the blocks below the fork are assumed valid with it.
    pub fn of_tree(tree: &HeaderTree, best: &HeaderChain, assume_valid: Option<BlockHash>) -> Self {
        let assumed = match assume_valid.map(|hash| tree.place_of(best, &hash)) {
            None => AssumedValidBlock::None,
            Some(BlockPlace::Active(height)) => {
                AssumedValidBlock::Known { height, shared_height: height }
            }
            Some(BlockPlace::Above(height)) => {
                AssumedValidBlock::Known { height, shared_height: best.tip_height() }
            }
            Some(BlockPlace::Stale { height, fork_height }) => {
                AssumedValidBlock::Known { height, shared_height: fork_height }
            }
            Some(BlockPlace::Orphan | BlockPlace::Rejected | BlockPlace::Unknown) => {
                AssumedValidBlock::Unknown
            }
        };
        Self::with(tree.params(), best, assumed)
    }

    fn with(params: &Params, best: &HeaderChain, assumed: AssumedValidBlock) -> Self {
        Self {
            assumed,
            tip_height: best.tip_height(),
            enough_work: best.chain_work() >= params.minimum_chain_work,
            recent_from: recent_from(
                |height| best.bits(height).unwrap_or_default(),
                best.tip_height(),
                params.pow_target_spacing_seconds.get(),
            ),
        }
    }

    /// Returns why the scripts of the best chain's block at `height` are run, or `None` if they are
    /// skipped. A height above that chain's tip means a block outside the chain.
    pub const fn reason(&self, height: Height) -> Option<ScriptCheckReason> {
        Some(match self.assumed {
            AssumedValidBlock::None => ScriptCheckReason::NoAssumedValid,
            AssumedValidBlock::Unknown => ScriptCheckReason::NotInHeaders,
            AssumedValidBlock::Known { height: assumed, .. } if height > assumed => {
                ScriptCheckReason::AboveAssumedValid
            }
            AssumedValidBlock::Known { .. } if height > self.tip_height => {
                ScriptCheckReason::NotInBestChain
            }
            AssumedValidBlock::Known { shared_height, .. } if height > shared_height => {
                ScriptCheckReason::OtherBranch
            }
            AssumedValidBlock::Known { .. } if !self.enough_work => {
                ScriptCheckReason::TooLittleWork
            }
            AssumedValidBlock::Known { .. } if height >= self.recent_from => {
                ScriptCheckReason::TooRecent
            }
            AssumedValidBlock::Known { .. } => return None,
        })
    }

    /// Returns the last height whose block's scripts are skipped; `None` if all are run.
    ///
    /// If a block's scripts are run, the scripts of all blocks above it are run too: each height that
    /// [`reason`](Self::reason) compares with is an upper bound, and the work is the whole chain's.
    /// So this one height divides the chain.
    pub fn last_assumed(&self) -> Option<Height> {
        match self.assumed {
            AssumedValidBlock::Known { height, shared_height } if self.enough_work => {
                let buried = self.recent_from.checked_sub(1)?;
                Some(height.min(shared_height).min(self.tip_height).min(buried))
            }
            _ => None,
        }
    }

    /// Returns whether the scripts of the best chain's block at `height` are run. The caller must know
    /// whether a block is in that chain: scripts of a block outside it are always run.
    pub const fn needed(&self, height: Height) -> bool {
        self.reason(height).is_some()
    }
}

/// Returns the first height of a chain with at most two weeks of work on top of it, at the tip's
/// difficulty (Core `chain.cpp`, `GetBlockProofEquivalentTime` from the tip to the block).
///
/// The work above a block falls with its height, so one height divides the chain.
fn recent_from(bits: impl Fn(Height) -> u32, tip_height: Height, spacing_seconds: u32) -> Height {
    let mut memo = (bits(tip_height), block_work(bits(tip_height)));
    // Core divides work times spacing by the tip's work, rounds down, and requires more than this number of
    // seconds. That equals one second more, times the tip's work, without rounding.
    let enough = wide(memo.1).wrapping_mul_u32(BURIED_SECONDS + 1);
    let mut above = 0u128;
    for height in (0..=tip_height).rev() {
        if wide(above).wrapping_mul_u32(spacing_seconds) >= enough {
            return height + 1;
        }
        let bits = bits(height);
        if bits != memo.0 {
            memo = (bits, block_work(bits));
        }
        above = above.saturating_add(memo.1);
    }
    0
}

fn wide(work: u128) -> U256 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&work.to_le_bytes());
    U256::from_le_bytes(&bytes)
}

#[cfg(test)]
mod tests;
