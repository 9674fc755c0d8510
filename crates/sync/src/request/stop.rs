//! [`Stop`]: where a run ends, and which blocks are its last ones.

use crate::error::{InvalidError, SyncError};
use crate::source::ChainSource;
use apus_chain::{HeaderChain, Height};

/// Where a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Where the hints do.
    AtHints,
    /// At this height, which is not below that of the hints.
    At(Height),
    /// At the tip of the most-work chain.
    AtTip,
}

impl Stop {
    /// The height at which a run on `chain` ends, with hints that stop at `hinted`.
    pub fn end(self, hinted: Height, chain: &HeaderChain) -> Height {
        match self {
            Self::AtHints => hinted,
            Self::At(height) => height,
            Self::AtTip => chain.tip_height(),
        }
    }

    /// The height at which a run without hints ends, or one that goes on above them.
    pub fn end_in(self, dir: &dyn ChainSource) -> Result<Height, SyncError> {
        self.expect_in(dir)?;
        Ok(self.end(dir.chain().tip_height(), dir.chain()))
    }

    /// Fails where the chain does not reach up to it.
    pub fn expect_in(self, dir: &dyn ChainSource) -> Result<(), SyncError> {
        let tip = dir.chain().tip_height();
        match self {
            Self::At(stop) if stop > tip => {
                let gap = dir.gap().clone();
                Err(SyncError::Invalid(InvalidError::StopAboveTip { stop, tip, gap }))
            }
            _ => Ok(()),
        }
    }
}

/// So many of its last blocks a node always keeps with their undo data (Core `validation.h`,
/// `MIN_BLOCKS_TO_KEEP`).
pub const LAST_BLOCKS: Height = 288;

/// The first of the last blocks of a chain that ends at `end`. The genesis block is never among them:
/// nothing goes back over it.
pub fn first_of_last(end: Height) -> Height {
    (end + 1).saturating_sub(LAST_BLOCKS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_blocks_are_as_many_as_a_node_keeps() {
        for (end, first) in [(1, 1), (287, 1), (288, 1), (289, 2), (1000, 713)] {
            assert_eq!(first_of_last(end), first);
            assert_eq!(end + 1 - first, LAST_BLOCKS.min(end));
        }
    }
}
