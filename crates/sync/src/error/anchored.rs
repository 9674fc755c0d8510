//! [`NotAnchored`]: hints that are refused, since nothing vouches for blocks under them.

use apus_chain::{Height, KnownBlock, ScriptCheckReason};
use std::fmt;

/// Hints that are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnchored {
    /// The last block that would be taken under them.
    pub last: KnownBlock,
    /// Why Core would run its scripts.
    pub reason: ScriptCheckReason,
    /// The last block whose scripts Core would not run, if there is one above genesis.
    pub last_assumed: Option<Height>,
    /// Whether all would be well if the last block were the assumed-valid one.
    pub could_be_assumed: bool,
}

impl NotAnchored {
    /// Whether it may be otherwise on a chain that goes on further.
    pub(crate) fn depends_on_chain(&self) -> bool {
        matches!(
            self.reason,
            ScriptCheckReason::NotInHeaders
                | ScriptCheckReason::NotInBestChain
                | ScriptCheckReason::TooLittleWork
                | ScriptCheckReason::TooRecent
        )
    }
}

impl std::error::Error for NotAnchored {}

impl fmt::Display for NotAnchored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last: KnownBlock { height, hash }, reason, last_assumed, could_be_assumed } =
            self;
        write!(
            f,
            "block {height} ({hash}) would be taken under hints, and Bitcoin Core would check it: \
             {reason}. That hints and blocks fit each other does not make the blocks valid, so hints \
             may reach no further than what Core assumes valid. What helps: "
        )?;
        if let Some(height) = last_assumed {
            write!(f, "hints that stop at block {height} or below; ")?;
        }
        f.write_str(
            "no hints, so that every rule is checked; a node's own folder of blocks with their undo \
             data, by which every rule is checked under hints, too; ",
        )?;
        if *could_be_assumed {
            write!(f, "--assumevalid {hash}, if you know that this block is valid; ")?;
        }
        f.write_str(
            "or --assumevalid hints, if you know where the hints are from and take the blocks for \
             valid yourself",
        )
    }
}
