//! [`ScriptChecks`]: for which blocks of a chain scripts have to be run at all.
//!
//! Core runs none where a block that the user or the program trusts builds on this one, the chain
//! that contains both is the best one with enough work, and the block lies deep in it (Core
//! `validation.cpp`, `ConnectBlock`). Whatever is not known makes scripts run. Every other rule
//! holds for every block.

use crate::hashes::BlockHash;
use crate::header::Height;
use crate::header_chain::{BlockPlace, HeaderChain};
use crate::header_tree::HeaderTree;
use crate::params::Params;
use crate::work::{U256, block_work};

/// A block that lies less deep than this amount of work takes at the tip's difficulty is checked
/// even so (Core `validation.cpp`, `TWO_WEEKS_IN_SECONDS`).
const BURIED_SECONDS: u32 = 60 * 60 * 24 * 7 * 2;

/// Why a block's scripts are run, in the order in which Core asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScriptCheckReason {
    /// No block is assumed to be valid.
    #[error("no block is assumed to be valid")]
    NoAssumedValid,
    /// The assumed-valid block is not among the headers, or, where the best chain is all that is
    /// known, not in that.
    #[error("the block assumed to be valid is not in the best chain of headers")]
    NotInHeaders,
    /// The block is above the assumed-valid one.
    #[error("the block is above the one assumed to be valid")]
    AboveAssumedValid,
    /// The assumed-valid block is on another branch, which left the chain below this block.
    #[error("the block assumed to be valid is on another branch")]
    OtherBranch,
    /// The best chain of headers does not contain the block.
    #[error("the block is not in the best chain of headers")]
    NotInBestChain,
    /// The best chain of headers has too little work.
    #[error("the best chain of headers has less work than the real chain is known to have")]
    TooLittleWork,
    /// Too little work was done on top of the block.
    #[error("less than two weeks of work lie on the block")]
    TooRecent,
}

/// Which blocks of the best chain of headers have their scripts run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptChecks {
    assumed: Assumed,
    /// Height of the best chain's last block.
    tip_height: Height,
    enough_work: bool,
    /// The first height with too little work on top of it.
    recent_from: Height,
}

/// What is known of the assumed-valid block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assumed {
    None,
    Unknown,
    /// `height` is its own, `shared_height` that of the last block of its branch that lies in the
    /// best chain.
    Known {
        height: Height,
        shared_height: Height,
    },
}

impl ScriptChecks {
    /// For blocks of `best`, the best chain of headers. An assumed-valid block outside of it is as
    /// good as unknown; [`of_tree`](Self::of_tree) knows more.
    pub fn new(params: &Params, best: &HeaderChain, assume_valid: Option<BlockHash>) -> Self {
        let assumed = match assume_valid.map(|hash| best.height_of(&hash)) {
            None => Assumed::None,
            Some(None) => Assumed::Unknown,
            Some(Some(height)) => Assumed::Known { height, shared_height: height },
        };
        Self::with(params, best, assumed)
    }

    /// For blocks of `best`, the best chain of `tree`, also where the assumed-valid block is on a
    /// branch of its own: what lies below the fork is assumed to be valid with it.
    pub fn of_tree(tree: &HeaderTree, best: &HeaderChain, assume_valid: Option<BlockHash>) -> Self {
        let assumed = match assume_valid.map(|hash| tree.place_of(best, &hash)) {
            None => Assumed::None,
            Some(BlockPlace::Active(height)) => Assumed::Known { height, shared_height: height },
            Some(BlockPlace::Above(height)) => {
                Assumed::Known { height, shared_height: best.tip_height() }
            }
            Some(BlockPlace::Stale { height, fork_height }) => {
                Assumed::Known { height, shared_height: fork_height }
            }
            Some(BlockPlace::Orphan | BlockPlace::Rejected | BlockPlace::Unknown) => {
                Assumed::Unknown
            }
        };
        Self::with(tree.params(), best, assumed)
    }

    fn with(params: &Params, best: &HeaderChain, assumed: Assumed) -> Self {
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

    /// Why the scripts of the best chain's block at `height` are run; none where they are not. A
    /// height above that chain's tip is that of a block outside of it.
    pub const fn reason(&self, height: Height) -> Option<ScriptCheckReason> {
        Some(match self.assumed {
            Assumed::None => ScriptCheckReason::NoAssumedValid,
            Assumed::Unknown => ScriptCheckReason::NotInHeaders,
            Assumed::Known { height: assumed, .. } if height > assumed => {
                ScriptCheckReason::AboveAssumedValid
            }
            Assumed::Known { .. } if height > self.tip_height => ScriptCheckReason::NotInBestChain,
            Assumed::Known { shared_height, .. } if height > shared_height => {
                ScriptCheckReason::OtherBranch
            }
            Assumed::Known { .. } if !self.enough_work => ScriptCheckReason::TooLittleWork,
            Assumed::Known { .. } if height >= self.recent_from => ScriptCheckReason::TooRecent,
            Assumed::Known { .. } => return None,
        })
    }

    /// The last height whose block's scripts are not run; none where all are.
    ///
    /// Whatever makes the scripts of a block run makes those of all blocks above it run: each height
    /// that [`reason`](Self::reason) compares with is a limit from above, and the work is the whole
    /// chain's. So this one height divides the chain.
    pub fn last_assumed(&self) -> Option<Height> {
        match self.assumed {
            Assumed::Known { height, shared_height } if self.enough_work => {
                let buried = self.recent_from.checked_sub(1)?;
                Some(height.min(shared_height).min(self.tip_height).min(buried))
            }
            _ => None,
        }
    }

    /// Whether the scripts of the best chain's block at `height` are run. Those of a block outside
    /// of that chain always are, which is for the caller to tell.
    pub const fn needed(&self, height: Height) -> bool {
        self.reason(height).is_some()
    }
}

/// The first height of a chain on which no more work lies than its tip's difficulty asks of two
/// weeks (Core `chain.cpp`, `GetBlockProofEquivalentTime` from the tip to the block).
///
/// The work above a block falls with its height, so that one height divides the chain.
fn recent_from(bits: impl Fn(Height) -> u32, tip_height: Height, spacing_seconds: u32) -> Height {
    let mut memo = (bits(tip_height), block_work(bits(tip_height)));
    // Core divides work times spacing by the tip's work, rounds down, and wants more than the
    // seconds: the same as one second more, times the tip's work, without rounding.
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
