//! [`ScriptChecks`]: the blocks of a chain whose scripts must be run.
//!
//! Core skips the scripts of a block if a trusted block (set by the user or the program) builds on
//! it, the chain that contains both is the best one with enough work, and the block lies deep in
//! that chain (Core `validation.cpp`, `ConnectBlock`). If any of this is unknown, scripts run.
//! Every other rule applies to every block.

use crate::hashes::BlockHash;
use crate::header::Height;
use crate::header_chain::HeaderChain;
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
    /// The assumed-valid block is not in the best chain of headers.
    #[error("the block assumed to be valid is not in the best chain of headers")]
    NotInHeaders,
    /// The block is above the assumed-valid one.
    #[error("the block is above the one assumed to be valid")]
    AboveAssumedValid,
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
    enough_work: bool,
    /// The first height with too little work on top of it.
    recent_from: Height,
}

/// Facts about the assumed-valid block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AssumedValidBlock {
    None,
    Unknown,
    /// It is in the best chain, at this height.
    Known(Height),
}

impl ScriptChecks {
    /// Creates the checks for blocks of `best`, the best header chain. Treats an assumed-valid block outside of it as
    /// unknown.
    pub fn new(params: &Params, best: &HeaderChain, assume_valid: Option<BlockHash>) -> Self {
        let assumed = match assume_valid.map(|hash| best.height_of(&hash)) {
            None => AssumedValidBlock::None,
            Some(None) => AssumedValidBlock::Unknown,
            Some(Some(height)) => AssumedValidBlock::Known(height),
        };
        Self {
            assumed,
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
            AssumedValidBlock::Known(assumed) if height > assumed => {
                ScriptCheckReason::AboveAssumedValid
            }
            AssumedValidBlock::Known(_) if !self.enough_work => ScriptCheckReason::TooLittleWork,
            AssumedValidBlock::Known(_) if height >= self.recent_from => {
                ScriptCheckReason::TooRecent
            }
            AssumedValidBlock::Known(_) => return None,
        })
    }

    /// Returns the last height whose block's scripts are skipped; `None` if all are run.
    ///
    /// If a block's scripts are run, the scripts of all blocks above it are run too: each height that
    /// [`reason`](Self::reason) compares with is an upper bound, and the work is the whole chain's.
    /// So this one height divides the chain.
    pub fn last_assumed(&self) -> Option<Height> {
        match self.assumed {
            AssumedValidBlock::Known(height) if self.enough_work => {
                Some(height.min(self.recent_from.checked_sub(1)?))
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
